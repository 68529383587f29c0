package penstock

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

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

	// MaxAge is how long units are held. Units not spent by then are refunded.
	// It counts from before the store was called, on this machine's monotonic
	// clock. Default: one second.
	MaxAge time.Duration

	// Only selects the limits to lease. It is called only for token buckets,
	// because no other algorithm can be leased. It must be safe for concurrent
	// use. Default: all.
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
// A refill takes what the key is expected to need for seven tenths of τ. A key
// with fewer than eight requests in that time is not leased, nor is a limit with
// a burst below 20·N. When the store has few units of a key left, requests go to
// it one by one. Very busy keys, with 100 units or more per quarter of a second,
// are an exception: after a refill got fewer units than it requested, they are
// denied locally for at most a quarter of a second, even if the bucket has earned
// a unit in the meantime.
//
// Decisions by leased units have [SourceLease], and a Remaining that was true
// when the units were taken. Requests with an ID, Overdraw or KeepFree, and limits
// with another algorithm, pass through unchanged. KeepFree does not count leased
// units as free. A charge does not use up leased units, which are charged already;
// what it owes stops the next refill.
type Lease struct {
	next     Store
	nodes    int64
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

	// maxRefillWait is how long a request waits in all, if one refill after the
	// other leaves no units for it.
	maxRefillWait = 10 * inflight.MaxWait
)

// WithLease returns a store that spends units of next locally, so a busy key
// costs one call for about a hundred decisions. Use it if next is remote, and
// only for limits that may be exceeded within the bounds documented at [Lease].
// Nil options mean all defaults.
func WithLease(next Store, o *LeaseOptions) *Lease {
	if o == nil {
		o = &LeaseOptions{}
	}
	return &Lease{
		next:   next,
		nodes:  int64(orDefault(o.Nodes, 1)),
		maxAge: int64(orDefault(o.MaxAge, defaultLeaseAge)),
		only:   o.Only,
		clock:  monotime.New(o.Now),
		sets:   setassoc.New[leaseEntrySet](orDefault(o.MaxKeys, defaultLeaseKeys)),
	}
}

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
	if r.Limit.Algorithm != TokenBucket {
		return lr, false
	}
	cl, err := l.limits.forRequest(r)
	if err != nil || r.validateShape() != nil || l.closed.Load() {
		return lr, false
	}
	maxHeld := cl.capacity / (10 * l.nodes)
	if maxHeld < 2 || l.only != nil && !l.only(r.Limit) {
		return lr, false
	}
	lr = leaseRequest{limit: cl, hash: hashOf(cl, r.Key), key: r.Key, cost: r.Cost, maxHeld: maxHeld}
	lr.spendable = r.Cost > 0 && r.ID == "" && !r.Overdraw && r.KeepFree == 0
	lr.mayDelay, lr.atMost = r.MaxDelay > 0, r.AtMost
	if r.Settle {
		lr.cost = -1 // it may refund units
	}
	return lr, true
}

// Take decides one request: by leased units, or else by calling the store.
func (l *Lease) Take(ctx context.Context, r Request) (Decision, error) {
	if l.next == nil {
		return Decision{}, errNoStore
	}
	lr, ok := l.newRequest(&r)
	if !ok {
		return l.next.Take(ctx, r)
	}
	r.compiled = lr.limit
	if lr.spendable {
		var d Decision
		if decided, err := l.spendOrRefill(ctx, &lr, &d); decided || err != nil {
			return d, err
		}
	}
	l.beforeStore(&lr)
	d, err := l.next.Take(ctx, r)
	l.afterStore(&lr, &d, err)
	return d, err
}

func (l *Lease) setOf(lr *leaseRequest) *leaseEntrySet { return l.sets.Of(lr.hash) }

// beforeStore prepares for a request that the store will decide.
func (l *Lease) beforeStore(lr *leaseRequest) {
	lr.now = l.clock.Now()
	if lr.cost == Reset {
		l.setOf(lr).reset(l, lr, lr.now+l.maxAge) // units held would exceed the limit
	}
}

// afterStore updates the lease with the store's decision.
func (l *Lease) afterStore(lr *leaseRequest, d *Decision, err error) {
	if lr.cost == Reset {
		l.setOf(lr).reset(l, lr, 0)
	}
	if err == nil {
		l.setOf(lr).observe(lr, d)
	}
}

// spendOrRefill decides a request by leased units. If there are too few, it
// refills them or waits for a refill in flight. If decided is false, the store
// must decide the request.
func (l *Lease) spendOrRefill(ctx context.Context, lr *leaseRequest, d *Decision) (decided bool, err error) {
	lr.now = l.clock.Now()
	if l.setOf(lr).spendHot(lr, d) {
		return true, nil
	}
	for began, isNew := lr.now, true; ; lr.now, isNew = l.clock.Now(), false {
		wait := min(int64(inflight.MaxWait), int64(maxRefillWait)-(lr.now-began))
		step, refilled := l.setOf(lr).decide(l, lr, d, isNew, wait > 0)
		switch step {
		case leaseDecided:
			return true, nil
		case leaseRefill:
			return l.refill(ctx, lr, d)
		case leaseCallStore:
			return false, nil
		}
		if err = inflight.Await(ctx, refilled, time.Duration(wait)); err != nil {
			return false, err
		}
	}
}

