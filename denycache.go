package penstock

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/inflight"
	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/internal/setassoc"
)

// DenyCacheOptions are the settings of a [DenyCache]. The zero value suits most
// programs. A number of zero or less means its default.
type DenyCacheOptions struct {
	// MaxKeys bounds the cached denials, counting each pair of key and limit.
	// Each takes about 90 bytes. When the cache is full, the denials that end
	// soonest are dropped. Default: 65,536.
	MaxKeys int

	// MaxAge bounds how long a denial is cached. If units are refunded without
	// going through this cache, a key may be denied wrongly for this long.
	// Default: one second.
	MaxAge time.Duration

	// Only selects the limits whose denials are cached. It must be safe for
	// concurrent use. Default: all.
	Only func(Limit) bool

	// Now is the clock, for tests and simulations. It must be safe for
	// concurrent use. Default: the machine's monotonic clock.
	Now func() time.Time
}

// A DenyCache is a [Store] that caches the denials of another store, so clients
// that keep retrying cost no calls to it. [WithDenyCache] makes one. It is safe
// for concurrent use, starts no goroutine and needs no Close.
//
// It never allows a request without the store. A denial is cached until its
// RetryAfter has passed, counted from before the store was called. As long as
// units come back only by time, the store would have denied the request too.
// Denials of a [Concurrent] limit are not cached: any holder may release its permit.
// Refunds and resets through the cache, and requests with another Count or Burst
// under the same name, drop the key's denial. Refunds that bypass the cache take
// effect within MaxAge.
//
// A cached denial answers requests of at least its own cost under the same limit. The
// cost of a request with KeepFree includes the units that it keeps, so its denial answers
// no request that needs fewer.
// The decision has [SourceDenyCache], and its times count down. They are as exact
// as the store's, with two exceptions. After a request took the last unit of a
// bucket, the cache itself computes when the next unit is due. If a unit does not
// take whole milliseconds to come back, that may be up to one millisecond late.
// And of calls that overlapped, the cache may keep the numbers of the one that the
// store decided first. For costs above one, KeepFree included, Remaining is
// otherwise a lower bound.
//
// A [TakeAll] of which one request is known to be denied is denied without the store, and
// charges nothing. The decisions about the requests that the cache does not know to be
// denied are then those of idle keys: allowed, with all units of the limit remaining, so
// that the known denial is the tightest.
//
// When a denial ends, one caller at a time calls the store again. Concurrent
// callers wait for its result, for at most five milliseconds. A new denial that
// held when they began to wait also answers them, even if it has ended since.
type DenyCache struct {
	batchFunc
	next     Store
	maxAge   int64
	only     func(Limit) bool
	clock    monotime.Clock
	hints    setassoc.Table[setHint]
	sets     setassoc.Table[denialSet]
	inflight inflight.Calls
	limits   compiledCache
}

const (
	defaultDenials   = 1 << 16
	defaultDenialAge = time.Second
)

// WithDenyCache returns a store that answers from memory while next is known to
// deny. Use it if next is remote, such as Redis; a [Memory] denies just as fast. Nil
// options mean all defaults.
func WithDenyCache(next Store, o *DenyCacheOptions) *DenyCache {
	o = cmp.Or(o, &DenyCacheOptions{})
	keys := defaults.Or(o.MaxKeys, defaultDenials)
	c := &DenyCache{
		next:   next,
		maxAge: int64(defaults.Duration(o.MaxAge, defaultDenialAge)),
		only:   o.Only,
		clock:  monotime.New(o.Now),
		hints:  setassoc.New[setHint](keys),
		sets:   setassoc.New[denialSet](keys),
	}
	c.batchFunc = c.decide
	return c
}

// A lookup is the state of one request in the cache.
type lookup struct {
	limit     *compiledLimit
	hash      uint64
	cost      int64 // units that it needs to pass; 0 if denials do not apply to it
	cacheable bool  // whether a cached denial may answer it
	began     int64 // when it was first looked up
	sent      int64 // when it was last looked up, before the store was called
	leader    bool  // whether other callers may wait for its result
	answered  bool  // whether a cached denial has answered it
}

