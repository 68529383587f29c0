package redisstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
)

// The shard of a key is that of the slot of its state, for every limit and every form
// of key.
func TestStoreShardOfMatchesSlot(t *testing.T) {
	s := &Store{client: shardedClient{sharded: true}, prefix: "p"}
	seen := map[int]bool{}
	for i := range 1000 {
		for _, key := range []string{
			fmt.Sprint("user:", i), fmt.Sprintf("{tag%d}x", i), fmt.Sprintf("}odd%d", i), fmt.Sprint(strings.Repeat("long", 80), i),
		} {
			state := stateKey(s.prefix, key, identify(penstock.PerMinute(int64(i+1))))
			if got, want := s.ShardOf(key), int(slotOf(state))/256; got != want {
				t.Fatalf("%q is in shard %d, and its state %q in %d", key, got, state, want)
			}
			seen[s.ShardOf(key)] = true
		}
	}
	if len(seen) != s.Shards() {
		t.Errorf("keys in %d shards, want some in each of %d", len(seen), s.Shards())
	}
}

func TestStoreSingleServerIsOneShard(t *testing.T) {
	s := &Store{client: shardedClient{}, prefix: "p"}
	if s.Shards() != 1 || s.ShardOf("any") != 0 {
		t.Errorf("%d shards, and a key in %d", s.Shards(), s.ShardOf("any"))
	}
}

// A shardedClient only reports whether it is sharded.
type shardedClient struct {
	Client
	sharded bool
}

func (l shardedClient) Sharded() bool { return l.sharded }

// An error about one of several requests has its index, so that its shard can be found.
func TestRequestErrorHasIndex(t *testing.T) {
	err := fmt.Errorf("take each: %w", requestError(3, penstock.ErrUnavailable))
	var about *penstock.RequestError
	if !errors.As(err, &about) || about.Index != 3 || !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("got %v, want an error about request 3 that is also unavailable", err)
	}
}
