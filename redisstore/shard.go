package redisstore

import "time"

// slotsPerShard is how many neighbouring slots are taken for one shard. Nodes own
// stretches of slots, so nearly always all of them are on one node.
const slotsPerShard = 256

// Shards returns into how many parts the keys are divided that can be away one by
// one: one, or in a Cluster 64 stretches of slots. It is for
// [penstock.WithFallback].
func (s *Store) Shards() int {
	if s.client.Sharded() {
		return slots / slotsPerShard
	}
	return 1
}

// ShardOf returns which of them a key is in.
func (s *Store) ShardOf(key string) int {
	if key == "" || !s.client.Sharded() {
		return 0
	}
	return int(slotOf(stateKey("", key, ""))) / slotsPerShard
}

// Timeout returns how long a call may take, whatever the caller's context says.
func (s *Store) Timeout() time.Duration { return s.timeout }
