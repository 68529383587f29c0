package redisstore

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock"
)

// A key in Redis is made of the prefix, the caller's key and the limit's identity.
// No two states share one. The caller's key is the hash tag, so all states of it are
// in one slot:
//
//	p{user:42}Xk3_a       the key user:42
//	p.a{user:42}bXk3_a    the key a{user:42}b, which has its own tag
//	p#{R4…}Xk3_a          a key of more than 256 bytes, by its hash
//	p#{user:42}R4…Xk3_a   the same, with its own tag
//	p!{user:42}9sW…       the record of a grant under an ID
//
// The character behind the prefix tells these forms apart, and cannot be part of a
// prefix.

const (
	// stateVersion is part of every limit's identity, so that states of another
	// layout have other keys.
	stateVersion = 1

	// identityLen is how many characters identify a limit, of six bits each. Two
	// limits on one key have the same identity with probability 2^-30. A process
	// that knows both rejects the second; see limitCache.
	identityLen = 5

	// maxKeyLen is how long a key may be before it is replaced by its hash.
	maxKeyLen = 256
)

// identify returns the identity of a limit, which distinguishes its state from
// those of other limits on the same key.
func identify(l penstock.Limit) string {
	id := l.Identity()
	text := fmt.Sprintf("%d %t %q %d %d %d %d %d %d %d %q",
		stateVersion, id.Untrusted, id.Name, id.Algorithm, id.Count, id.Period, id.Burst, id.Buckets, id.Align, id.Offset, id.Zone)
	return hash(text)[:identityLen]
}

// stateKey returns the Redis key of a key's state under a limit.
func stateKey(prefix, key, identity string) string {
	tag := hashTag(key)
	switch {
	case len(key) <= maxKeyLen && tag != "":
		return prefix + "." + key + identity
	case len(key) <= maxKeyLen && key[0] != '}':
		return prefix + "{" + key + "}" + identity
	case tag == "":
		return prefix + "#{" + hash(key) + "}" + identity
	case len(tag) > maxKeyLen:
		tag = hash(tag)
	}
	return prefix + "#{" + tag + "}" + hash(key) + identity
}

// recordKey returns the Redis key of the record of a grant. It is in the slot of the
// state that the grant was charged to.
func recordKey(prefix, state, id string) string {
	record := hash(fmt.Sprintf("%d %s%s", len(state), state, id))
	return prefix + "!{" + hashTag(state) + "}" + record[:recordLen]
}

// recordLen is how many characters identify a record: 132 bits.
const recordLen = 22

// hashTag returns the part of a key that determines its slot, or "" if the whole
// key does.
func hashTag(key string) string {
	_, rest, ok := strings.Cut(key, "{")
	if !ok {
		return ""
	}
	tag, _, ok := strings.Cut(rest, "}")
	if !ok {
		return ""
	}
	return tag
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// slots is how many slots a Cluster has.
const slots = 16384

// slotOf returns the slot of a key that has a hash tag: the CRC-16 of the tag.
func slotOf(key string) uint16 {
	crc := uint16(0)
	for _, b := range []byte(hashTag(key)) {
		crc ^= uint16(b) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc % slots
}

// slotsPerShard is how many consecutive slots form one shard. Nodes own ranges of
// slots, so a shard is nearly always on one node.
const slotsPerShard = 256

// Shards returns into how many parts the keys are divided that can be unavailable
// independently: one, or in a Cluster 64 ranges of slots. [penstock.WithFallback]
// uses it.
func (s *Store) Shards() int {
	if s.client.Sharded() {
		return slots / slotsPerShard
	}
	return 1
}

// ShardOf returns the shard of a key.
func (s *Store) ShardOf(key string) int {
	if key == "" || !s.client.Sharded() {
		return 0
	}
	return int(slotOf(stateKey("", key, ""))) / slotsPerShard
}
