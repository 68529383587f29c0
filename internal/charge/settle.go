package charge

import (
	"context"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
)

// Refund refunds what the first len(parts) limiters were charged at since or
// later, even if ctx has ended.
func (s *Set) Refund(ctx context.Context, parts []Part, since time.Time) (first error) {
	if len(parts) == 0 {
		return nil
	}
	ctx, age := context.WithoutCancel(ctx), time.Since(since)
	for i := range parts {
		p := &parts[i]
		n := StillCharged(s.limiters[i].Limit(), &p.Decision, age)
		if n <= 0 {
			continue
		}
		now, err := s.limiters[i].Refund(ctx, p.Key, n)
		if err != nil && first == nil {
			first = err
		}
		if err == nil {
			now.Granted = 0
			p.Decision = now
		}
	}
	return first
}

// Settle corrects a charge made age ago to cost: it refunds the difference as far
// as it has not refilled, charges more as a debt, or as far as units are left if the
// limit cannot owe, or resets the key if cost is [penstock.Reset]. It does so even if ctx
// has ended.
func Settle(ctx context.Context, l *penstock.Limiter, p *Part, age time.Duration, cost int64) (err error) {
	ctx = context.WithoutCancel(ctx)
	taken := p.Decision.Granted
	if cost == penstock.Reset {
		return l.Reset(ctx, p.Key)
	}
	if cost > taken {
		return chargeMore(ctx, l, p.Key, cost-taken)
	}
	if n := min(taken-max(cost, 0), StillCharged(l.Limit(), &p.Decision, age)); n > 0 {
		_, err = l.Refund(ctx, p.Key, n)
	}
	return err
}

// chargeMore charges units that were used already.
func chargeMore(ctx context.Context, l *penstock.Limiter, key string, n int64) (err error) {
	if l.Limit().MaxDebt() > 0 {
		_, err = l.Charge(ctx, key, n)
		return err
	}
	_, err = l.AllowAtMost(ctx, key, n)
	return err
}

// StillCharged returns how many of the granted units cannot have refilled after
// age. Refunding more would return units that other requests have taken since.
//
// After [penstock.Decision.ResetAfter] the key is full, and none is still
// charged. Until then a window still charges all of them. A bucket refills unit
// by unit, oldest first, so its remaining debt is an upper bound. A partly
// refilled unit counts as one, because only whole units can be refunded.
func StillCharged(l penstock.Limit, d *penstock.Decision, age time.Duration) int64 {
	debt := d.ResetAfter - age
	switch {
	case age <= 0:
		return d.Granted
	case debt <= 0:
		return 0
	case l.IsBucket():
		n := l.Normal()
		interval, _ := algorithm.Interval(n.Count, int64(n.Period), max(n.Burst, n.MaxDebt()))
		return min(d.Granted, int64((debt-1)/time.Duration(max(interval, 1)))+1)
	}
	return d.Granted
}
