package penstock

import (
	"cmp"
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/inflight"
	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/internal/setassoc"
)

// LeaseOptions are the settings of a [Lease]. A number of zero or less means its
// default.
type LeaseOptions struct {
	// Nodes is how many processes lease from the same store. Together they hold
	// at most a tenth of a limit's burst. Default: 1.
	Nodes int

	// MaxAge is how long units of a token bucket are held. Units not spent by then are refunded.
	// It counts from before the store was called, on this machine's monotonic
	// clock. Default: one second.
	MaxAge time.Duration

	// Only selects the limits to lease. It is called only for those that [Limit.CanLease].
	// It must be safe for concurrent use. Default: all.
	Only func(Limit) bool

	// MaxKeys bounds the keys tracked at once, counting each pair of key and
	// limit. Requests for other keys go to the store. Default: 16,384.
	MaxKeys int

	// Now is the clock, for tests and simulations. It must be safe for
	// concurrent use. Default: the machine's monotonic clock.
	Now func() time.Time
}

// A Lease is a [Store] that takes units of busy keys from another store in
// advance and spends them locally. It must be closed, to refund the units that it
// holds. [WithLease] makes one. It is safe for concurrent use. It refills and
// refunds in goroutines that end by themselves.
//
// Units are taken from the store before they are spent, and a process may spend
// them for MaxAge, or τ. With N processes that each hold at most q units of a
// key, any interval of length T spends
//
//	at most B + r·T + N·q, and
//	at most B + r·(T+τ)
//
// units of the key, where B + r·T is what the limit itself admits. By default N·q
// is a tenth of B. To keep these bounds, a Lease refunds less than it has left:
// units that the bucket has earned back since they were taken stay taken. A
// refund is tried once. If the store cannot be reached, the units come back only
// by time.
//
// A unit of a window is spent in the window that it was charged to. So a fixed window admits at most Count, and any
// Period of a sliding window at most 2·Count − 2, as without a Lease. The end of the window is the store's
// ResetAfter, less two milliseconds and a thousandth, on this machine's monotonic clock, from before the store was called: no
// clocks are compared, only their rates. Nothing is refunded, because a refund that arrives late would count in the next
// window; a process that ends, or has no more requests for the key, keeps what it holds from the others until the
// window ends, at most a tenth of Count over all processes.
//
// A refill takes what the key is expected to need for seven tenths of τ, or until the window ends. A key
// with fewer than eight requests in that time is not leased, nor is a limit with
// a burst below 20·N. When the store has few units of a key left, requests go to
// it one by one. Very busy keys, with 100 units or more per quarter of a second,
// are an exception: after a refill got fewer units than it requested, they are
// denied locally for at most a quarter of a second, even if the bucket has earned
// a unit in the meantime.
//
// Decisions by leased units have [SourceLease], and a Remaining that was true
// when the units were taken. Requests with an ID, Overdraw or KeepFree, and limits
// with other algorithms, pass through unchanged. KeepFree does not count leased
// units as free. A charge does not use up leased units, which are charged already;
// what it owes stops the next refill.
type Lease struct {
	batchFunc
	next     Store
	nodes    atomic.Int64
	maxAge   int64
	only     func(Limit) bool
	clock    monotime.Clock
	sets     setassoc.Table[leaseEntrySet]
	inflight inflight.Calls // refills
	limits   compiledCache

	closed         atomic.Bool
	sweepScheduled atomic.Bool
	returns        returnQueue
	lastRefill     atomic.Int64 // the ID of the latest refill
}

const (
	defaultLeaseAge  = time.Second
	defaultLeaseKeys = 1 << 14
	maxRefundBatch   = 128 // keys refunded in one call

	// maxLeasedCapacity is that of the largest limit to lease. One that no traffic reaches only counts:
	// its caller compares the count of the store with another number.
	maxLeasedCapacity = 1 << 44

	// maxRefillWait is how long a request waits in all, if one refill after the
	// other leaves no units for it.
	maxRefillWait = 10 * inflight.MaxWait
)