// refill takes units from the store, spends the request's cost and holds the
// rest. If decided is false, it got too few. If the caller's context ends, the
// refill continues for the other callers; otherwise callers with short deadlines
// could waste units of a shared limit.
func (l *Lease) refill(ctx context.Context, lr *leaseRequest, d *Decision) (decided bool, err error) {
	if ctx.Done() == nil {
		return l.takeUnits(ctx, lr, d)
	}
	c := &refillCall{lr: *lr, done: make(chan struct{})}
	go c.run(context.WithoutCancel(ctx), l)
	select {
	case <-c.done:
		*lr, *d = c.lr, c.decision
		return c.decided, c.err
	case <-ctx.Done():
		return false, fmt.Errorf("penstock: waiting for a lease: %w", ctx.Err())
	}
}

// A refillCall is a refill that runs in its own goroutine.
type refillCall struct {
	lr       leaseRequest
	decision Decision
	decided  bool
	err      error
	done     chan struct{}
}

func (c *refillCall) run(ctx context.Context, l *Lease) {
	defer close(c.done)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(l.maxAge)) // later units would have expired
	defer cancel()
	c.lr.key = strings.Clone(c.lr.key) // the caller may reuse its memory after it returned
	c.decided, c.err = l.takeUnits(ctx, &c.lr, &c.decision)
}

// takeUnits makes a refill. It ends also if the store panics, or else the key would
// wait for it for good.
func (l *Lease) takeUnits(ctx context.Context, lr *leaseRequest, d *Decision) (decided bool, err error) {
	r := Request{Key: lr.key, Limit: lr.limit.limit, Cost: lr.want, AtMost: true, compiled: lr.limit}
	err = ErrUnavailable // of a panic
	defer func() {
		decided = l.setOf(lr).finishRefill(l, lr, d, err)
		l.inflight.Done(lr.hash)
		l.flushSoon()
	}()
	*d, err = l.next.Take(ctx, r)
	return false, err
}

// TakeEach decides every request independently: by leased units, or else in one
// call to the store. It implements [BatchStore].
func (l *Lease) TakeEach(ctx context.Context, rs []Request, ds []Decision) error {
	clearDecisions(rs, ds)
	b, ok := l.newBatch(rs, ds)
	if !ok {
		return TakeEach(ctx, l.next, rs, ds)
	}
	for i := range rs {
		if err := b.spend(ctx, i); err != nil {
			return requestError(i, err)
		}
	}
	_, err := b.takeRest(ctx, TakeEach)
	return err
}

// TakeAll decides the requests all or nothing. It spends leased units where there
// are enough, and puts them back if the store denies one of the other requests.
// It implements [AtomicStore].
func (l *Lease) TakeAll(ctx context.Context, rs []Request, ds []Decision) error {
	return undecided(l.takeAll(ctx, rs, ds), rs, ds)
}

func (l *Lease) takeAll(ctx context.Context, rs []Request, ds []Decision) error {
	b, ok := l.newBatch(rs, ds)
	if !ok || ValidateAll(rs, ds) != nil {
		return TakeAll(ctx, l.next, rs, ds)
	}
	b.allOrNothing = true
	for i := range rs {
		if err := b.spend(ctx, i); err != nil {
			b.revert()
			return requestError(i, err)
		}
	}
	allowed, err := b.takeRest(ctx, TakeAll)
	if !allowed {
		b.revert()
	}
	return err
}

// Close refunds the units held, and waits for refunds in flight, so that the store
// can be closed next. Later requests pass through to the store. It returns the
// first error. Units that could not be refunded come back by time.
func (l *Lease) Close(ctx context.Context) error {
	l.closed.Store(true)
	sets := l.sets.All()
	for i := range sets {
		sets[i].release(l, l.clock.Now(), true)
	}
	err := l.returns.flush(ctx, l)
	if waiting := l.returns.await(ctx); err == nil {
		err = waiting
	}
	return err
}

// scheduleSweep schedules a sweep for about the time when held units expire.
func (l *Lease) scheduleSweep() {
	if !l.closed.Load() && !l.sweepScheduled.Swap(true) {
		time.AfterFunc(time.Duration(l.maxAge)/2, l.sweep)
	}
}

// sweep refunds the units that have expired.
func (l *Lease) sweep() {
	l.sweepScheduled.Store(false)
	held := false
	sets := l.sets.All()
	for i := range sets {
		held = sets[i].release(l, l.clock.Now(), false) || held
	}
	if held {
		l.scheduleSweep()
	}
	l.flush()
}

// flush refunds the queued units. On an error they come back by time.
func (l *Lease) flush() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(l.maxAge))
	defer cancel()
	_ = l.returns.flush(ctx, l)
}

// flushSoon refunds the queued units without delaying the caller.
func (l *Lease) flushSoon() {
	if l.returns.startFlush() {
		go l.flush()
	}
}
