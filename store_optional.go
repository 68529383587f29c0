package penstock

import (
	"context"
	"time"
)

// The interfaces in this file are optional for a [Store]. A store without them works
// everywhere, with the drawback that each comment states. A wrapper that has only Take
// hides those of the store it wraps.

// A BatchStore decides several independent requests in one call, as [TakeEach]
// does. Without it, TakeEach calls Take for each request in turn. Beside a
// [KeyError], decisions that are not zero were made: [WithFallback] decides only
// the other requests.
type BatchStore interface {
	Store
	TakeEach(ctx context.Context, rs []Request, ds []Decision) error
}

// An AtomicStore decides several requests all or nothing, as [TakeAll] does.
// Without it, TakeAll takes them one by one and refunds after a denial, so
// concurrent requests may briefly see units taken.
type AtomicStore interface {
	Store
	TakeAll(ctx context.Context, rs []Request, ds []Decision) error
}

// A ShardedStore consists of shards that fail independently. [WithFallback] keeps
// one breaker for each. Without it, the store is one shard.
type ShardedStore interface {
	Store
	Shards() int
	ShardOf(key string) int // 0 ≤ ShardOf(key) < Shards()
}

// A TimeoutStore limits the duration of each call itself, so [WithFallback] sets
// no timer of its own unless its timeout is shorter. A Timeout of 0 means no
// limit.
type TimeoutStore interface {
	Store
	Timeout() time.Duration
}

// A TransientKeyStore does not use Request.Key or Request.ID after a call has
// returned, so the caller may reuse the memory of those strings. Any other store
// may still send a request that timed out, and must be given copies.
type TransientKeyStore interface {
	Store
	KeysAreTransient()
}

var (
	_ AtomicStore       = (*Memory)(nil)
	_ TransientKeyStore = (*Memory)(nil)
	_ BatchStore        = (*DenyCache)(nil)
	_ AtomicStore       = (*DenyCache)(nil)
	_ BatchStore        = (*Lease)(nil)
	_ AtomicStore       = (*Lease)(nil)
	_ BatchStore        = (*Fallback)(nil)
	_ AtomicStore       = (*Fallback)(nil)
	_ BatchStore        = (*WarmUp)(nil)
	_ AtomicStore       = (*WarmUp)(nil)
)
