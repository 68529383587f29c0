package penstock

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/inflight"
	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/internal/setassoc"
)

// maxCoalesceWait is how long a caller waits for refills in all, if one after the
// other leaves nothing for it.
const maxCoalesceWait = 10 * inflight.MaxWait

// LeaseOptions are the settings of a [Lease]. A number that is not above zero
// means its default.
type LeaseOptions struct {
	// Nodes is how many processes lease from the same store. All of them together
	// hold at most a tenth of a limit's burst. Default: 1.
	Nodes int

	// MaxAge is how long units are held: what is not spent by then is given
	// back. It counts from before the store was asked, on this machine's
	// monotonic clock. Default: one second.
	MaxAge time.Duration

	// Only says which limits to lease. Only token buckets can be; other limits
	// are not asked about. It must be safe for concurrent use. Default: all.
	Only func(Limit) bool

	// MaxKeys is how many keys are kept account of at once, counting each pair
	// of key and limit. Others go to the store. Default: 16,384.
	MaxKeys int

	// Now is the clock, for tests and simulations. It must be safe for
	// concurrent use. Default: the machine's monotonic clock.
	Now func() time.Time
}

// A Lease takes units of busy keys ahead, and must be closed to give back what it
// holds; it also gives back, and asks for more, from goroutines that end by
// themselves.
// It is safe for concurrent use. [WithLease] makes one.
//
// Units are taken of the store before they are spent here, and a process can spend
// them for MaxAge, or τ. With N processes, each holding at most q units of a key,
// any interval of time T spends of it
//
//	at most B + r·T + N·q, and
//	at most B + r·(T+τ),
//
// where B + r·T is what the limit itself admits. By default N·q is a tenth of B.
// For that the Lease gives back less than it has left: what would have come back
// to the bucket by itself since they were taken stays taken. What it gives back is
// given back once, and lost if the store cannot be reached.
//
// How much it takes depends on how busy the key is here: what it needs for seven
// tenths of τ. Keys that are asked for less than eight times in that time, and
// limits whose burst is below 20·N, are not leased at all. A key of which little is
// left is asked for one by one, unless it is so busy that it can afford to be
// denied for a moment, at most a quarter of a second, after the store had less
// than was wanted: then it is denied here, though a unit may have come back.
//
// What is spent here is answered with [SourceLease], and a Remaining that was true
// when the units were taken. Requests with an ID, and all other algorithms, pass
// through unchanged.
type Lease struct {
	next     Store
	nodes    int64
	maxAge   int64
	only     func(Limit) bool
	clock    monotime.Clock
	sets     setassoc.Table[holdingSet]
	inflight inflight.Calls
	meters   compiledCache

	closed  atomic.Bool
	armed   atomic.Bool // whether a sweep is on its way
	returns returns
	flown   atomic.Int64 // refills that were ever asked for
}

const (
	defaultLeaseAge  = time.Second
	defaultLeaseKeys = 1 << 14
	backAtOnce       = 128 // keys whose units are given back in one trip
)

// WithLease returns a store that takes units of next ahead and spends them by
// itself, so that a key which is asked for all the time costs a trip for every
// hundred decisions and not for every one. Wrap it only around limits that may be
// exceeded by what the comment of [Lease] says. Nil options are all defaults.
func WithLease(next Store, o *LeaseOptions) *Lease {
	if o == nil {
		o = &LeaseOptions{}
	}
	l := &Lease{
		next:   next,
		nodes:  int64(orDefault(o.Nodes, 1)),
		maxAge: int64(orDefault(o.MaxAge, defaultLeaseAge)),
		only:   o.Only,
		clock:  monotime.New(o.Now),
	}
	l.sets = setassoc.New[holdingSet](orDefault(o.MaxKeys, defaultLeaseKeys))
	return l
}

// A need is what a request wants of a lease.
type need struct {
	meter *compiledLimit
	hash  uint64
	key   string
	cost  int64
	most  int64 // that may be held of the key
	takes bool  // whether it can be met by what is held
	waits bool  // whether it may be granted for later
	part  bool  // whether it can be met in part

	now    int64
	want   int64 // what to ask the store for, if this is who does, …
	flight int64 // … and by which number that is known
	taken  int64 // when the units were that have met it
}