// newLookup returns the lookup of a request. It is not ok if the request is
// malformed; then the store is called, and returns the error.
func (c *DenyCache) newLookup(r *Request) (l lookup, ok bool) {
	cl, err := c.limits.forRequest(r)
	if err != nil || r.validateShape() != nil {
		return l, false
	}
	l = lookup{limit: cl, hash: hashOf(cl, r.Key), cost: r.needed()}
	switch {
	case r.returnsUnits() && !cl.limit.hasPermits():
		l.cost = -1
	case cl.limit.hasPermits() || r.mayDelay() || c.only != nil && !c.only(r.Limit):
		l.cost = 0 // denials of other requests do not apply to it, nor its own to them
	}
	l.cacheable = l.cost > 0 && r.isPlainTake()
	return l, true
}

// Take decides one request: from the cache if it is known to be denied, or else
// by calling the store. It makes no batch, because a cached denial must cost little.
func (c *DenyCache) Take(ctx context.Context, r Request) (d Decision, err error) {
	if c.next == nil {
		return d, errNoStore
	}
	l, ok := c.newLookup(&r)
	if !ok {
		return c.next.Take(ctx, r)
	}
	r.compiled = l.limit
	if denied, err := c.lookUpOrWait(ctx, &l, &d); denied || err != nil {
		return d, err
	}
	d, err = c.next.Take(ctx, r)
	c.record(&l, &d, err)
	return d, err
}

// decide decides requests: from the cache those that are known to be denied, the others by
// calling the store. If one of an all-or-nothing request is known to be denied, all are.
func (c *DenyCache) decide(ctx context.Context, rs []Request, ds []Decision, all bool) error {
	var buffer [batchBuffer]lookup
	ls, ok := c.newLookups(buffer[:0], rs)
	if !ok {
		return TakeBatch(ctx, c.next, rs, ds, all)
	}
	if all && c.lookUpAll(ls, rs, ds) {
		peekUnanswered(ls, ds)
		return nil
	}
	if !all {
		c.lookUpEach(ls, ds)
	}
	var indexes [batchBuffer]int
	err := takeOpen(ctx, c.next, rs, ds, all, unanswered(indexes[:0], ls))
	for i := range ls {
		if all && (err != nil || sharesKey(ls, i)) {
			ls[i].cost = 0 // the sum of costs was denied, or it was taken and refunded
		}
		if !ls[i].answered {
			c.record(&ls[i], &ds[i], err)
		}
	}
	return err
}

// newLookups appends the lookups of all requests. It is not ok if one of them is
// malformed; then the store is called, and returns the error.
func (c *DenyCache) newLookups(ls []lookup, rs []Request) ([]lookup, bool) {
	for i := range rs {
		l, ok := c.newLookup(&rs[i])
		if !ok {
			return nil, false
		}
		ls = append(ls, l)
	}
	return ls, true
}

// unanswered appends the indexes of the lookups that the cache did not answer.
func unanswered(indexes []int, ls []lookup) []int {
	for i := range ls {
		if !ls[i].answered {
			indexes = append(indexes, i)
		}
	}
	return indexes
}

// lookUpEach looks up requests that are independent.
func (c *DenyCache) lookUpEach(ls []lookup, ds []Decision) {
	now := c.clock.Now()
	for i := range ls {
		ls[i].cacheable = ls[i].cacheable && !followsUnanswered(ls, i)
		ls[i].answered = c.lookUp(&ls[i], &ds[i], now)
	}
}

// followsUnanswered reports whether an earlier request of the batch, for the same
// key, goes to the store. The later one must see its effect.
func followsUnanswered(ls []lookup, i int) bool {
	return slices.ContainsFunc(ls[:i], func(l lookup) bool { return l.hash == ls[i].hash && !l.answered })
}

// lookUpAll looks up the requests of a TakeAll, and reports whether a cached denial answers
// one of them, and so all. Requests of one key are denied for the sum of their costs, which the
// cache does not know. If they cannot be decided together, the store returns the error.
func (c *DenyCache) lookUpAll(ls []lookup, rs []Request, ds []Decision) (denied bool) {
	now := c.clock.Now()
	for i := range ls {
		ls[i].answered = c.lookUp(&ls[i], &ds[i], now) && !sharesKey(ls, i)
		denied = denied || ls[i].answered
	}
	if denied && !canDecideTogether(rs) {
		for i := range ls {
			ls[i].answered = false
		}
		return false
	}
	return denied
}

