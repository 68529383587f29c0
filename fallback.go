package penstock

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/breaker"
	"github.com/penstock-io/penstock/internal/monotime"
)

// FallbackOptions are the settings of a [Fallback]. The zero value is good for one
// process alone; where several share the first store, set Share. A number that is
// not above zero means its default.
type FallbackOptions struct {
	// Timeout is how long the first store may take to answer. A store that
	// keeps to a shorter time by itself, as that on Redis does, and says so by a
	// method Timeout() time.Duration, is not watched: that costs a little on every
	// call. Default: 50 milliseconds.
	Timeout time.Duration

	// Failures is how many calls in a row have to fail for the first store to be
	// given up for a while. Half of all calls within one second, if these are at
	// least 20, have the same effect. Default: 5.
	Failures int

	// Retry is how long after that the first store is tried again, give or take
	// a fifth. Default: a quarter of a second.
	Retry time.Duration

	// Share is the part of every limit that this process may grant by itself
	// while the first store is away: with N processes, 1/N. It is never less
	// than one unit. Default: 1, all of it.
	Share float64

	// OnFailure says what becomes of requests under a limit while the first
	// store is away, and by which share; a share that is not above zero is the
	// one above. It must be safe for concurrent use. Default: FailLocal for all.
	OnFailure func(l Limit) (mode FailureMode, share float64)

	// OnChange is called when the first store, or a shard of it, is given up, and
	// when it is back: beside the decisions, one call at a time. What it was told last
	// is how things are; of what has come and gone while it was busy it hears nothing.
	// Default: nobody is told.
	OnChange func(FallbackChange)

	// MaxKeys is how many keys may wait to have settled what was spent while the
	// first store was away. What is spent of others is never charged to it.
	// Default: 65,536.
	MaxKeys int

	// Now is the clock, for tests and simulations. It must be safe for
	// concurrent use. Default: the machine's monotonic clock.
	Now func() time.Time
}

// A FailureMode says who decides under a limit while the first store is away.
type FailureMode uint8

// The failure modes. Whatever can never be granted is denied in any of them.
const (
	FailLocal  FailureMode = iota // the second store, by a share of the limit
	FailOpen                      // everything is allowed
	FailClosed                    // everything is denied
)

// A FallbackChange says that the first store, or a shard of it, was given up or is
// back.
type FallbackChange struct {
	Shard int   // 0, unless the first store has several
	Down  bool  // whether it was given up
	Err   error // why it was
}

// A Fallback decides by a second store while the first is away. It asks from
// goroutines of its own, which end by themselves, whether the first is back. It is
// safe for concurrent use and needs no closing. [WithFallback] makes one.
//
// A call that the first store does not answer is decided by the second at once,
// and after a few of these the first is not asked at all, until one call, made
// beside the others, finds it answering again. Nobody sees an error but those who
// asked for something that has no meaning, and those whose own context has ended.
// An error with a method Answered() bool that says yes is about its key alone: the
// second store decides about that, and the first is not away.
//
// While the first store is away, what this process admits of a key is at most
// what its share of the limit admits: Share·B + Share·r·T of a token bucket in any
// time T. What a call that was not answered in time has taken of the first store,
// if anything, stays taken. When the first is back, what was spent meanwhile, and
// has not come back by itself, is charged to it, as far as there is room. Under
// FailOpen there is no bound.
//
// What the second store grants under a Request.ID is charged to the first under the
// same ID: once, even if the first had granted it and the answer was lost. Until
// then each store knows only the IDs that it granted, and a refund goes to the store
// that is asked at the time: when the two differ, nothing is given back.
//
// Decisions of the second store have [SourceFallback]; their numbers are those of
// the share.
type Fallback struct {
	first, second Store
	timeout       time.Duration
	watched       bool // whether calls need a deadline of ours
	failures      int
	retry         time.Duration
	share         float64
	onFailure     func(Limit) (FailureMode, float64)
	onChange      func(FallbackChange)
	clock         monotime.Clock
	meters        compiledCache

	parts   []part
	shardOf func(key string) int // nil if there is one part

	telling  sync.Mutex
	told     bool // whether somebody is being told of changes
	identity settlementID
}

// A part of the first store can be away by itself.
type part struct {
	breaker breaker.Breaker
	ledger  ledger
	shard   int
	tryBy   atomic.Pointer[string] // a key of it, by which it is tried
	doubtAt atomic.Int64           // when to look next, if callers go without an answer
	told    bool                   // whether it was said to be away; this and why under telling
	why     error                  // it went
}

const (
	defaultFallbackTimeout  = 50 * time.Millisecond
	defaultFallbackFailures = 5
	defaultFallbackRetry    = 250 * time.Millisecond
	defaultFallbackKeys     = 1 << 16
)