// WithLease returns a store that spends units of next locally, so a busy key
// costs one call for about a hundred decisions. Use it if next is remote, and
// only for limits that may be exceeded within the bounds documented at [Lease].
// Nil options mean all defaults.
func WithLease(next Store, o *LeaseOptions) *Lease {
	o = cmp.Or(o, &LeaseOptions{})
	l := &Lease{
		next:   next,
		maxAge: int64(defaults.Duration(o.MaxAge, defaultLeaseAge)),
		only:   o.Only,
		clock:  monotime.New(o.Now),
		sets:   setassoc.New[leaseEntrySet](defaults.Or(o.MaxKeys, defaultLeaseKeys)),
	}
	l.SetNodes(o.Nodes)
	l.batchFunc = l.decide
	return l
}

// SetNodes changes [LeaseOptions.Nodes], for processes that become more or fewer. Units that are held already are
// spent or refunded within MaxAge.
func (l *Lease) SetNodes(n int) { l.nodes.Store(int64(defaults.Or(n, 1))) }

// A leaseRequest is the state of one request in a [Lease].
type leaseRequest struct {
	limit     *compiledLimit // nil if the request cannot be leased
	hash      uint64
	key       string
	cost      int64
	maxHeld   int64 // units of the key that may be held
	spendable bool  // whether leased units can decide it
	mayDelay  bool  // whether it may be granted for later
	atMost    bool  // whether it can be granted in part

	now      int64
	want     int64 // units to refill, if this request starts a refill
	refillID int64 // of that refill
	takenAt  int64 // when its units were taken from the store; 0 if it spent none
	local    bool  // whether a fallback granted those units, and not the store
}

// newRequest prepares a request. It is not ok if the request cannot be leased.
func (l *Lease) newRequest(r *Request) (lr leaseRequest, ok bool) {
	if r.Limit.leaseKind() == noLease {
		return lr, false
	}
	cl, err := l.limits.forRequest(r)
	if err != nil || r.validateShape() != nil || l.closed.Load() {
		return lr, false
	}
	maxHeld := cl.capacity / (10 * l.nodes.Load())
	if maxHeld < 2 || cl.capacity > maxLeasedCapacity || l.only != nil && !l.only(r.Limit) {
		return lr, false
	}
	lr = leaseRequest{limit: cl, hash: hashOf(cl, r.Key), key: r.Key, cost: r.Cost, maxHeld: maxHeld}
	lr.spendable = r.isPlainTake() && r.KeepFree == 0
	lr.mayDelay, lr.atMost = r.mayDelay(), r.AtMost
	if r.Settle {
		lr.cost = -1 // it may refund units
	}
	return lr, true
}

// Take decides one request: by leased units, or else by calling the store. It makes no batch,
// because spending a leased unit must cost little.
func (l *Lease) Take(ctx context.Context, r Request) (d Decision, err error) {
	if l.next == nil {
		return d, errNoStore
	}
	lr, ok := l.newRequest(&r)
	if !ok {
		return l.next.Take(ctx, r)
	}
	r.compiled = lr.limit
	if lr.spendable {
		if decided, err := l.spendOrRefill(ctx, &lr, &d); decided || err != nil {
			return d, err
		}
	}
	l.beforeStore(&lr)
	d, err = l.next.Take(ctx, r)
	l.afterStore(&lr, &d, err)
	return d, err
}

// decide decides requests: by leased units where there are enough, or else by calling the
// store. If the store denies one of an all-or-nothing request, the leased units are put back.
func (l *Lease) decide(ctx context.Context, rs []Request, ds []Decision, all bool) error {
	var buffer [batchBuffer]leaseRequest
	lrs, ok := l.newRequests(buffer[:0], rs)
	if !ok || all && ValidateBatch(rs, ds, true) != nil {
		return TakeBatch(ctx, l.next, rs, ds, all)
	}
	err := l.takeEach(ctx, lrs, rs, ds, all)
	if all && (err != nil || !allAllowed(ds)) {
		l.revert(lrs, ds)
	}
	return err
}