// lookUpOrWait answers a request from the cache. If it cannot, and another caller
// is calling the store about the same key, it waits for that call and tries
// again.
func (c *DenyCache) lookUpOrWait(ctx context.Context, l *lookup, d *Decision) (denied bool, err error) {
	for {
		l.sent = c.clock.Now()
		if l.began == 0 {
			l.began = l.sent
		}
		wait := int64(inflight.MaxWait) - (l.sent - l.began)
		calls := &c.inflight
		if wait <= 0 {
			calls = nil
		}
		denied, done := c.find(l, d, calls)
		if denied || done == nil {
			return denied, nil
		}
		if err = inflight.Await(ctx, done, time.Duration(wait)); err != nil {
			return false, err
		}
	}
}

// The methods Now, Cached, Note and Forget are for callers that decide by themselves what is a
// denial, and call a store with other requests than those they answer. A cache that only they
// use needs no store.

// Now returns the time for Cached and Note, from an arbitrary origin.
func (c *DenyCache) Now() time.Duration { return time.Duration(c.clock.Now()) }

// Cached returns the cached denial of a request at that time, and never calls the store.
func (c *DenyCache) Cached(r Request, now time.Duration) (d Decision, denied bool) {
	l, ok := c.newLookup(&r)
	return d, ok && c.lookUp(&l, &d, int64(now))
}

// Note caches a denial of the request. asked is the time before the caller asked for it: if units
// of the key may have been returned since, the denial is dropped.
func (c *DenyCache) Note(r Request, d Decision, asked time.Duration) {
	if l, ok := c.newLookup(&r); ok {
		l.sent = int64(asked)
		c.record(&l, &d, nil)
	}
}

// Forget drops the cached denial of the request's key, and those that Note gets later about
// earlier times. It is called after units of the key were returned without this cache.
func (c *DenyCache) Forget(r Request) {
	if l, ok := c.newLookup(&r); ok {
		l.cost = -1
		c.record(&l, &Decision{}, nil)
	}
}

// lookUp answers a request from the cache if possible, without waiting.
func (c *DenyCache) lookUp(l *lookup, d *Decision, now int64) (denied bool) {
	l.began, l.sent = now, now
	denied, _ = c.find(l, d, nil)
	return denied
}

// find returns whether a cached denial answers the request, or else the call in
// flight to wait for. If calls is nil, there is none to wait for.
func (c *DenyCache) find(l *lookup, d *Decision, calls *inflight.Calls) (denied bool, done <-chan struct{}) {
	if !c.hints.Of(l.hash).used.Load() {
		return false, nil
	}
	return c.sets.Of(l.hash).find(l, d, calls)
}

// record updates the cache with the store's decision.
func (c *DenyCache) record(l *lookup, d *Decision, err error) {
	hint := c.hints.Of(l.hash)
	var e denial
	var denied *denial
	if err == nil && e.from(l, d) {
		denied, e.until = &e, l.sent+min(e.until, c.maxAge)
	} else if !hint.used.Load() && !l.mayRefund(err) {
		return
	}
	c.sets.Of(l.hash).record(hint, l, d, err, denied, &c.clock)
	if l.leader {
		c.inflight.Done(l.hash)
	}
}

// canDecideTogether reports whether requests, each of which is valid, can be decided all or
// nothing. If not, the store returns the error.
func canDecideTogether(rs []Request) bool {
	for i := range rs {
		if rs[i].validateForAll() != nil {
			return false
		}
	}
	return validateTogether(rs) == nil
}

// peekUnanswered writes the decisions about the other requests of a TakeAll that is denied:
// those of idle keys, because the cache does not know how much their keys have used.
func peekUnanswered(ls []lookup, ds []Decision) {
	for i := range ls {
		if capacity := ls[i].limit.capacity; !ls[i].answered {
			ds[i] = Decision{Allowed: true, Limit: capacity, Remaining: capacity, Source: SourceDenyCache}
		}
	}
}

// sharesKey reports whether another request of the batch has the same key and
// limit.
func sharesKey(ls []lookup, i int) bool {
	for j := range ls {
		if j != i && ls[j].hash == ls[i].hash {
			return true
		}
	}
	return false
}
