package penstock

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/monotime"
)

// A Store holds the state of keys and decides requests. It is safe for concurrent
// use. [NewMemory] returns one.
//
// Limiters that were made with one store can be decided in one call, so a store has an
// identity: it is a pointer, or another type whose values can be compared. [New] refuses others.
// A wrapper is a store of its own. Wrap a store once, and make all limiters with the result.
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
// process, as those of the Redis store do. The error of a call is [ErrUnavailable] if the store answered
// nothing within its Timeout, [ErrBusy] if it only answered others, and that of the caller's context if that ended
// before, together with ErrBusy in the latter case. A Timeout of 0 means no limit.
type TimeoutStore interface {
	Store
	Timeout() time.Duration
}

// A TransparentStore decides as the store that it wraps does, and calls it as often as it is
// called itself: it only watches, as an [Observer] does. Whoever asks it for a type of store or one of these
// interfaces finds that of the wrapped one by [StoreAs], except for a TransientKeyStore,
// because what watches may keep keys.
type TransparentStore interface {
	Store
	Unwrap() Store
}

// StoreAs returns s as a T, or else the first such store that it wraps transparently.
func StoreAs[T any](s Store) (found T, ok bool) {
	for {
		if found, ok = s.(T); ok {
			return found, true
		}
		transparent, wraps := s.(TransparentStore)
		if !wraps {
			return found, false
		}
		s = transparent.Unwrap()
	}
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

// checkIdentity returns an error if the store is a nil pointer, or cannot be compared with others.
func checkIdentity(s Store) error {
	v := reflect.ValueOf(s)
	if v.Kind() == reflect.Pointer && v.IsNil() {
		return errNoStore
	}
	if !v.Comparable() {
		return fmt.Errorf("penstock: store of type %T: its values cannot be compared: want a pointer to one", s)
	}
	return nil
}

// StoreFunc returns a store that calls take. It has only Take, so [TakeAll] and
// [TakeEach] call it for one request after the other, even if the store it wraps
// could decide them in one call.
func StoreFunc(take func(ctx context.Context, r Request) (Decision, error)) Store {
	return &funcStore{take}
}

// A funcStore is a function used as a store.
type funcStore struct {
	take func(context.Context, Request) (Decision, error)
}

// Take calls the function.
func (s *funcStore) Take(ctx context.Context, r Request) (Decision, error) { return s.take(ctx, r) }

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

// A BatchFunc makes a [Store], a [BatchStore] and an [AtomicStore] of one function, so that a
// wrapper is written once for all three. A wrapper embeds it; a pointer to one is a store too. The
// function decides one request or several, each for itself or all or nothing, and writes the
// decisions to ds, which is as long as rs. An error about one of several requests is a
// [RequestError]. It must not keep rs and ds, nor change rs. [TakeBatch] calls the wrapped store
// in the same way.
type BatchFunc func(ctx context.Context, rs []Request, ds []Decision, all bool) error

// batchFunc is how the wrappers of this package embed their function.
type batchFunc = BatchFunc

// A single is the batch of one Take.
type single struct {
	rs [1]Request
	ds [1]Decision
}

var singles = sync.Pool{New: func() any { return new(single) }}

// Take calls the function with one request.
func (f *BatchFunc) Take(ctx context.Context, r Request) (Decision, error) {
	s := singles.Get().(*single)
	s.rs[0] = r
	err := (*f)(ctx, s.rs[:], s.ds[:], false)
	d := s.ds[0]
	*s = single{} // it must not hold the key
	singles.Put(s)
	if err != nil {
		_, err = indexOf(err)
	}
	return d, err
}

// TakeEach calls the function to decide the requests independently.
func (f *BatchFunc) TakeEach(ctx context.Context, rs []Request, ds []Decision) error {
	clearDecisions(rs, ds)
	if err := checkLengths(rs, ds); err != nil {
		return err
	}
	return (*f)(ctx, rs, ds[:len(rs)], false)
}

// TakeAll calls the function to decide the requests all or nothing.
func (f *BatchFunc) TakeAll(ctx context.Context, rs []Request, ds []Decision) error {
	if err := checkLengths(rs, ds); err != nil {
		return undecided(err, rs, ds)
	}
	return undecided((*f)(ctx, rs, ds[:len(rs)], true), rs, ds)
}

var (
	_ AtomicStore       = (*Memory)(nil)
	_ TransientKeyStore = (*Memory)(nil)
	_ BatchStore        = (*BatchFunc)(nil)
	_ AtomicStore       = (*BatchFunc)(nil)
	_ TransparentStore  = (*Observer)(nil)
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

// An Observer is a store whose decisions are observed. Use [WithObserver].
type Observer struct {
	batchFunc
	next    Store
	observe func(Observation)
	clock   monotime.Clock
}

// WithObserver returns a store that calls observe after each decision of the next, once for
// each request. Decision.Source tells which wrapper inside it decided, so use it as the
// outermost wrapper; around a remote store, inside the wrappers, it observes only what that
// store decides. The function is called concurrently, must not block and must not keep the Key
// or the ID of the request. It costs two readings of the clock, and no memory.
//
// Observe a store once, and make all limiters with the result. Each call goes to the store of its limiter
// and is seen there, so limiters of a store and of its observer, or of two observers, are not decided in one call.
func WithObserver(next Store, observe func(Observation)) *Observer {
	o := &Observer{next: next, observe: observe, clock: monotime.New(nil)}
	o.batchFunc = o.decide
	return o
}

// Unwrap returns the store that is observed.
func (o *Observer) Unwrap() Store { return o.next }

func (o *Observer) decide(ctx context.Context, rs []Request, ds []Decision, all bool) error {
	began := o.clock.Now()
	err := TakeBatch(ctx, o.next, rs, ds, all)
	took := time.Duration(o.clock.Now() - began)
	failure := err
	if failure != nil && len(rs) == 1 {
		_, failure = indexOf(failure)
	}
	for i := range rs {
		seen := Observation{Request: rs[i], Decision: ds[i], Duration: took}
		if ds[i] == (Decision{}) {
			seen.Err = failure
		}
		o.observe(seen)
	}
	return err
}
