package regions

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
)

// A spending is a request that a pool decides.
type spending struct {
	*globalLimit
	request *penstock.Request
	index   int // in its batch
	dry     bool
	pool    string
	claim   string
	spent   Spent
	err     error
	lot     <-chan struct{} // closed when the lot has arrived that the request may wait for
}

// maxWaits is how many lots a request waits for. Lots double while they are too small, so after so many the pool
// is as large as it may be. Then home decides requests under a slow limit, because pools cannot carry its rate.
const maxWaits = 4

// spendEach takes units from pools, for all requests of a batch at once. Those that find too few wait for lots, unless home
// had too little when it was last asked: then they are denied at once, or after one lot if the limit is slow, whose pools
// hold too little for the time until the next. What only home can decide gets that place. A dry run
// spends nothing: it asks home for what is missing, and decides as a peek.
func (s *Store) spendEach(ctx context.Context, b *batch, dry bool) error {
	open := make([]spending, 0, len(b.rs))
	for i, t := range b.targets {
		if r := &b.rs[i]; t.place == inPool {
			open = append(open, spending{globalLimit: t.globalLimit, request: r, index: i, dry: dry, pool: t.poolKey(r.Key)})
		}
	}
	for waits := 0; len(open) > 0; waits++ {
		each(len(open), func(n int) { s.trySpend(ctx, &open[n]) })
		s.claimLots(open)
		short := open[:0]
		for _, p := range open {
			wait, err := s.decideSpent(&p, &b.ds[p.index], &b.targets[p.index], waits)
			if wait && err == nil {
				short = append(short, p)
			} else if err != nil {
				return &penstock.RequestError{Index: p.index, Err: err}
			}
		}
		if open = short; len(open) > 0 {
			if err := waitForLots(ctx, open); err != nil {
				return err
			}
		}
	}
	return nil
}

// each calls a function for each number below n, concurrently, but not with too many calls at once.
func each(n int, call func(i int)) {
	const most = 64
	if n == 1 {
		call(0)
		return
	}
	var all sync.WaitGroup
	running := make(chan struct{}, most)
	for i := range n {
		running <- struct{}{}
		all.Go(func() {
			call(i)
			<-running
		})
	}
	all.Wait()
}

func (s *Store) trySpend(ctx context.Context, p *spending) {
	p.claim = newClaim()
	trip := time.Duration(0)
	if p.Slow {
		trip = s.roundTrip
	}
	p.spent, p.err = s.pools.Spend(ctx, p.pool, Ask{
		Cost: p.request.Cost, AtMost: p.request.AtMost, Dry: p.dry, Hold: p.Hold, Age: p.settings.Age, Trip: trip,
		Claim: p.claim, ClaimFor: 2 * s.timeout, Keep: p.keep,
	})
	s.stats.spent.Add(p.spent.Granted)
}

// claimLots asks home for the lots that are due, all in one call, and in the background.
func (s *Store) claimLots(open []spending) {
	var due []spending
	var pools []string
	for i := range open {
		if p := open[i]; p.err == nil && p.spent.Want > 0 {
			own := *p.request
			own.Key = strings.Clone(own.Key) // the caller may reuse the memory of its request
			p.request = &own
			due, pools = append(due, p), append(pools, p.pool)
		}
	}
	var lots <-chan struct{}
	if len(due) > 0 {
		ended, end := s.claims.Begin(pools)
		lots = ended
		go func() {
			defer end()
			s.refill(due)
		}()
	}
	for i := range open {
		switch p := &open[i]; {
		case p.spent.Want > 0:
			p.lot = lots
		case p.spent.Asked:
			p.lot = s.lotInFlight(p.pool)
		default:
			p.lot = nil
		}
	}
}

// lotInFlight returns a channel that is closed when the last claim of a pool has ended. That of another process is waited for
// in steps of half a round trip.
func (s *Store) lotInFlight(pool string) <-chan struct{} {
	if claims := s.claims.Of(pool); len(claims) > 0 {
		return claims[len(claims)-1]
	}
	step := make(chan struct{})
	time.AfterFunc(s.roundTrip/2, func() { close(step) })
	return step
}

// decideSpent decides a request by what its pool had, or reports that it waits for a lot.
func (s *Store) decideSpent(p *spending, d *penstock.Decision, t *target, waits int) (wait bool, err error) {
	cost, spent := p.request.Cost, p.spent
	switch {
	case errors.Is(p.err, errors.ErrUnsupported):
		return false, p.err // it would never work
	case p.err != nil: // the region's store is down, and home need not be
		t.place = atHome
	case spent.Granted > 0, cost == 0 && spent.known(), cost > 0 && p.dry && cost <= spent.Left:
		*d = p.granted(spent)
	case cost > 0 && spent.Scarce && !s.homeDown() && (!p.Slow || p.lot == nil || waits > 0):
		*d = p.denied(spent, s.roundTrip)
	case p.lot == nil || cost == 0 || s.homeDown():
		t.place = atHome
	case waits < maxWaits:
		return true, nil
	case p.Slow:
		t.place = atHome
	default:
		*d = p.denied(spent, s.roundTrip)
	}
	return false, nil
}