// need returns what a request wants. It is not ok if leases have nothing to do
// with it.
func (l *Lease) need(r *Request) (n need, ok bool) {
	cl, err := l.meters.of(r)
	if err != nil || cl.limit.Algorithm != TokenBucket || r.validateShape() != nil || l.closed.Load() {
		return n, false
	}
	most := cl.most / (10 * l.nodes)
	if most < 2 || l.only != nil && !l.only(r.Limit) {
		return n, false
	}
	n = need{meter: cl, hash: hashOf(cl, r.Key), key: r.Key, cost: r.Cost, most: most}
	n.takes = r.Cost > 0 && r.ID == ""
	n.waits, n.part = r.MaxDelay > 0, r.AtMost
	return n, true
}

// Take decides one request: by what is held, or else by asking the store.
func (l *Lease) Take(ctx context.Context, r Request) (Decision, error) {
	if l.next == nil {
		return Decision{}, errNoStore
	}
	n, ok := l.need(&r)
	if !ok {
		return l.next.Take(ctx, r)
	}
	r.compiled = n.meter
	if n.takes {
		var d Decision
		if done, err := l.spend(ctx, &n, &d); done || err != nil {
			return d, err
		}
	}
	l.before(&n)
	d, err := l.next.Take(ctx, r)
	l.after(&n, &d, err)
	return d, err
}

func (l *Lease) set(n *need) *holdingSet { return l.sets.Of(n.hash) }

// before prepares for a request that goes to the store by itself.
func (l *Lease) before(n *need) {
	n.now = l.clock.Now()
	if n.cost == Reset {
		l.set(n).forget(l, n, n.now+l.maxAge) // or else what is held would be extra
	}
}

// after takes note of what the store has said of such a request.
func (l *Lease) after(n *need, d *Decision, err error) {
	if n.cost == Reset {
		l.set(n).forget(l, n, 0)
	}
	if err == nil {
		l.set(n).passed(n, d)
	}
}

// spend meets a need by what is held, after asking the store for more if it is
// time to, or waiting for somebody else who does. It is not done if the store has
// to decide the request itself.
func (l *Lease) spend(ctx context.Context, n *need, d *Decision) (done bool, err error) {
	n.now = l.clock.Now()
	if l.set(n).spend(n, d) {
		return true, nil
	}
	for began, isNew := n.now, true; ; n.now, isNew = l.clock.Now(), false {
		wait := min(int64(inflight.MaxWait), int64(maxCoalesceWait)-(n.now-began))
		done, landed := l.set(n).enter(l, n, d, isNew, wait > 0)
		switch {
		case done:
			return true, nil
		case n.want > 0:
			return l.refill(ctx, n, d)
		case landed == nil:
			return false, nil
		}
		if err = inflight.Await(ctx, landed, time.Duration(wait)); err != nil {
			return false, err
		}
	}
}

// refill asks the store for more than is needed, and holds the rest. It is not
// done if that was too little, or none of the store's. A caller who goes away
// meanwhile leaves the units to the others: if they were lost with it, whoever
// keeps going away could waste what everybody shares.
func (l *Lease) refill(ctx context.Context, n *need, d *Decision) (done bool, err error) {
	if ctx.Done() == nil {
		return l.takeAhead(ctx, n, d)
	}
	r := &refill{need: *n, landed: make(chan struct{})}
	go r.run(context.WithoutCancel(ctx), l)
	select {
	case <-r.landed:
		*n, *d = r.need, r.decision
		return r.done, r.err
	case <-ctx.Done():
		return false, fmt.Errorf("penstock: waiting for units to be taken ahead: %w", ctx.Err())
	}
}

// A refill is asked for beside the caller whose need it is.
type refill struct {
	need     need
	decision Decision
	done     bool
	err      error
	landed   chan struct{}
}

func (r *refill) run(ctx context.Context, l *Lease) {
	defer close(r.landed)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(l.maxAge)) // what comes later is of no use
	defer cancel()
	r.need.key = strings.Clone(r.need.key) // the caller's may change once it has gone
	r.done, r.err = l.takeAhead(ctx, &r.need, &r.decision)
}

