package penstock

import (
	"context"
	"slices"
	"time"

	"github.com/penstock-io/penstock/internal/inflight"
	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/internal/setassoc"
)

// DenyCacheOptions are the settings of a [DenyCache]. The zero value is good for
// nearly everyone; a number that is not above zero means its default.
type DenyCacheOptions struct {
	// MaxKeys is how many denials are remembered at once, counting each pair of
	// key and limit; each takes some 80 bytes. When there are more, those that
	// end soonest are forgotten, and asked about again. Default: 65,536.
	MaxKeys int

	// MaxAge is the longest that a denial is remembered. It is also for how long
	// a key may be denied wrongly after somebody else, who does not go through
	// this cache, has given units of it back. Default, and most: one second.
	MaxAge time.Duration

	// Only says of which limits denials are remembered. It must be safe for
	// concurrent use. Default: all.
	Only func(Limit) bool

	// Now is the clock, for tests and simulations. It must be safe for
	// concurrent use. Default: the machine's monotonic clock.
	Now func() time.Time
}

// A DenyCache answers for a store when it knows that the answer is no. It is safe
// for concurrent use, runs no goroutine and needs no closing. [WithDenyCache]
// makes one.
//
// It never allows anything. A denial is remembered until its RetryAfter, counted
// from before the store was asked, so as long as units only come back by
// themselves, the store would have denied too. What gives units back through the
// cache (refunds, resets, another Count or Burst under the same name) makes it
// forget the key; what gives them back elsewhere is noticed within MaxAge.
//
// A remembered denial answers requests of at least its own cost under the same
// limit, with [SourceDenyCache] and times that go on counting down. The times are
// as true as the store's, but for one thing: when the last unit of a bucket was
// just taken, the cache works out by itself when there will be another, and where
// a unit does not last whole milliseconds that may be up to one too late. With
// costs above one, Remaining is the least that is left.
//
// Of a key that was denied, one caller at a time asks again, and the others wait
// for its answer, for five milliseconds at most. A denial that held when they began
// to wait is their answer too, even if its time is up by then.
type DenyCache struct {
	next     Store
	maxAge   int64
	only     func(Limit) bool
	clock    monotime.Clock
	signs    setassoc.Table[denialSign]
	sets     setassoc.Table[denialSet]
	inflight inflight.Calls
	meters   compiledCache
}

const (
	defaultDenials = 1 << 16
	maxDenialAge   = time.Second
)

// WithDenyCache returns a store that remembers for a moment what next has denied,
// so that somebody who keeps asking costs no trip. It is of use where next is
// elsewhere, as in Redis; a [Memory] denies just as fast. Nil options are all
// defaults.
func WithDenyCache(next Store, o *DenyCacheOptions) *DenyCache {
	if o == nil {
		o = &DenyCacheOptions{}
	}
	c := &DenyCache{next: next, maxAge: int64(maxDenialAge), only: o.Only, clock: monotime.New(o.Now)}
	if o.MaxAge > 0 {
		c.maxAge = int64(min(o.MaxAge, maxDenialAge))
	}
	keys := defaultDenials
	if o.MaxKeys > 0 {
		keys = o.MaxKeys
	}
	c.signs, c.sets = setassoc.New[denialSign](keys), setassoc.New[denialSet](keys)
	return c
}

// A question is what a request wants to know, as the cache sees it.
type question struct {
	meter *compiledLimit
	hash  uint64
	cost  int64 // how many units must be left for it to pass
	known bool  // whether a remembered denial may answer it
	began int64 // when it was asked first
	sent  int64
	epoch uint32 // of its key, when it was sent
	asker bool   // whether others may be waiting for the answer

	answered bool // whether a remembered denial did
}

// question returns what a request wants to know. It is not ok if the request is
// malformed, which the store will say.
func (c *DenyCache) question(r *Request) (q question, ok bool) {
	cl, err := c.meters.of(r)
	if err != nil || r.validateShape() != nil {
		return q, false
	}
	q = question{meter: cl, hash: hashOf(cl, r.Key), cost: r.Cost}
	if r.AtMost {
		q.cost = min(q.cost, 1)
	}
	if r.MaxDelay > 0 && cl.limit.Algorithm.isBucket() || c.only != nil && !c.only(r.Limit) {
		q.cost = 0 // no other denial says anything about it, nor its own about others
	}
	q.known = q.cost > 0 && r.ID == ""
	return q, true
}

// Take decides one request: from memory if it is known to be denied, or else by
// asking the store.
func (c *DenyCache) Take(ctx context.Context, r Request) (Decision, error) {
	if c.next == nil {
		return Decision{}, errNoStore
	}
	q, ok := c.question(&r)
	if !ok {
		return c.next.Take(ctx, r)
	}
	r.compiled = q.meter
	var d Decision
	if denied, err := c.enter(ctx, &q, &d); denied || err != nil {
		return d, err
	}
	d, err := c.next.Take(ctx, r)
	c.learn(&q, &d, err)
	return d, err
}

// enter answers a question from memory, or lets it pass, perhaps after waiting
// for the answer to another one.
func (c *DenyCache) enter(ctx context.Context, q *question, d *Decision) (denied bool, err error) {
	for {
		q.sent = c.clock.Now()
		if q.began == 0 {
			q.began = q.sent
		}
		wait := int64(inflight.MaxWait) - (q.sent - q.began)
		denied, landed := c.look(q, d, &c.inflight, wait > 0)
		if denied || landed == nil {
			return denied, nil
		}
		if err = inflight.Await(ctx, landed, time.Duration(wait)); err != nil {
			return false, err
		}
	}
}

