package penstock

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/monotime"
)

// A WarmUp is a [Store] in which units cost more while the process is cold: three each
// in the first third of the warm-up time, two in the second, and one from then on. So a
// process whose caches are empty, or whose backend is, gets a third of a limit at first.
// [WithWarmUp] makes one. It is safe for concurrent use, starts no goroutine and needs no
// Close.
//
// A take of n units takes 3·n or 2·n from the next store, whole numbers under every
// algorithm, so processes that share a limit never exceed it together, and those that are
// warm may use what a cold one leaves. A price that the limit could never grant is lowered
// to one that it can. Granted and Remaining are in units at the current price, and
// RetryAfter is at that price: when it falls, the request may pass sooner. Limit is that
// of the next store.
//
// The refund of a Wait or a reservation which ends early returns units at the current price:
// never more than was paid for them, and less if the price has fallen since. Any other refund,
// also under an ID, returns one for each unit, because another process, or a larger take, may
// have paid no more. The rest comes back by time. A retry with the same
// ID is granted what it asks for, whatever the price was. Peeks and resets, requests with
// Overdraw or Settle, which report what was used, requests with both ID and AtMost, and Concurrent
// limits pay no price.
type WarmUp struct {
	next  Store
	clock monotime.Clock
	start int64
	third int64       // of the warm-up time
	warm  atomic.Bool // saves reading the clock
}

// maxPrice is what a unit costs at first. The price falls by one with each third.
const maxPrice = 3

// WithWarmUp returns a store whose units cost more until d has passed from now. Use it as
// the outermost wrapper.
func WithWarmUp(next Store, d time.Duration) *WarmUp {
	w := &WarmUp{next: next, clock: monotime.New(nil), third: max(int64(d)/maxPrice, 1)}
	w.start = w.clock.Now()
	w.warm.Store(d <= 0)
	return w
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
func priceOf(r *Request, p int64) int64 {
	switch {
	case p == 1 || r.Cost == Reset || r.Overdraw || r.Settle || r.AtMost && r.ID != "" || r.Limit.hasPermits():
		return 1
	case r.Cost < 0 && !r.whole:
		return 1
	case r.Cost != 0 && !r.AtMost:
		return max(min(p, (r.Limit.Capacity()-r.KeepFree)/max(r.Cost, -r.Cost)), 1)
	}
	return max(min(p, r.Limit.Capacity()-r.KeepFree), 1)
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

// Take decides one request.
func (w *WarmUp) Take(ctx context.Context, r Request) (Decision, error) {
	if w.next == nil {
		return Decision{}, errNoStore
	}
	price := priceOf(&r, w.price())
	d, err := w.next.Take(ctx, priced(r, price))
	if err != nil || price == 1 {
		return d, err
	}
	if odd := d.Granted % price; r.AtMost && odd > 0 {
		return w.returnOdd(ctx, r, price, d, odd)
	}
	return inUnits(d, &r, price), nil
}

// returnOdd returns the units that an AtMost request got beyond a multiple of the price.
// If that leaves nothing, the request is one for a single unit, which denies unless a unit
// was refunded meanwhile.
func (w *WarmUp) returnOdd(ctx context.Context, r Request, price int64, d Decision, odd int64) (Decision, error) {
	refund := r
	refund.Cost, refund.AtMost, refund.MaxDelay = -odd, false, 0
	after, err := w.next.Take(context.WithoutCancel(ctx), refund)
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

// TakeEach decides every request independently, in one call unless one of them has AtMost.
// It implements [BatchStore].
func (w *WarmUp) TakeEach(ctx context.Context, rs []Request, ds []Decision) error {
	if hasAtMost(rs) && w.price() > 1 {
		return TakeEach(ctx, StoreFunc(w.Take), rs, ds)
	}
	return w.takeMany(ctx, TakeEach, rs, ds, func(r Request, p int64) int64 { return priceOf(&r, p) })
}

func hasAtMost(rs []Request) bool {
	for i := range rs {
		if rs[i].AtMost {
			return true
		}
	}
	return false
}

// TakeAll decides the requests all or nothing. It implements [AtomicStore].
func (w *WarmUp) TakeAll(ctx context.Context, rs []Request, ds []Decision) error {
	if w.price() == 1 {
		return TakeAll(ctx, w.next, rs, ds)
	}
	totals, kept := totalsOf(rs), mostKept(rs) // a price that the limit cannot grant for all of them is lowered
	return w.takeMany(ctx, TakeAll, rs, ds, func(r Request, p int64) int64 {
		if r.Cost > 0 {
			r.Cost, r.KeepFree = totals[stateKeyOf(r)], kept[stateKeyOf(r)]
		}
		return priceOf(&r, p)
	})
}

// mostKept returns the units that the requests for each state keep free: those of the request that
// keeps the most.
func mostKept(rs []Request) map[stateKey]int64 {
	kept := map[stateKey]int64{}
	for i := range rs {
		if n := rs[i].KeepFree; n > 0 && rs[i].Cost > 0 {
			k := stateKeyOf(rs[i])
			kept[k] = max(kept[k], n)
		}
	}
	return kept
}

// takeMany has the next store decide the requests at the prices that priceOf returns.
func (w *WarmUp) takeMany(
	ctx context.Context, take takeFunc, rs []Request, ds []Decision, priceOf func(r Request, p int64) int64,
) error {
	p := w.price()
	if p == 1 || len(ds) < len(rs) {
		return take(ctx, w.next, rs, ds)
	}
	paid, prices := make([]Request, len(rs)), make([]int64, len(rs))
	for i := range rs {
		prices[i] = priceOf(rs[i], p)
		paid[i] = priced(rs[i], prices[i])
	}
	err := take(ctx, w.next, paid, ds)
	for i := range rs {
		ds[i] = inUnits(ds[i], &rs[i], prices[i])
	}
	return err
}