// known reports whether a pool knows anything of its key.
func (s Spent) known() bool { return s.Left > 0 || s.Scarce || s.HomeReset > 0 }

func waitForLots(ctx context.Context, short []spending) error {
	for _, p := range short {
		select {
		case <-p.lot:
		case <-ctx.Done():
			return &penstock.RequestError{Index: p.index, Err: fmt.Errorf("regions: wait for units of home: %w", ctx.Err())}
		}
	}
	return nil
}

func (g *globalLimit) granted(spent Spent) penstock.Decision {
	return penstock.Decision{
		Allowed: true, Granted: spent.Granted, Limit: g.capacity,
		Remaining: g.remaining(spent), ResetAfter: spent.HomeReset,
	}
}

func (g *globalLimit) denied(spent Spent, roundTrip time.Duration) penstock.Decision {
	retry := max(spent.Wait, time.Millisecond)
	if spent.Asked || spent.Want > 0 {
		retry = roundTrip
	}
	return penstock.Decision{Limit: g.capacity, Remaining: g.remaining(spent), RetryAfter: retry, ResetAfter: max(spent.HomeReset, retry)}
}

// remaining returns what could be granted now, as far as the region knows.
func (g *globalLimit) remaining(spent Spent) int64 {
	free := max(spent.HomeLeft-g.KeepFree, 0)
	return min(spent.Left+min(free, math.MaxInt64-spent.Left), g.capacity)
}

// refill asks home for lots, in one call, and puts them into their pools. Nothing is repeated: what is lost on the way stays
// charged, and is never spent. Nothing is asked for while home is down, because it may have granted what does not arrive.
func (s *Store) refill(due []spending) {
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	rs, ds := make([]penstock.Request, len(due)), make([]penstock.Decision, len(due))
	for i, p := range due {
		rs[i] = p.keptFree(penstock.Request{Key: p.request.Key, Limit: p.limit, Cost: p.spent.Want, AtMost: true})
	}
	if !s.homeDown() {
		_ = penstock.TakeBatch(ctx, s.home, rs, ds, false) // a decision that was not made is zero
	}
	each(len(due), func(i int) { s.deposit(&due[i], ds[i]) })
	for i, p := range due {
		if ds[i] == (penstock.Decision{}) { // the breaker learns of it by a request that charges nothing
			go func() {
				_, _ = s.fallback.Take(context.Background(), penstock.Request{Key: p.request.Key, Limit: p.limit})
			}()
			return
		}
	}
}

// deposit puts what home granted into the pool. A zero decision is none.
func (s *Store) deposit(p *spending, d penstock.Decision) {
	answered := d != penstock.Decision{}
	lot := Lot{Claim: p.claim, Scarce: p.spent.Scarce, Pause: homeRetry, HomeLeft: p.spent.HomeLeft, HomeReset: p.spent.HomeReset}
	if answered {
		lot = p.lotOf(d)
	}
	s.stats.claim(p.spent, lot, answered)
	accepted, err := s.pools.Deposit(context.Background(), p.pool, lot)
	if lot.Units > 0 && (err != nil || !accepted) {
		s.stats.lost.Add(lot.Units)
	}
}

// lotOf returns the lot that home granted.
func (p *spending) lotOf(d penstock.Decision) Lot {
	lot := Lot{
		Claim: p.claim, Units: d.Granted, HomeLeft: d.Remaining, HomeReset: min(d.ResetAfter, p.keep),
		Scarce: d.Granted < p.spent.Want,
	}
	if lot.Scarce {
		lot.Pause = p.Pause
	}
	if d.Granted == 0 {
		lot.Pause = max(min(d.RetryAfter, maxPause), p.Pause)
	}
	if p.Ends {
		lot.End = p.spent.At + endOf(d.ResetAfter)
	}
	return lot
}

// maxPause is how long a region does not ask a home that had nothing: so much later it notices a refund or a reset there.
const maxPause = 5 * time.Second

// endOf returns for how long units of a window can be spent, from before home was asked: until the window ends, less what
// home rounds up, and less what the region's clock may run slow.
func endOf(resetAfter time.Duration) time.Duration {
	const drift = 1000
	rest := resetAfter - time.Millisecond
	return max(rest-rest/drift, 1)
}
