package penstock

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/monotime"
)

// WithWarmUp returns a store in which units cost more until d has passed from now, while the
// process is cold: three each in the first third of that time, two in the second, and one from
// then on. So a process whose caches are empty, or whose backend is, gets a third of a limit at
// first. Use it as the outermost wrapper. It starts no goroutine and needs no Close.
//
// A take of n units takes 3·n or 2·n from the next store, whole numbers under every
// algorithm, so processes that share a limit never exceed it together, and those that are
// warm may use what a cold one leaves. A price that the limit could never grant is lowered
// to one that it can: a take of n pays three from a Capacity of 3·n on. So a bucket needs a Burst
// of 3, and [New] returns an [ErrBadLimit] for a smaller one; to space requests evenly in a cold
// process, too, use a LeakyBucket with a Burst of 3. Granted and Remaining are in units at the
// current price, and RetryAfter is at that price: when it falls, the request may pass sooner.
// Limit is that of the next store.
//
// The refund of a Wait or a reservation which ends early returns units at the current price:
// never more than was paid for them, and less if the price has fallen since. Any other refund,
// also under an ID, returns one for each unit, because another process, or a larger take, may
// have paid no more. The rest comes back by time. A retry with the same
// ID is granted what it asks for, whatever the price was. Peeks and resets, requests with
// Overdraw or Settle, which report what was used, requests with both ID and AtMost, and Concurrent
// limits pay no price.
func WithWarmUp(next Store, d time.Duration) *WarmUp {
	w := &WarmUp{next: next, clock: monotime.New(nil), third: (int64(defaults.Duration(d, 0)) + maxPrice - 1) / maxPrice}
	w.batchFunc = w.decide
	w.start = w.clock.Now()
	w.warm.Store(d <= 0)
	return w
}

// A WarmUp is a store in which units cost more at first. Use [WithWarmUp].
type WarmUp struct {
	batchFunc

	next  Store
	clock monotime.Clock
	start int64
	third int64       // of the warm-up time; 0 without one
	warm  atomic.Bool // saves reading the clock
}

// maxPrice is what a unit costs at first. The price falls by one with each third.
const maxPrice = 3

// checkLimit returns an error if the limit is a bucket that cannot hold the price of one unit: it would
// be as fast as without a warm-up.
func (w *WarmUp) checkLimit(l Limit) error {
	if burst := l.Capacity(); w.third > 0 && l.IsBucket() && burst > 0 && burst < maxPrice {
		return badLimit("Burst", "a unit costs %d while a process warms up, and the burst is %d: want burst=%d or more, or a store without warm-up", maxPrice, burst, maxPrice)
	}
	return nil
}

// price returns what a unit costs now.
func (w *WarmUp) price() int64 {
	if w.warm.Load() {
		return 1
	}
	price := maxPrice - (w.clock.Now()-w.start)/w.third
	if price <= 1 {
		w.warm.Store(true)
	}
	return max(price, 1)
}

// priceOf returns what a unit of the request costs if the usual price is p.
func priceOf(ctx context.Context, r *Request, p int64) int64 {
	units := int64(1)
	switch {
	case !isPriced(ctx, r):
		return 1
	case r.Cost != 0 && !r.AtMost:
		units = max(r.Cost, -r.Cost)
	}
	return max(min(p, r.mostGranted()/units), 1)
}

// isPriced reports whether the request pays a price, or gets back one that was paid.
func isPriced(ctx context.Context, r *Request) bool {
	switch {
	case r.Limit.hasPermits() || r.Overdraw || r.Settle || r.AtMost && r.ID != "":
		return false
	case r.Cost < 0:
		return r.Cost != Reset && refunds(ctx, wholeTake)
	}
	return true
}

// priced returns the request as the next store decides it.
func priced(r Request, price int64) Request {
	const most = 1 << 60 // above every capacity, and three times it is an int64
	switch {
	case price == 1:
	case r.Cost > 0:
		r.Cost = min(r.Cost, most) * price
	case r.Cost < 0:
		r.Cost = max(r.Cost, -most) * price
	}
	return r
}