func (l *Lease) takeAhead(ctx context.Context, n *need, d *Decision) (done bool, err error) {
	more := Request{Key: n.key, Limit: n.meter.limit, Cost: n.want, AtMost: true, compiled: n.meter}
	*d, err = l.next.Take(ctx, more)
	done = l.set(n).refilled(l, n, d, err)
	l.inflight.Done(n.hash)
	l.returnSoon()
	return done, err
}

// TakeEach decides every request by itself: by what is held, or else in one trip.
// It is what [TakeEach] calls.
func (l *Lease) TakeEach(ctx context.Context, rs []Request, ds []Decision) error {
	b, ok := l.batch(rs, ds)
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

// TakeAll decides the requests as one. Those of which enough is held are charged
// here, and put back if the store refuses the others. It is what [TakeAll] calls.
func (l *Lease) TakeAll(ctx context.Context, rs []Request, ds []Decision) error {
	b, ok := l.batch(rs, ds)
	if !ok || ValidateAll(rs, ds) != nil {
		return TakeAll(ctx, l.next, rs, ds)
	}
	b.together = true
	for i := range rs {
		if err := b.spend(ctx, i); err != nil {
			b.putBack()
			return requestError(i, err)
		}
	}
	allowed, err := b.takeRest(ctx, TakeAll)
	if !allowed {
		b.putBack()
	}
	return err
}

// Close gives back what is held, and lets all further requests pass through. It
// returns the first error; the units it is about come back by themselves.
func (l *Lease) Close(ctx context.Context) error {
	l.closed.Store(true)
	sets := l.sets.All()
	for i := range sets {
		sets[i].release(l, l.clock.Now(), true)
	}
	return l.returns.flush(ctx, l)
}

// arm has what is held looked through when it may have expired.
func (l *Lease) arm() {
	if !l.closed.Load() && !l.armed.Swap(true) {
		time.AfterFunc(time.Duration(l.maxAge)/2, l.sweep)
	}
}

// sweep gives back what was held for too long.
func (l *Lease) sweep() {
	l.armed.Store(false)
	held := false
	sets := l.sets.All()
	for i := range sets {
		held = sets[i].release(l, l.clock.Now(), false) || held
	}
	if held {
		l.arm()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(l.maxAge))
	defer cancel()
	_ = l.returns.flush(ctx, l) // there is nobody to tell, and the units come back by themselves
}

// returnSoon gives back what is on its way, beside the caller, who need not wait for
// that. What cannot be given back comes back by itself.
func (l *Lease) returnSoon() {
	if !l.returns.leave() {
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(l.maxAge))
		defer cancel()
		_ = l.returns.flush(ctx, l)
	}()
}

// returns are units on their way back to the store.
type returns struct {
	mu      sync.Mutex
	units   []returned
	leaving bool // whether somebody is about to take them along
}

// leave reports whether somebody has to take units along.
func (rs *returns) leave() bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if len(rs.units) == 0 || rs.leaving {
		return false
	}
	rs.leaving = true
	return true
}

// A returned is what was left of a lease.
type returned struct {
	key   string
	meter *compiledLimit
	units int64
	taken int64 // when they were
}

func (rs *returns) add(r returned) {
	if r.units > 0 {
		rs.mu.Lock()
		defer rs.mu.Unlock()
		rs.units = append(rs.units, r)
	}
}

func (rs *returns) claim() []returned {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	units := rs.units
	rs.units, rs.leaving = nil, false
	return units
}

// flush gives units back, each once whatever becomes of it.
func (rs *returns) flush(ctx context.Context, l *Lease) (first error) {
	var requests []Request
	for _, r := range rs.claim() {
		if back := r.due(l.clock.Now()); back > 0 {
			requests = append(requests, Request{Key: r.key, Limit: r.meter.limit, Cost: -back, compiled: r.meter})
		}
	}
	for len(requests) > 0 {
		some := requests[:min(len(requests), backAtOnce)]
		requests = requests[len(some):]
		if err := TakeEach(ctx, l.next, some, make([]Decision, len(some))); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// due returns how many units may be given back. A unit given back at once leaves
// the bucket as if it had never been taken. Later on, part of it has been paid
// back by time, and to give back all of it would let the same time pay for two.
func (r *returned) due(now int64) int64 {
	interval := r.meter.token.Interval
	return r.units - (max(now-r.taken, 0)+interval-1)/interval
}