// Cached returns what the cache remembers of a request that is surely denied, and
// asks nobody. It is for those who ask about several limits and can stop at the
// first that denies.
func (c *DenyCache) Cached(r Request) (d Decision, denied bool) {
	q, ok := c.question(&r)
	return d, ok && c.recall(&q, &d)
}

// recall answers a question from memory if it can, and waits for nobody.
func (c *DenyCache) recall(q *question, d *Decision) bool {
	q.sent = c.clock.Now()
	q.began = q.sent
	denied, _ := c.look(q, d, nil, false)
	return denied
}

// look looks for an answer in memory, or for somebody else who is asking.
func (c *DenyCache) look(q *question, d *Decision, f *inflight.Calls, patient bool) (denied bool, landed <-chan struct{}) {
	sign := c.signs.Of(q.hash)
	q.epoch = sign.epoch.Load()
	if !sign.used.Load() {
		return false, nil
	}
	return c.sets.Of(q.hash).enter(q, d, f, patient)
}

// learn takes note of what the store has said.
func (c *DenyCache) learn(q *question, d *Decision, err error) {
	sign := c.signs.Of(q.hash)
	var room denial
	var next *denial
	if err == nil && q.denied(d, &room) {
		next, room.until = &room, q.sent+min(room.until, c.maxAge)
	} else if !sign.used.Load() && !q.givesBack(err) {
		return
	}
	c.sets.Of(q.hash).learn(sign, q, d, err, next)
	if q.asker {
		c.inflight.Done(q.hash)
	}
}

// TakeEach decides every request by itself: what is known to be denied from
// memory, the rest in one trip. It is what [TakeEach] calls.
func (c *DenyCache) TakeEach(ctx context.Context, rs []Request, ds []Decision) error {
	var room [roomy]question
	qs, ok := c.questions(room[:0], rs)
	if !ok || len(ds) < len(rs) {
		return TakeEach(ctx, c.next, rs, ds)
	}
	var rest []Request
	for i := range qs {
		qs[i].known = qs[i].known && !askedBefore(qs, i)
		qs[i].answered = c.recall(&qs[i], &ds[i])
		if qs[i].answered && rest == nil {
			rest = append(make([]Request, 0, len(rs)), rs[:i]...)
		} else if !qs[i].answered && rest != nil {
			rest = append(rest, rs[i])
		}
	}
	err := takeRest(ctx, c.next, qs, rs, rest, ds)
	for i := range qs {
		if !qs[i].answered {
			c.learn(&qs[i], &ds[i], err)
		}
	}
	return err
}

// roomy is how many requests come together at most, as a rule.
const roomy = 8

// questions appends what requests want to know. It is not ok if one of them is
// malformed; the store will say which.
func (c *DenyCache) questions(qs []question, rs []Request) ([]question, bool) {
	for i := range rs {
		q, ok := c.question(&rs[i])
		if !ok {
			return nil, false
		}
		qs = append(qs, q)
	}
	return qs, true
}

// askedBefore reports whether a request comes after one about the same key that
// has to be asked. What that takes or gives back, the later one must see.
func askedBefore(qs []question, i int) bool {
	return slices.ContainsFunc(qs[:i], func(q question) bool { return q.hash == qs[i].hash && !q.answered })
}

// takeRest asks the requests that were not answered from memory, which are the
// rest unless that is nil: then all of them are.
func takeRest(ctx context.Context, next Store, qs []question, rs, rest []Request, ds []Decision) error {
	if rest == nil {
		return TakeEach(ctx, next, rs, ds)
	}
	if len(rest) == 0 {
		return nil
	}
	answers := make([]Decision, len(rest))
	if err := TakeEach(ctx, next, rest, answers); err != nil {
		return reindex(err, unanswered(qs))
	}
	for i := range qs {
		if !qs[i].answered {
			ds[i], answers = answers[0], answers[1:]
		}
	}
	return nil
}

// unanswered returns the places of the requests that were not answered from memory.
func unanswered(qs []question) (places []int) {
	for i := range qs {
		if !qs[i].answered {
			places = append(places, i)
		}
	}
	return places
}

// TakeAll decides the requests as one, by asking the store: one that is known to
// be denied refuses them all, but how the others stand only the store knows. It
// is what [TakeAll] calls.
func (c *DenyCache) TakeAll(ctx context.Context, rs []Request, ds []Decision) error {
	if len(rs) == 1 && len(ds) > 0 && rs[0].validateForAll() == nil {
		if d, denied := c.Cached(rs[0]); denied {
			ds[0] = d
			return nil
		}
	}
	var room [roomy]question
	qs, ok := c.questions(room[:0], rs)
	for i := range qs {
		qs[i].known = false
		c.recall(&qs[i], nil)
	}
	err := TakeAll(ctx, c.next, rs, ds)
	if !ok || len(ds) < len(rs) {
		return err
	}
	for i := range qs {
		if err != nil || sameKeyTwice(qs, i) {
			qs[i].cost = 0 // it was refused for what they cost together, or taken and given back
		}
		c.learn(&qs[i], &ds[i], err)
	}
	return err
}

func sameKeyTwice(qs []question, i int) bool {
	for j := range qs {
		if j != i && qs[j].hash == qs[i].hash {
			return true
		}
	}
	return false
}