// WithFallback returns a store that asks first, and lets second decide while first
// is away. A nil second is a [Memory] of its own. Nil options are all defaults.
//
// A first store that consists of shards, any of which can be away by itself, says
// so by methods Shards() int and ShardOf(key string) int.
func WithFallback(first, second Store, o *FallbackOptions) *Fallback {
	if o == nil {
		o = &FallbackOptions{}
	}
	if second == nil {
		second = NewMemory(nil)
	}
	f := &Fallback{
		first: first, second: second,
		timeout:   orDefault(o.Timeout, defaultFallbackTimeout),
		failures:  orDefault(o.Failures, defaultFallbackFailures),
		retry:     orDefault(o.Retry, defaultFallbackRetry),
		share:     min(orDefault(o.Share, 1), 1),
		onFailure: o.OnFailure,
		onChange:  o.OnChange,
		clock:     monotime.New(o.Now),
	}
	f.setParts(orDefault(o.MaxKeys, defaultFallbackKeys))
	own, ok := first.(TimeoutStore)
	f.watched = !ok || own.Timeout() <= 0 || own.Timeout() > f.timeout
	return f
}

func (f *Fallback) setParts(maxKeys int) {
	n := 1
	if s, ok := f.first.(ShardedStore); ok && s.Shards() > 1 {
		n, f.shardOf = s.Shards(), s.ShardOf
	}
	f.parts = make([]part, n)
	for i := range f.parts {
		f.parts[i].shard = i
		f.parts[i].ledger.most = max(maxKeys/n, 1)
	}
}

func (f *Fallback) part(key string) *part {
	if f.shardOf == nil {
		return &f.parts[0]
	}
	return &f.parts[uint(f.shardOf(key))%uint(len(f.parts))]
}

// Down returns how many shards of the first store are away now, and of how many.
// Those that are it has tried again when it is time to, so that who waits for them
// before it sends any requests does not wait for ever.
func (f *Fallback) Down() (away, of int) {
	for i := range f.parts {
		if p := &f.parts[i]; p.breaker.IsOpen() {
			away++
			f.probe(p)
		}
	}
	return away, len(f.parts)
}

// Take decides one request.
func (f *Fallback) Take(ctx context.Context, r Request) (Decision, error) {
	if f.first == nil {
		return Decision{}, errNoStore
	}
	p := f.part(r.Key)
	sent := f.clock.Now()
	t, ok := p.breaker.Admit(sent)
	if !ok {
		return f.takeAway(ctx, p, &r)
	}
	back := int64(0)
	if r.Cost < 0 && p.ledger.owes() {
		d := f.giveBack(ctx, p, &r)
		if r.Cost == 0 {
			return d, nil
		}
		back = d.Granted
	}
	d, err := f.ask(ctx, r)
	switch {
	case err == nil:
		f.answered(p, t)
	case isMalformed(err):
	case !f.blames(ctx, sent):
		f.doubt(p, &r)
	default:
		f.failed(p, t, err)
		if ctx.Err() == nil {
			d, err = f.takeAway(ctx, p, &r)
		}
	}
	d.Granted += back
	return d, err
}

