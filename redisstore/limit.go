package redisstore

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
)

// tick is the step in which Redis's clock moves.
const tick = int64(time.Millisecond)

// maxCount is the most that a window can count to: the scripts write counts with
// fourteen digits.
const maxCount = 99_999_999_999_999

// A plan is a limit made ready for Redis: checked, and with its arithmetic and
// the arguments of its script worked out.
type plan struct {
	limit    penstock.Limit // as it was given
	normal   penstock.Limit
	step     algorithm.Step
	script   *Script
	once     *Script
	many     *Script
	identity string
	most     int64    // that could be granted at once
	memory   int64    // how long a grant under an ID is remembered, in ticks
	one      []string // the arguments of a take of one unit

	// One of these is in use, by limit.Algorithm.
	token   algorithm.TokenBucket
	leaky   algorithm.LeakyBucket
	fixed   algorithm.FixedWindow
	sliding algorithm.SlidingWindow

	unit   int64    // of a bucket's debt, in nanoseconds
	period int64    // of windows, in ticks
	shape  []string // the script's arguments behind the cost
	spans  atomic.Pointer[spans]

	seats    int // in a coach
	boarding sync.Mutex
	waiting  *coach       // that others may board; or nil
	riding   atomic.Int64 // trips under way
}

func newPlan(l penstock.Limit) (*plan, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	n := l.Normal()
	p := &plan{
		limit:    l,
		normal:   n,
		identity: identify(l),
		most:     n.Count,
		memory:   algorithm.RoundUp(int64(min(n.Period, 24*time.Hour)), tick) / tick,
		period:   algorithm.RoundUp(int64(n.Period), tick) / tick,
		seats:    seatsFor(&n),
	}
	if n.Algorithm > penstock.LeakyBucket && n.Count > maxCount {
		return nil, &penstock.FieldError{
			Field: "Count", Kind: penstock.ErrBadLimit,
			Problem: fmt.Sprintf("%d: Redis counts a %s to %d", n.Count, n.Algorithm, int64(maxCount)),
		}
	}
	p.prepare()
	p.script, p.once, p.many = stepScripts[p.step], onceScripts[p.step], manyScripts[p.step]
	p.one = p.arguments(algorithm.Ask{Cost: 1}, nil)
	return p, nil
}

// prepare works out the arithmetic, and what the script is told of the limit.
func (p *plan) prepare() {
	n := p.normal
	switch n.Algorithm {
	case penstock.TokenBucket:
		p.step = algorithm.TokenBucketStep
		p.token.Rate, _ = algorithm.NewRate(n.Count, int64(n.Period), n.Burst, tick)
		p.prepareBucket(&p.token.Rate)
	case penstock.LeakyBucket:
		p.step = algorithm.LeakyBucketStep
		p.leaky.Rate, _ = algorithm.NewRate(n.Count, int64(n.Period), n.Burst, tick)
		p.prepareBucket(&p.leaky.Rate)
	case penstock.FixedWindow:
		p.step = algorithm.FixedWindowStep
		p.fixed = algorithm.FixedWindow{Count: n.Count, Tick: tick}
		p.shape = texts(n.Count, p.period)
		if n.Align != penstock.AlignFirst {
			p.step = algorithm.AlignedWindowStep
			p.shape = texts(n.Count, p.period, algorithm.RoundDown(int64(n.Offset), tick)/tick)
		}
	case penstock.SlidingWindow:
		p.step = algorithm.SlidingWindowStep
		p.sliding = algorithm.SlidingWindow{Count: n.Count, Period: p.period * tick, Tick: tick}
		p.shape = texts(n.Count, p.period)
	case penstock.RollingWindow:
		p.step = algorithm.RollingWindowStep
		w := algorithm.NewRollingWindow(n.Count, int64(n.Period), int64(n.Buckets), tick)
		p.shape = texts(n.Count, w.Length/tick, w.Buckets)
	case penstock.SlidingLog:
		p.step = algorithm.SlidingLogStep
		p.shape = texts(n.Count, p.period)
	}
}

