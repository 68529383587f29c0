// Package charge takes what one request costs of several limiters, all or
// nothing, and puts it right when it turns out that the request cost something
// else.
package charge

import (
	"context"
	"reflect"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
)

// A Part is one limiter's part in what a request costs.
type Part struct {
	Key      string
	Cost     int64
	Decision penstock.Decision
}

// A Set is limiters that are charged together.
type Set struct {
	limiters []*penstock.Limiter
	ends     []int // where the limiters of each store end
	batches  sync.Pool
}

// A batch is what a store is asked about several limiters at once, and answers.
type batch struct {
	requests  []penstock.Request
	decisions []penstock.Decision
}

// NewSet returns a set of limiters, and the order in which it has them: those of
// one store side by side, stores within this process before all others, and
// otherwise as they were given. A denial that is to be had here costs no trip, and
// one from far away is told together with what is known here.
func NewSet(given []*penstock.Limiter) (s *Set, order []int) {
	s = &Set{}
	placed := make([]bool, len(given))
	place := func(here bool) {
		for i := range given {
			if !placed[i] && isHere(given[i]) == here {
				order = append(order, s.addStore(given, placed, i)...)
			}
		}
	}
	place(true)
	place(false)
	return s, order
}

// addStore adds the limiters of one store, from the first of them on, and returns
// which they are.
func (s *Set) addStore(given []*penstock.Limiter, placed []bool, first int) (added []int) {
	for i := first; i < len(given); i++ {
		if i == first || !placed[i] && sameStore(given[first], given[i]) {
			s.limiters, added, placed[i] = append(s.limiters, given[i]), append(added, i), true
		}
	}
	s.ends = append(s.ends, len(s.limiters))
	return added
}

// isHere reports whether a limiter's store is within this process.
func isHere(l *penstock.Limiter) bool {
	_, ok := l.Store().(*penstock.Memory)
	return ok
}

// sameStore reports whether two limiters have one store. Some stores, such as
// functions, cannot be compared, and are taken for different ones.
func sameStore(a, b *penstock.Limiter) bool {
	return reflect.ValueOf(a.Store()).Comparable() && a.Store() == b.Store()
}

// Take takes the parts, one for each limiter, all or nothing. It returns how many
// of them were decided: all, unless one was denied, or failed, before the others'
// stores were asked. Limiters of one store are decided as one. Those of several are
// taken one store after the other, and given back if a later one denies. A denial
// stays one if giving back fails. If a store fails that was to allow or deny,
// allowed is true, and what the stores before it granted stays taken: it is for the
// caller to [Set.Refund], unless the request goes on all the same.
func (s *Set) Take(ctx context.Context, parts []Part) (decided int, allowed bool, err error) {
	for i := range parts {
		if parts[i].Cost < 0 {
			return 0, true, errNegative // before anything is charged
		}
	}
	began, from := s.began(), 0
	for _, end := range s.ends {
		if err = s.takeTogether(ctx, from, parts[from:end]); err != nil {
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

// began returns the time, which matters only if one store can be slow to answer
// after another has granted.
func (s *Set) began() (t time.Time) {
	if len(s.ends) > 1 {
		t = time.Now()
	}
	return t
}

var errNegative = &penstock.FieldError{Field: "Cost", Problem: "must not be negative", Kind: penstock.ErrBadCost}

// takeTogether takes parts of one store.
func (s *Set) takeTogether(ctx context.Context, from int, parts []Part) (err error) {
	if len(parts) == 1 {
		parts[0].Decision, err = takeOne(ctx, s.limiters[from], &parts[0])
		return err
	}
	b, _ := s.batches.Get().(*batch)
	if b == nil {
		b = &batch{}
	}
	defer s.batches.Put(b)
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
	clear(b.requests) // so that the pool does not hold on to keys
	return err
}

func takeOne(ctx context.Context, l *penstock.Limiter, p *Part) (penstock.Decision, error) {
	if p.Cost == 1 {
		return l.Allow(ctx, p.Key)
	}
	return l.AllowN(ctx, p.Key, p.Cost)
}

// Hold waits as long as the limits want an allowed request to be held. If ctx
// ends before, it gives everything back and returns the error of ctx.
func (s *Set) Hold(ctx context.Context, parts []Part) error {
	var delay time.Duration
	for i := range parts {
		if parts[i].Decision.Granted > 0 {
			delay = max(delay, parts[i].Decision.Delay)
		}
	}
	if delay == 0 {
		return nil
	}
	began, t := time.Now(), time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		_ = s.Refund(ctx, parts, began) // an error leaves units charged, which admits too little rather than too much
		return ctx.Err()
	}
}
