// Package charge decides requests for middleware of any transport: a [Guard] charges the cost of one
// request to several limiters, or by [Rules], all or nothing, and [Settle] settles it when the true cost is known.
package charge

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/monotime"
)

// A Part is the charge to one limiter.
type Part struct {
	Key      string
	Cost     int64
	Decision penstock.Decision
}

// A Set is a group of limiters that are charged together.
type Set struct {
	limiters []*penstock.Limiter
	ends     []int // for each store, the index after its last limiter
	batches  sync.Pool
}

// A batch is a reusable pair of slices for TakeAll.
type batch struct {
	requests  []penstock.Request
	decisions []penstock.Decision
}

// NewSet returns a set of limiters, and their order in it: limiters of one store
// are adjacent, and memory stores come first, so a denial in memory costs no
// round trip. Otherwise the given order is kept. Nil limiters are left out.
func NewSet(given []*penstock.Limiter) (s *Set, order []int) {
	s = &Set{}
	placed := make([]bool, len(given))
	place := func(inProcess bool) {
		for i := range given {
			if given[i] != nil && !placed[i] && isInProcess(given[i]) == inProcess {
				order = append(order, s.addStore(given, placed, i)...)
			}
		}
	}
	place(true)
	place(false)
	return s, order
}

// addStore adds all limiters of one store, starting with the first, and returns
// their indexes.
func (s *Set) addStore(given []*penstock.Limiter, placed []bool, first int) (added []int) {
	for i := first; i < len(given); i++ {
		if i == first || given[i] != nil && !placed[i] && given[first].Store() == given[i].Store() {
			s.limiters, added, placed[i] = append(s.limiters, given[i]), append(added, i), true
		}
	}
	s.ends = append(s.ends, len(s.limiters))
	return added
}

// isInProcess reports whether the limiter's store is in the memory of this
// process.
func isInProcess(l *penstock.Limiter) bool {
	_, ok := penstock.StoreAs[*penstock.Memory](l.Store())
	return ok
}

// Take charges the parts, one for each limiter, all or nothing. Limiters of one
// store are decided by one TakeAll. Several stores are charged one after the
// other, and refunded if a later one denies. A denial stays a denial even if a
// refund fails.
//
// Began is a time before the request is charged: a refund leaves out what time has refilled since. It
// matters only if there are several stores. Take returns how many parts were decided: all, unless a denial or
// an error came first. If a store fails, allowed is true and earlier stores stay charged. The caller must
// then refund them with [Set.Refund], unless the request proceeds.
func (s *Set) Take(ctx context.Context, parts []Part, began time.Time) (decided int, allowed bool, err error) {
	for i := range parts {
		if parts[i].Cost < 0 {
			return 0, true, errNegative // before anything is charged
		}
	}
	from := 0
	for _, end := range s.ends {
		if err = s.takeFromStore(ctx, from, parts[from:end]); err != nil {
			return from, true, err
		}
		for i := from; i < end; i++ {
			if !parts[i].Decision.Allowed {
				return end, false, s.Refund(ctx, parts[:from], began)
			}
		}
		from = end
	}
	return from, true, nil
}

// costs reports whether one of the parts costs something. If they were not decided, that leaves open
// whether the request may proceed.
func costs(parts []Part) bool {
	return slices.ContainsFunc(parts, func(p Part) bool { return p.Cost != 0 })
}

var errNegative = &penstock.FieldError{Field: "Cost", Problem: "must not be negative", Kind: penstock.ErrBadCost}

// takeFromStore takes parts that share a store.
func (s *Set) takeFromStore(ctx context.Context, from int, parts []Part) (err error) {
	if len(parts) == 1 {
		parts[0].Decision, err = takeOne(ctx, s.limiters[from], &parts[0])
		return err
	}
	b, _ := s.batches.Get().(*batch)
	if b == nil {
		b = &batch{}
	}
	b.requests, b.decisions = b.requests[:0], b.decisions[:0]
	for i := range parts {
		r := s.limiters[from+i].Request(parts[i].Key)
		r.Cost = parts[i].Cost
		b.requests, b.decisions = append(b.requests, r), append(b.decisions, penstock.Decision{})
	}
	err = penstock.TakeAll(ctx, s.limiters[from].Store(), b.requests, b.decisions)
	for i := range parts {
		parts[i].Decision = b.decisions[i]
	}
	clear(b.requests) // so that the pool keeps no keys alive
	s.batches.Put(b)  // not after a panic: the store may still use it
	return err
}

func takeOne(ctx context.Context, l *penstock.Limiter, p *Part) (penstock.Decision, error) {
	if p.Cost == 1 {
		return l.Allow(ctx, p.Key)
	}
	return l.AllowN(ctx, p.Key, p.Cost)
}

// AwaitDelay waits for the longest Delay of the parts. If ctx ends first, it refunds everything
// and returns false, and the error of the refund: what it could not refund stays charged, which admits
// too little, never too much.
func (s *Set) AwaitDelay(ctx context.Context, parts []Part) (passed bool, err error) {
	var delay time.Duration
	for i := range parts {
		if parts[i].Decision.Granted > 0 {
			delay = max(delay, parts[i].Decision.Delay)
		}
	}
	if delay == 0 {
		return true, nil
	}
	if began := time.Now(); !wait(ctx, delay) {
		return false, s.Refund(ctx, parts, began)
	}
	return true, nil
}

// wait waits for a delay. It returns false if ctx ends first.
func wait(ctx context.Context, delay time.Duration) bool {
	return delay == 0 || monotime.Sleep(ctx, delay) == nil
}
