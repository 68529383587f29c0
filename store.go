package penstock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"
)

// A Store holds the state of keys and decides requests. It is safe for
// concurrent use. [NewMemory] returns one.
//
// An error means that no decision was made; a denial is a decision.
//
// A store that can decide several requests at once has methods TakeEach and
// TakeAll of the same shape as the functions of those names, which then call
// them. A wrapper that has only Take hides them.
type Store interface {
	Take(ctx context.Context, r Request) (Decision, error)
}

// A StoreFunc is a function that is a [Store]. It has only Take: what it wraps
// may be able to decide several requests at once, but [TakeAll] and [TakeEach]
// will ask it for one after the other.
type StoreFunc func(ctx context.Context, r Request) (Decision, error)

// Take calls f.
func (f StoreFunc) Take(ctx context.Context, r Request) (Decision, error) { return f(ctx, r) }

// AllowAll is a store that grants everything and remembers nothing.
var AllowAll Store = StoreFunc(func(_ context.Context, r Request) (Decision, error) {
	if err := r.validateShape(); err != nil {
		return Decision{}, err
	}
	capacity := r.Limit.Capacity()
	return Decision{Allowed: true, Granted: max(r.Cost, 0), Limit: capacity, Remaining: capacity}, nil
})

// DenyAll is a store that grants nothing, ever. It still answers looks.
var DenyAll Store = StoreFunc(func(_ context.Context, r Request) (Decision, error) {
	if err := r.validateShape(); err != nil {
		return Decision{}, err
	}
	if r.Cost <= 0 {
		return Decision{Allowed: true, Limit: r.Limit.Capacity()}, nil
	}
	return Decision{Limit: r.Limit.Capacity(), RetryAfter: Never}, nil
})

// TakeEach decides every request by itself and writes the decisions into ds, in
// the same order. A store that has a method of this name decides them in one
// trip; others are asked one request after the other. A request that cannot be
// decided because it is malformed is found before anything is charged.
func TakeEach(ctx context.Context, s Store, rs []Request, ds []Decision) error {
	if s, ok := s.(BatchStore); ok {
		return s.TakeEach(ctx, rs, ds)
	}
	if s == nil {
		return errNoStore
	}
	if err := ValidateEach(rs, ds); err != nil {
		return err
	}
	for i, r := range rs {
		d, err := s.Take(ctx, r)
		if err != nil {
			return requestError(i, err)
		}
		ds[i] = d
	}
	return nil
}

// TakeAll decides the requests as one, all or nothing: either every one of them
// is charged, or none is. It writes the decisions into ds, in the same order. If
// all of them are Allowed, which [Tightest] tells, all were charged. Otherwise nothing was, those that
// stood in the way say when to come back in RetryAfter, and the others say how
// their keys stand. The same key and limit twice adds up. AtMost, a negative
// cost and an ID are an error here.
//
// A store that has a method of this name decides by itself, atomically. For any
// other store the requests are taken one after the other, and given back when
// one is refused: that never admits too much, but others may see units taken
// for a moment.
func TakeAll(ctx context.Context, s Store, rs []Request, ds []Decision) error {
	if s, ok := s.(AtomicStore); ok {
		return s.TakeAll(ctx, rs, ds)
	}
	if s == nil {
		return errNoStore
	}
	if err := ValidateAll(rs, ds); err != nil {
		return err
	}
	totals := totalsOf(rs)
	for i, r := range rs {
		if total := totals[stateKeyOf(r)]; total > r.Limit.Capacity() {
			r.Cost = total // which says that it can never be
		}
		d, err := s.Take(ctx, r)
		ds[i] = d
		if err != nil {
			_ = giveBackAll(ctx, s, rs, ds[:i]) // the first error is the one to report
			return requestError(i, err)
		}
		if !d.Allowed {
			return refuseAll(ctx, s, rs, ds, i)
		}
	}
	return nil
}

// Tightest returns the one decision that speaks for several: of those that deny,
// the one that does so for longest; if all allow, the one with the least
// remaining, and the longest Delay of all. It is the zero Decision, which denies,
// if there are none.
func Tightest(ds []Decision) Decision {
	var tightest Decision
	var delay time.Duration
	for i, d := range ds {
		if i == 0 || d.tighterThan(tightest) {
			tightest = d
		}
		delay = max(delay, d.Delay)
	}
	if tightest.Allowed {
		tightest.Delay = delay
	}
	return tightest
}

func (d Decision) tighterThan(e Decision) bool {
	switch {
	case d.Allowed != e.Allowed:
		return e.Allowed
	case d.Allowed:
		return d.Remaining < e.Remaining
	}
	return d.RetryAfter > e.RetryAfter
}

// stateKey is what a request asks something of.
type stateKey struct {
	key   string
	limit Limit
}

func stateKeyOf(r Request) stateKey { return stateKey{r.Key, r.Limit.Identity()} }

// totalsOf returns what the requests ask of each key, all together.
func totalsOf(rs []Request) map[stateKey]int64 {
	totals := make(map[stateKey]int64, len(rs))
	for _, r := range rs {
		of := stateKeyOf(r)
		totals[of] += min(r.Cost, math.MaxInt64-totals[of])
	}
	return totals
}

// refuseAll gives back what was taken before the refusing request, and looks at
// all of them.
func refuseAll(ctx context.Context, s Store, rs []Request, ds []Decision, refusing int) error {
	retry := ds[refusing].RetryAfter
	if err := giveBackAll(ctx, s, rs, ds[:refusing]); err != nil {
		return err
	}
	for i, look := range rs {
		look.Cost, look.MaxDelay = 0, 0
		d, err := s.Take(ctx, look)
		if err != nil {
			return requestError(i, err)
		}
		ds[i] = d
	}
	ds[refusing].Allowed, ds[refusing].RetryAfter, ds[refusing].Delay = false, retry, 0
	return nil
}

// giveBackAll gives back what decisions granted, even if ctx has ended meanwhile.
func giveBackAll(ctx context.Context, s Store, rs []Request, ds []Decision) (first error) {
	ctx = context.WithoutCancel(ctx)
	for i, d := range ds {
		if d.Granted <= 0 {
			continue
		}
		r := rs[i]
		r.Cost, r.MaxDelay = -d.Granted, 0
		if _, err := s.Take(ctx, r); err != nil && first == nil {
			first = requestError(i, fmt.Errorf("giving back: %w", err))
		}
	}
	return first
}

// ValidateEach returns the error with which [TakeEach] refuses malformed requests,
// or fewer decisions than requests. Stores with a TakeEach of their own can begin
// with it.
func ValidateEach(rs []Request, ds []Decision) error {
	for i := range rs {
		if err := rs[i].Validate(); err != nil {
			return requestError(i, err)
		}
	}
	return checkLengths(rs, ds)
}

// ValidateAll returns the error with which [TakeAll] refuses malformed requests,
// requests that cannot be decided all or nothing, or fewer decisions than
// requests. Stores with a TakeAll of their own can begin with it.
func ValidateAll(rs []Request, ds []Decision) error {
	for i := range rs {
		if err := rs[i].validateForAll(); err != nil {
			return requestError(i, err)
		}
	}
	return ValidateEach(rs, ds)
}

// errNoStore is what there is to say to those who ask nobody.
var errNoStore = errors.New("penstock: no store: want a Store such as NewMemory(nil)")

// checkLengths returns an error if there is no room for the decisions.
func checkLengths(rs []Request, ds []Decision) error {
	if len(ds) < len(rs) {
		return fmt.Errorf("penstock: %d requests, but room for %d decisions", len(rs), len(ds))
	}
	return nil
}