// prepareBucket works out a bucket's unit.
func (p *plan) prepareBucket(r *algorithm.Rate) {
	p.most = r.Burst
	p.unit = 1
	if 2*r.Capacity() >= 1<<53 { // see algorithm.Interval
		p.unit = 1000
	}
	p.shape = texts(r.Capacity() / p.unit)
}

func texts(numbers ...int64) []string {
	list := make([]string, len(numbers))
	for i, n := range numbers {
		list[i] = strconv.FormatInt(n, 10)
	}
	return list
}

// arguments appends what the script is told of an ask.
func (p *plan) arguments(ask algorithm.Ask, args []string) []string {
	switch p.step {
	case algorithm.TokenBucketStep, algorithm.LeakyBucketStep:
		return p.bucketArguments(ask, args)
	case algorithm.AlignedWindowStep:
		return p.alignedArguments(ask, args)
	}
	args = append(args, strconv.FormatInt(p.sent(ask), 10))
	args = append(args, p.shape...)
	if ask.AtMost {
		args = append(args, "1")
	}
	return args
}

// sent returns the cost that the script is told. A cost that can never fit is
// sent as a look, and no number is larger than a script can count.
func (p *plan) sent(ask algorithm.Ask) int64 {
	switch {
	case ask.Cost < 0:
		return max(ask.Cost, -maxCount)
	case ask.AtMost:
		return min(ask.Cost, p.most)
	case ask.Cost > p.most:
		return 0
	}
	return ask.Cost
}

// never reports whether an ask can never be granted.
func (p *plan) never(ask algorithm.Ask) bool {
	return ask.Cost > p.most && (!ask.AtMost || p.most == 0)
}

func (p *plan) rate() *algorithm.Rate {
	if p.step == algorithm.LeakyBucketStep {
		return &p.leaky.Rate
	}
	return &p.token.Rate
}

// bucketArguments appends a charge in units of debt. What a plain take does not
// need is left out.
func (p *plan) bucketArguments(ask algorithm.Ask, args []string) []string {
	r := p.rate()
	cost := p.sent(ask)
	if cost < 0 {
		reach := algorithm.TokenBucket{Rate: *r}
		cost = max(cost, -(r.Capacity()+reach.Reach())/r.Interval-1)
	}
	args = append(args, strconv.FormatInt(cost*r.Interval/p.unit, 10))
	args = append(args, p.shape...)
	if !ask.AtMost && ask.MaxDelay == 0 && p.unit == 1 {
		return args
	}
	bound, interval, mark := p.bound(ask), "", ""
	if ask.AtMost {
		interval = strconv.FormatInt(r.Interval/p.unit, 10)
	}
	if p.unit != 1 {
		mark = "u"
	}
	return append(args, bound, interval, mark)
}

// bound returns how far the debt of a token bucket may grow, or above which debt
// a leaky bucket's delay is too long.
func (p *plan) bound(ask algorithm.Ask) string {
	if ask.MaxDelay == 0 {
		return ""
	}
	delay := algorithm.RoundDown(ask.MaxDelay, tick)
	if p.step == algorithm.LeakyBucketStep {
		return strconv.FormatInt(min(delay, p.leaky.Capacity())/p.unit, 10)
	}
	return strconv.FormatInt((p.token.Capacity()+min(delay, p.token.Reach()))/p.unit, 10)
}

// extraLives are how much longer than its window a key may live, in thousandths of
// the window: few keys share one, and none depends on when in the window the key was
// written last.
var extraLives = func() (thousandths [101]string) {
	for i := range thousandths {
		thousandths[i] = strconv.Itoa(i)
	}
	return thousandths
}()

func (p *plan) alignedArguments(ask algorithm.Ask, args []string) []string {
	atMost := ""
	if ask.AtMost {
		atMost = "1"
	}
	extra := extraLives[rand.IntN(len(extraLives))] //nolint:gosec // it only spreads expiries
	cost := strconv.FormatInt(p.sent(ask), 10)
	if ask.Cost == algorithm.Forget {
		cost = "all" // also what a clock could step back to
	}
	args = append(args, cost, p.shape[0], atMost, extra)
	if p.normal.Align == penstock.AlignClock {
		return append(args, p.shape[1], p.shape[2])
	}
	args = append(args, "")
	if s := p.spans.Load(); s != nil {
		args = append(args, s.texts...)
	}
	return args
}

