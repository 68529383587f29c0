package charge

import (
	"context"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
)

// Refund gives back what the first limiters were charged at a time or later, even
// if ctx has ended.
func (s *Set) Refund(ctx context.Context, parts []Part, since time.Time) (first error) {
	if len(parts) == 0 {
		return nil
	}
	ctx, age := context.WithoutCancel(ctx), time.Since(since)
	for i := range parts {
		p := &parts[i]
		n := stillCharged(s.limiters[i].Limit(), &p.Decision, age)
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

// Settle makes a key that was charged what the part says, some time ago, one that
// was charged the cost: less is given back, as far as it has not come back by
// itself, more is taken as far as there is any left, and [penstock.Reset] makes the
// key as good as new. It does so even if ctx has ended.
func Settle(ctx context.Context, l *penstock.Limiter, p *Part, age time.Duration, cost int64) (err error) {
	ctx = context.WithoutCancel(ctx)
	taken := p.Decision.Granted
	if cost == penstock.Reset {
		return l.Reset(ctx, p.Key)
	}
	if cost > taken {
		_, err = l.AllowAtMost(ctx, p.Key, cost-taken)
		return err
	}
	if n := min(taken-max(cost, 0), stillCharged(l.Limit(), &p.Decision, age)); n > 0 {
		_, err = l.Refund(ctx, p.Key, n)
	}
	return err
}

// stillCharged returns how many of the units that were granted some time ago can
// not have come back by themselves. To give back those that have would forgive
// others, which were taken since.
//
// A key is as good as new when [penstock.Decision.ResetAfter] is over: then none of
// them is left. A window keeps all of them until then. A bucket lets them come back
// one by one, and whoever came before them first, so that what is left of its debt
// at the time bounds what is left of them. A part of a unit counts as one: nothing
// less can be given back.
func stillCharged(l penstock.Limit, d *penstock.Decision, age time.Duration) int64 {
	debt := d.ResetAfter - age
	switch {
	case age <= 0:
		return d.Granted
	case debt <= 0:
		return 0
	case l.Algorithm == penstock.TokenBucket || l.Algorithm == penstock.LeakyBucket:
		n := l.Normal()
		interval, _ := algorithm.Interval(n.Count, int64(n.Period), n.Burst)
		return min(d.Granted, int64((debt-1)/time.Duration(max(interval, 1)))+1)
	}
	return d.Granted
}