// ask asks the first store, for as long as it may take.
func (f *Fallback) ask(ctx context.Context, r Request) (Decision, error) {
	if f.watched {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	return f.first.Take(ctx, r)
}

// answered takes note that a call was.
func (f *Fallback) answered(p *part, t breaker.Ticket) {
	if p.breaker.IsCounting() {
		p.breaker.Succeed(t, f.clock.Now())
	}
	if p.ledger.owes() {
		f.settleSoon(p)
	}
}

// failed takes note that a call was not answered, and says so if it was one too
// many.
func (f *Fallback) failed(p *part, t breaker.Ticket, err error) {
	if isAnswer(err) {
		f.answered(p, t)
		return
	}
	if p.breaker.Fail(t, f.clock.Now(), f.failures, f.retry) {
		f.tell(p, err)
	}
}

// tell has it said that a part has changed, and why. No decision waits for that.
func (f *Fallback) tell(p *part, err error) {
	if f.onChange == nil {
		return
	}
	f.telling.Lock()
	defer f.telling.Unlock()
	p.why = err
	if !f.told {
		f.told = true
		go f.tellAll()
	}
}

// tellAll says how the parts are, one change after the other, until there is
// nothing new. So what was said last is true.
func (f *Fallback) tellAll() {
	for {
		c, ok := f.change()
		if !ok {
			return
		}
		f.onChange(c)
	}
}

// change returns a change that nobody was told of yet.
func (f *Fallback) change() (c FallbackChange, ok bool) {
	f.telling.Lock()
	defer f.telling.Unlock()
	for i := range f.parts {
		p := &f.parts[i]
		if away := p.breaker.IsOpen(); away != p.told {
			p.told = away
			return FallbackChange{Shard: p.shard, Down: away, Err: p.why}, true
		}
	}
	f.told = false
	return c, false
}

// blames reports whether it is the first store's fault that a call was not
// answered. It is not if the caller has gone before the store's time was up.
func (f *Fallback) blames(ctx context.Context, sent int64) bool {
	return ctx.Err() == nil || f.clock.Now()-sent >= int64(f.timeout)
}

// doubt looks whether the first store answers, after a caller has gone without an
// answer. Such a caller proves nothing; but where nobody waits for as long as the
// timeout, nothing else would show that a store hangs.
func (f *Fallback) doubt(p *part, r *Request) {
	now, at := f.clock.Now(), p.doubtAt.Load()
	if now < at || !p.doubtAt.CompareAndSwap(at, now+int64(f.timeout)) {
		return
	}
	t, ok := p.breaker.Admit(now)
	if !ok {
		return
	}
	look := Request{Key: strings.Clone(r.Key), Limit: r.Limit}
	go func() {
		if _, err := f.ask(context.Background(), look); err == nil {
			f.answered(p, t)
		} else if !isMalformed(err) {
			f.failed(p, t, err)
		}
	}()
}

// isMalformed reports whether an error says that a request has no meaning.
func isMalformed(err error) bool {
	return errors.Is(err, ErrBadLimit) || errors.Is(err, ErrBadKey) || errors.Is(err, ErrBadCost)
}

// isAnswer reports whether an error is a store's own answer about a key: one that it
// cannot decide about, though it is there. If those counted as failures, one such key
// could have the store given up for all.
func isAnswer(err error) bool {
	var about *KeyError
	return errors.As(err, &about)
}

// probeLimit is what the first store is tried by. It is taken of, and by nobody
// else, for a store may answer looks and still not be able to write.
var probeLimit = Limit{Algorithm: FixedWindow, Count: 1 << 30, Period: time.Second, Name: "penstock.probe"}

// probe tries the first store again, if it is time to. Where something waits to be
// settled it does that first.
func (f *Fallback) probe(p *part) {
	key := p.tryBy.Load()
	if key == nil || !p.breaker.StartProbe(f.clock.Now()) {
		return
	}
	go func() {
		err := f.settleSome(p, 1, true)
		if err == nil {
			_, err = f.ask(context.Background(), Request{Key: *key, Limit: probeLimit, Cost: 1})
		}
		p.breaker.EndProbe(err == nil || isMalformed(err), f.clock.Now(), f.retry)
		if !p.breaker.IsOpen() {
			f.tell(p, nil)
			f.settleSoon(p)
		}
	}()
}

// probeBy tries the first store again, if it is time to, and remembers a key to do so
// by.
func (f *Fallback) probeBy(p *part, r *Request) {
	if p.tryBy.Load() == nil {
		key := strings.Clone(r.Key)
		p.tryBy.Store(&key)
	}
	f.probe(p)
}

// TakeEach decides every request by itself: those whose shards are there in one
// trip. It is what [TakeEach] calls.
func (f *Fallback) TakeEach(ctx context.Context, rs []Request, ds []Decision) error {
	if err := f.check(rs, ds, (*Request).validateShape); err != nil {
		return err
	}
	if f.unsettled(rs) {
		return TakeEach(ctx, StoreFunc(f.Take), rs, ds)
	}
	var b fallbackBatch
	b.begin(f, rs)
	asked, err := b.takeEach(ctx, rs, ds)
	if err != nil {
		return err
	}
	for i := range rs {
		if asked && b.calls[i].ok {
			continue
		}
		if ds[i], err = f.takeAway(ctx, b.calls[i].part, &rs[i]); err != nil {
			return requestError(i, err)
		}
	}
	return nil
}

// TakeAll decides the requests as one. If one of them is about a shard that is
// away, the second store decides them all. It is what [TakeAll] calls.
func (f *Fallback) TakeAll(ctx context.Context, rs []Request, ds []Decision) error {
	if err := f.check(rs, ds, (*Request).validateForAll); err != nil {
		return err
	}
	var b fallbackBatch
	b.begin(f, rs)
	if b.all {
		asked, err := b.ask(ctx, TakeAll, rs, ds, nil)
		if asked || err != nil {
			return err
		}
	}
	return f.takeAllAway(ctx, b.calls, rs, ds)
}

// check returns an error if a request is malformed.
func (f *Fallback) check(rs []Request, ds []Decision, check func(*Request) error) error {
	if f.first == nil {
		return errNoStore
	}
	for i := range rs {
		err := check(&rs[i])
		if err == nil {
			_, err = f.meters.forRequest(&rs[i])
		}
		if err != nil {
			return requestError(i, err)
		}
	}
	return checkLengths(rs, ds)
}