// inUnits returns the store's decision about a priced request in units of the caller.
func inUnits(d Decision, r *Request, price int64) Decision {
	if price == 1 {
		return d
	}
	d.Remaining /= price
	switch {
	case d.Granted > 0 && !r.AtMost:
		d.Granted = min(d.Granted, r.Cost) // a retry with an ID may have paid another price
	default:
		d.Granted /= price
	}
	return d
}

// decide decides requests at the prices of their units.
func (w *WarmUp) decide(ctx context.Context, rs []Request, ds []Decision, all bool) error {
	p := w.price()
	switch {
	case p == 1:
		return TakeBatch(ctx, w.next, rs, ds, all)
	case !all && slices.ContainsFunc(rs, func(r Request) bool { return r.AtMost }):
		return w.takeInTurn(ctx, rs, ds, p)
	}
	paid, prices := make([]Request, len(rs)), make([]int64, len(rs))
	totals, kept := totalsOf(rs), mostKept(rs)
	for i, r := range rs {
		if all && r.Cost > 0 { // a price that the limit cannot grant for all of them is lowered
			r.Cost, r.KeepFree = totals[stateKeyOf(r)], kept[stateKeyOf(r)]
		}
		prices[i] = priceOf(ctx, &r, p)
		paid[i] = priced(rs[i], prices[i])
	}
	err := TakeBatch(ctx, w.next, paid, ds, all)
	for i := range rs {
		ds[i] = inUnits(ds[i], &rs[i], prices[i])
		if ds[i].RetryAfter == Never && prices[i] > 1 && rs[i].MaxDelay > 0 && rs[i].Limit.HasQueue() {
			ds[i].RetryAfter = w.untilCheaper() // the requests before it in the queue cost too much
		}
	}
	return err
}

// untilCheaper returns when the price falls next.
func (w *WarmUp) untilCheaper() time.Duration {
	return time.Duration(w.third - (w.clock.Now()-w.start)%w.third)
}

// takeInTurn decides independent requests one by one: those with AtMost may get units beyond a multiple
// of the price, which are returned.
func (w *WarmUp) takeInTurn(ctx context.Context, rs []Request, ds []Decision, p int64) error {
	return TakeEach(ctx, StoreFunc(func(ctx context.Context, r Request) (Decision, error) {
		if w.next == nil {
			return Decision{}, errNoStore
		}
		price := priceOf(ctx, &r, p)
		d, err := w.next.Take(ctx, priced(r, price))
		if odd := d.Granted % price; err == nil && r.AtMost && odd > 0 {
			return w.returnOdd(ctx, r, price, d, odd)
		}
		return inUnits(d, &r, price), err
	}), rs, ds)
}

// returnOdd returns the units that an AtMost request got beyond a multiple of the price.
// If that leaves nothing, the request is one for a single unit, which denies unless a unit
// was refunded meanwhile.
func (w *WarmUp) returnOdd(ctx context.Context, r Request, price int64, d Decision, odd int64) (Decision, error) {
	after, err := w.next.Take(context.WithoutCancel(ctx), refundOf(r, odd))
	if err != nil {
		return Decision{}, err
	}
	if d.Granted < price {
		r.Cost, r.AtMost = 1, false
		d, err = w.next.Take(ctx, priced(r, price))
		return inUnits(d, &r, price), err
	}
	d.Granted, d.Remaining, d.ResetAfter = d.Granted-odd, after.Remaining, after.ResetAfter
	return inUnits(d, &r, price), nil
}

// mostKept returns the units that the requests for each state keep free: those of the request that
// keeps the most.
func mostKept(rs []Request) map[stateKey]int64 {
	kept := map[stateKey]int64{}
	for i := range rs {
		if rs[i].Cost > 0 {
			k := stateKeyOf(rs[i])
			kept[k] = max(kept[k], rs[i].KeepFree)
		}
	}
	return kept
}
