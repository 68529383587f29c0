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

// NewSet returns a set of limiters, and the order in which it has them: as they
// were given, but with those of one store side by side.
func NewSet(given []*penstock.Limiter) (s *Set, order []int) {
	s = &Set{}
	placed := make([]bool, len(given))
	for i := range given {
		if placed[i] {
			continue
		}
		for k := i; k < len(given); k++ {
			if k == i || !placed[k] && sameStore(given[i], given[k]) {
				s.limiters, order, placed[k] = append(s.limiters, given[k]), append(order, k), true
			}
		}
		s.ends = append(s.ends, len(s.limiters))
	}
	return s, order
}

// sameStore reports whether two limiters have one store. Some stores, such as
// functions, cannot be compared, and are taken for different ones.
func sameStore(a, b *penstock.Limiter) bool {
	return reflect.ValueOf(a.Store()).Comparable() && a.Store() == b.Store()
}

// Take takes the parts, one for each limiter, all or nothing. It returns how many
// of them were decided: all, unless one was denied before the others' stores were
// asked. Limiters of one store are decided as one. Those of several are taken one
// store after the other, and given back if a later one denies or fails. A denial
// stays one if giving back fails; nothing was decided only if decided is 0.
func (s *Set) Take(ctx context.Context, parts []Part) (decided int, allowed bool, err error) {
	from := 0
	for _, end := range s.ends {
		if err = s.takeTogether(ctx, from, parts[from:end]); err != nil {
			_ = s.giveBack(ctx, parts[:from]) // the first error is the one to report
			return 0, false, err
		}
		for i := from; i < end; i++ {
			if !parts[i].Decision.Allowed {
				return end, false, s.giveBack(ctx, parts[:from])
			}
		}
		from = end
	}
	return from, true, nil
}

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
	t := time.NewTimer(delay)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		_ = s.giveBack(ctx, parts) // an error leaves units charged, which admits too little rather than too much
		return ctx.Err()
	}
}

// giveBack gives back what the first limiters were charged, even if ctx has ended.
func (s *Set) giveBack(ctx context.Context, parts []Part) (first error) {
	if len(parts) == 0 {
		return nil
	}
	ctx = context.WithoutCancel(ctx)
	for i := range parts {
		d := &parts[i].Decision
		if d.Granted <= 0 {
			continue
		}
		now, err := s.limiters[i].Refund(ctx, parts[i].Key, d.Granted)
		if err != nil && first == nil {
			first = err
		}
		if err == nil {
			now.Granted = 0
			*d = now
		}
	}
	return first
}

// Settle makes a key that was charged what was taken one that was charged the
// cost: less is given back, more is taken as far as there is any left, and
// [penstock.Reset] makes the key as good as new. It does so even if ctx has ended.
func Settle(ctx context.Context, l *penstock.Limiter, key string, taken, cost int64) (err error) {
	ctx = context.WithoutCancel(ctx)
	switch {
	case cost == penstock.Reset:
		return l.Reset(ctx, key)
	case max(cost, 0) < taken:
		_, err = l.Refund(ctx, key, taken-max(cost, 0))
	case cost > taken:
		_, err = l.AllowAtMost(ctx, key, cost-taken)
	}
	return err
}