// spans are the instants at which windows of a calendar begin, around now.
type spans struct {
	starts []int64 // in ticks
	texts  []string
}

// around returns the windows around an instant, in ticks: the one before it, its
// own, and the one after.
func (p *plan) around(now int64) *spans {
	start, end := p.normal.Window(time.UnixMilli(now))
	before, _ := p.normal.Window(start.Add(-1))
	_, after := p.normal.Window(end)
	s := &spans{}
	for _, t := range []time.Time{before, start, end, after} {
		s.starts = append(s.starts, algorithm.RoundDown(t.UnixNano(), tick)/tick)
	}
	s.texts = texts(s.starts...)
	return s
}

// center makes the calendar's windows those around now, unless they are already.
func (p *plan) center(now int64) {
	if p.normal.Align <= penstock.AlignClock {
		return
	}
	if s := p.spans.Load(); s == nil || now < s.starts[1] || now >= s.starts[2] {
		p.spans.Store(p.around(now))
	}
}

// window returns the fixed window around now, in ticks.
func (p *plan) window(now int64) algorithm.Window {
	if p.normal.Align == penstock.AlignClock {
		offset := algorithm.RoundDown(int64(p.normal.Offset), tick)
		return algorithm.Aligned(now*tick, p.period*tick, offset)
	}
	s := p.spans.Load()
	if s == nil || now < s.starts[0] || now >= s.starts[3] {
		s = p.around(now)
	}
	i := 0
	for now >= s.starts[i+1] && i+2 < len(s.starts) { // no calendar reaches to the end of all numbers
		i++
	}
	return algorithm.Window{End: s.starts[i+1] * tick, Length: (s.starts[i+1] - s.starts[i]) * tick}
}

// plans keeps plans for the limits that are asked about, and knows which limit
// has which identity.
type plans struct {
	slots [1024]atomic.Pointer[plan]
	owner sync.Map // identity → the limit's identity in full
	known atomic.Int64
}

// maxKnown is how many identities are remembered, to notice when two limits
// have the same by accident.
const maxKnown = 1 << 14

var seed = maphash.MakeSeed()

func (c *plans) get(l penstock.Limit) (*plan, error) {
	slot := &c.slots[mix(&l)%uint64(len(c.slots))]
	if p := slot.Load(); p != nil && p.limit == l {
		return p, nil
	}
	p, err := newPlan(l)
	if err == nil {
		err = c.own(p)
	}
	if err != nil {
		return nil, err
	}
	slot.Store(p)
	return p, nil
}

// mix tells limits apart well enough to spread them over a cache, in less time
// than a real hash of all fields takes.
func mix(l *penstock.Limit) uint64 {
	h := maphash.String(seed, l.Name)
	if l.Zone != "" {
		h ^= maphash.String(seed, l.Zone) << 1
	}
	for _, field := range [...]uint64{
		uint64(l.Count), uint64(l.Period), uint64(l.Burst), uint64(l.Offset),
		uint64(l.Buckets)<<16 | uint64(l.Align)<<8 | uint64(l.Algorithm),
	} {
		h = (h ^ field) * 0x9e3779b97f4a7c15
	}
	return h >> 32
}

// own returns an error if another limit has the same identity by accident.
func (c *plans) own(p *plan) error {
	if c.known.Load() >= maxKnown {
		return nil
	}
	full := p.limit.Identity()
	owner, known := c.owner.LoadOrStore(p.identity, full)
	if !known {
		c.known.Add(1)
	}
	if owner == full {
		return nil
	}
	return &penstock.FieldError{Field: "Name", Kind: penstock.ErrBadLimit, Problem: fmt.Sprintf(
		"%q: this limit and %s would be taken for one another in Redis; give one of them another name",
		p.limit.Name, owner.(penstock.Limit))}
}
