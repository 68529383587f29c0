package penstock

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/monotime"
)

// A Store holds the state of keys and decides requests. It is safe for concurrent
// use. [NewMemory] returns one.
//
// An error means that no decision was made; a denial is a decision. A store may
// implement [BatchStore], [AtomicStore] and other optional interfaces. A wrapper
// that has only Take hides them; [BatchFunc] has them all.
//
// A store rejects malformed requests: [Request.Validate] and [ValidateBatch] return its errors.
type Store interface {
	Take(ctx context.Context, r Request) (Decision, error)
}

// The following interfaces are optional for a [Store]. A store without them works
// everywhere, with the drawback that each comment states.

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
// no timer of its own unless its timeout is shorter. A call may also wait for others of this
// process, as those of the Redis store do. The error of a call is [ErrUnavailable] if it got no
// answer within its Timeout, and that of the caller's context if that ended before. A Timeout
// of 0 means no limit.
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

// errNoStore is returned for a nil Store.
var errNoStore = errors.New("penstock: no store: want a Store such as NewMemory(nil)")

// A StoreFunc is a function used as a [Store]. It has only Take, so [TakeAll] and
// [TakeEach] call it for one request after the other, even if the store it wraps
// could decide them in one call.
type StoreFunc func(ctx context.Context, r Request) (Decision, error)

// Take calls f.
func (f StoreFunc) Take(ctx context.Context, r Request) (Decision, error) { return f(ctx, r) }

// AllowAll is a store that grants every request and keeps no state.
var AllowAll Store = StoreFunc(func(_ context.Context, r Request) (Decision, error) {
	if err := r.validateShape(); err != nil {
		return Decision{}, err
	}
	capacity := r.Limit.Capacity()
	return Decision{Allowed: true, Granted: max(r.Cost, 0), Limit: capacity, Remaining: capacity}, nil
})

// DenyAll is a store that denies every request with a cost above zero. One with
// Overdraw is allowed and charged nothing. There is nothing to settle.
var DenyAll Store = StoreFunc(func(_ context.Context, r Request) (Decision, error) {
	if err := r.validateShape(); err != nil {
		return Decision{}, err
	}
	if r.Settle {
		return Decision{}, errNotRemembered
	}
	if !r.canBeDenied() {
		return Decision{Allowed: true, Limit: r.Limit.Capacity()}, nil
	}
	return Decision{Limit: r.Limit.Capacity(), RetryAfter: Never}, nil
})

// A BatchFunc is a function used as a [Store], a [BatchStore] and an [AtomicStore], so that a
// wrapper is written once for all three. It decides one request or several, each for itself or
// all or nothing, and writes the decisions to ds, which is as long as rs. An error about one of
// several requests is a [RequestError]. The function must not keep rs and ds, nor change rs.
// [TakeBatch] calls the wrapped store in the same way.
type BatchFunc func(ctx context.Context, rs []Request, ds []Decision, all bool) error

// batchFunc is how the wrappers of this package embed their function.
type batchFunc = BatchFunc

// A single is the batch of one Take.
type single struct {
	rs [1]Request
	ds [1]Decision
}

var singles = sync.Pool{New: func() any { return new(single) }}

// Take calls f with one request.
func (f BatchFunc) Take(ctx context.Context, r Request) (Decision, error) {
	s := singles.Get().(*single)
	s.rs[0] = r
	err := f(ctx, s.rs[:], s.ds[:], false)
	d := s.ds[0]
	*s = single{} // it must not hold the key
	singles.Put(s)
	if err != nil {
		_, err = indexOf(err)
	}
	return d, err
}

// TakeEach calls f to decide the requests independently.
func (f BatchFunc) TakeEach(ctx context.Context, rs []Request, ds []Decision) error {
	clearDecisions(rs, ds)
	if err := checkLengths(rs, ds); err != nil {
		return err
	}
	return f(ctx, rs, ds[:len(rs)], false)
}

// TakeAll calls f to decide the requests all or nothing.
func (f BatchFunc) TakeAll(ctx context.Context, rs []Request, ds []Decision) error {
	if err := checkLengths(rs, ds); err != nil {
		return undecided(err, rs, ds)
	}
	return undecided(f(ctx, rs, ds[:len(rs)], true), rs, ds)
}

var (
	_ AtomicStore       = (*Memory)(nil)
	_ TransientKeyStore = (*Memory)(nil)
	_ BatchStore        = BatchFunc(nil)
	_ AtomicStore       = BatchFunc(nil)
)

// An Observation is one decision, for the metrics of a program.
type Observation struct {
	Request  Request
	Decision Decision // zero if Err is not nil

	// Duration is how long the store took. Requests that were decided in one call have the
	// same.
	Duration time.Duration

	// Err is why there is no decision. Requests that were decided in one call have the same, a
	// [RequestError] if it is about one of them.
	Err error
}

// WithObserver returns a store that calls observe after each decision of the next, once for
// each request. Decision.Source tells which wrapper inside it decided, so use it as the
// outermost wrapper; around a remote store, inside the wrappers, it observes only what that
// store decides. The function is called concurrently, must not block and must not keep the Key
// or the ID of the request. It costs two readings of the clock, and no memory.
func WithObserver(next Store, observe func(Observation)) BatchFunc {
	clock := monotime.New(nil)
	return func(ctx context.Context, rs []Request, ds []Decision, all bool) error {
		began := clock.Now()
		err := TakeBatch(ctx, next, rs, ds, all)
		took := time.Duration(clock.Now() - began)
		failure := err
		if failure != nil && len(rs) == 1 {
			_, failure = indexOf(failure)
		}
		for i := range rs {
			o := Observation{Request: rs[i], Decision: ds[i], Duration: took}
			if ds[i] == (Decision{}) {
				o.Err = failure
			}
			observe(o)
		}
		return err
	}
}