func allAllowed(ds []Decision) bool {
	return !slices.ContainsFunc(ds, func(d Decision) bool { return !d.Allowed })
}

// newRequests appends all requests. It is not ok if none of them can be leased, or if one is
// malformed; then the store is called with all of them, and returns the error.
func (l *Lease) newRequests(lrs []leaseRequest, rs []Request) (_ []leaseRequest, ok bool) {
	for i := range rs {
		lr, canLease := l.newRequest(&rs[i])
		if !canLease && rs[i].validate() != nil {
			return nil, false
		}
		lrs = append(lrs, lr)
		ok = ok || canLease
	}
	return lrs, ok && l.next != nil
}

// takeEach decides the requests by leased units and, in one call, by the store.
func (l *Lease) takeEach(ctx context.Context, lrs []leaseRequest, rs []Request, ds []Decision, all bool) error {
	var buffer [batchBuffer]int
	open := buffer[:0]
	for i := range lrs {
		decided, err := l.spend(ctx, lrs, i, &ds[i], all)
		if err != nil {
			return requestError(i, err)
		}
		if !decided {
			open = append(open, i)
		}
	}
	for _, i := range open { // not before: another request may have waited, or failed
		l.beforeStore(&lrs[i])
	}
	err := takeOpen(ctx, l.next, rs, ds, all, open)
	for _, i := range open {
		l.afterStore(&lrs[i], &ds[i], err)
	}
	return err
}

// spend decides a request by leased units, or leaves it to the store. After a
// refund, all later requests of the same key go to the store too. In a TakeAll
// only the store denies, because only it knows the state of the other keys.
func (l *Lease) spend(ctx context.Context, lrs []leaseRequest, i int, d *Decision, all bool) (decided bool, err error) {
	lr := &lrs[i]
	if lr.spendable && !followsRefund(lrs, i) {
		decided, err = l.spendOrRefill(ctx, lr, d)
	}
	if err != nil || decided && (d.Allowed || !all) {
		return decided, err
	}
	lr.takenAt, lr.local, *d = 0, false, Decision{} // a refill is no decision about the request
	return false, nil
}

func followsRefund(lrs []leaseRequest, i int) bool {
	return slices.ContainsFunc(lrs[:i], func(lr leaseRequest) bool { return lr.cost < 0 && lr.hash == lrs[i].hash })
}

// beforeStore prepares for a request that the store will decide.
func (l *Lease) beforeStore(lr *leaseRequest) {
	lr.now = l.clock.Now()
	if lr.limit != nil && lr.cost == Reset {
		l.setOf(lr).reset(l, lr, lr.now+l.maxAge) // units held would exceed the limit
	}
}

// afterStore updates the lease with the store's decision.
func (l *Lease) afterStore(lr *leaseRequest, d *Decision, err error) {
	if lr.limit == nil {
		return // it cannot be leased
	}
	if lr.cost == Reset {
		l.setOf(lr).reset(l, lr, 0)
	}
	if err == nil {
		l.setOf(lr).observe(lr, d, l.clock.Now())
	}
}

// revert puts back the leased units that were spent, and turns those decisions into
// peeks.
func (l *Lease) revert(lrs []leaseRequest, ds []Decision) {
	for i := range lrs {
		if lr := &lrs[i]; lr.takenAt > 0 {
			l.setOf(lr).putBack(l, lr)
			ds[i].Granted = 0
			ds[i].Remaining = min(ds[i].Remaining+lr.cost, ds[i].Limit)
			lr.takenAt, lr.local = 0, false
		}
	}
	l.flushSoon()
}
