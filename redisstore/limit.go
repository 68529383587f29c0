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

// A compiledLimit is a limit made ready for Redis: checked, and with its arithmetic and
// the arguments of its script worked out.
type compiledLimit struct {
	limit       penstock.Limit // as it was given
	normal      penstock.Limit
	step        algorithm.Step
	takeScript  *Script
	onceScript  *Script
	batchScript *Script
	identity    string
	capacity    int64    // that could be granted at once
	recordTTL   int64    // how long a grant under an ID is remembered, in ticks
	oneUnitArgs []string // the arguments of a take of one unit

	// One of these is in use, by limit.Algorithm.
	token   algorithm.TokenBucket
	leaky   algorithm.LeakyBucket
	fixed   algorithm.FixedWindow
	sliding algorithm.SlidingWindow

	debtUnit  int64    // of a bucket's debt, in nanoseconds
	period    int64    // of windows, in ticks
	limitArgs []string // the script's arguments behind the cost
	calendar  atomic.Pointer[calendarWindows]

	maxBatch  int // in a coach
	batchMu   sync.Mutex
	openBatch *batch       // that others may board; or nil
	inFlight  atomic.Int64 // trips under way
}

func compileLimit(l penstock.Limit) (*compiledLimit, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	n := l.Normal()
	p := &compiledLimit{
		limit:     l,
		normal:    n,
		identity:  identify(l),
		capacity:  n.Count,
		recordTTL: algorithm.RoundUp(int64(min(n.Period, 24*time.Hour)), tick) / tick,
		period:    algorithm.RoundUp(int64(n.Period), tick) / tick,
		maxBatch:  maxBatchFor(&n),
	}
	if n.Algorithm > penstock.LeakyBucket && n.Count > maxCount {
		return nil, &penstock.FieldError{
			Field: "Count", Kind: penstock.ErrBadLimit,
			Problem: fmt.Sprintf("%d: Redis counts a %s to %d", n.Count, n.Algorithm, int64(maxCount)),
		}
	}
	p.prepare()
	p.takeScript, p.onceScript, p.batchScript = takeScripts[p.step], onceScripts[p.step], batchScripts[p.step]
	p.oneUnitArgs = p.appendArgs(algorithm.Ask{Cost: 1}, nil)
	return p, nil
}

// prepare works out the arithmetic, and what the script is told of the limit.
func (p *compiledLimit) prepare() {
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
		p.limitArgs = formatInts(n.Count, p.period)
		if n.Align != penstock.AlignFirst {
			p.step = algorithm.AlignedWindowStep
			p.limitArgs = formatInts(n.Count, p.period, algorithm.RoundDown(int64(n.Offset), tick)/tick)
		}
	case penstock.SlidingWindow:
		p.step = algorithm.SlidingWindowStep
		p.sliding = algorithm.SlidingWindow{Count: n.Count, Period: p.period * tick, Tick: tick}
		p.limitArgs = formatInts(n.Count, p.period)
	case penstock.RollingWindow:
		p.step = algorithm.RollingWindowStep
		w := algorithm.NewRollingWindow(n.Count, int64(n.Period), int64(n.Buckets), tick)
		p.limitArgs = formatInts(n.Count, w.Length/tick, w.Buckets)
	case penstock.SlidingLog:
		p.step = algorithm.SlidingLogStep
		p.limitArgs = formatInts(n.Count, p.period)
	}
}

// prepareBucket works out a bucket's unit.
func (p *compiledLimit) prepareBucket(r *algorithm.Rate) {
	p.capacity = r.Burst
	p.debtUnit = 1
	if 2*r.Capacity() >= 1<<53 { // see algorithm.Interval
		p.debtUnit = 1000
	}
	p.limitArgs = formatInts(r.Capacity() / p.debtUnit)
}

func formatInts(numbers ...int64) []string {
	list := make([]string, len(numbers))
	for i, n := range numbers {
		list[i] = strconv.FormatInt(n, 10)
	}
	return list
}

// appendArgs appends what the script is told of an ask.
func (p *compiledLimit) appendArgs(ask algorithm.Ask, args []string) []string {
	switch p.step {
	case algorithm.TokenBucketStep, algorithm.LeakyBucketStep:
		return p.appendBucketArgs(ask, args)
	case algorithm.AlignedWindowStep:
		return p.appendAlignedArgs(ask, args)
	}
	args = append(args, strconv.FormatInt(p.scriptCost(ask), 10))
	args = append(args, p.limitArgs...)
	if ask.AtMost {
		args = append(args, "1")
	}
	return args
}

// scriptCost returns the cost that the script is told. A cost that can never fit is
// sent as a look, and no number is larger than a script can count.
func (p *compiledLimit) scriptCost(ask algorithm.Ask) int64 {
	switch {
	case ask.Cost < 0:
		return max(ask.Cost, -maxCount)
	case ask.AtMost:
		return min(ask.Cost, p.capacity)
	case ask.Cost > p.capacity:
		return 0
	}
	return ask.Cost
}

// neverFits reports whether an ask can never be granted.
func (p *compiledLimit) neverFits(ask algorithm.Ask) bool {
	return ask.Cost > p.capacity && (!ask.AtMost || p.capacity == 0)
}

func (p *compiledLimit) rate() *algorithm.Rate {
	if p.step == algorithm.LeakyBucketStep {
		return &p.leaky.Rate
	}
	return &p.token.Rate
}

// appendBucketArgs appends a charge in units of debt. What a plain take does not
// need is left out.
func (p *compiledLimit) appendBucketArgs(ask algorithm.Ask, args []string) []string {
	r := p.rate()
	cost := p.scriptCost(ask)
	if cost < 0 {
		reach := algorithm.TokenBucket{Rate: *r}
		cost = max(cost, -(r.Capacity()+reach.Reach())/r.Interval-1)
	}
	args = append(args, strconv.FormatInt(cost*r.Interval/p.debtUnit, 10))
	args = append(args, p.limitArgs...)
	if !ask.AtMost && ask.MaxDelay == 0 && p.debtUnit == 1 {
		return args
	}
	bound, interval, mark := p.bound(ask), "", ""
	if ask.AtMost {
		interval = strconv.FormatInt(r.Interval/p.debtUnit, 10)
	}
	if p.debtUnit != 1 {
		mark = "u"
	}
	return append(args, bound, interval, mark)
}

// bound returns how far the debt of a token bucket may grow, or above which debt
// a leaky bucket's delay is too long.
func (p *compiledLimit) bound(ask algorithm.Ask) string {
	if ask.MaxDelay == 0 {
		return ""
	}
	delay := algorithm.RoundDown(ask.MaxDelay, tick)
	if p.step == algorithm.LeakyBucketStep {
		return strconv.FormatInt(min(delay, p.leaky.Capacity())/p.debtUnit, 10)
	}
	return strconv.FormatInt((p.token.Capacity()+min(delay, p.token.Reach()))/p.debtUnit, 10)
}

// extraTTLs are how much longer than its window a key may live, in thousandths of
// the window: few keys share one, and none depends on when in the window the key was
// written last.
var extraTTLs = func() (thousandths [101]string) {
	for i := range thousandths {
		thousandths[i] = strconv.Itoa(i)
	}
	return thousandths
}()

func (p *compiledLimit) appendAlignedArgs(ask algorithm.Ask, args []string) []string {
	atMost := ""
	if ask.AtMost {
		atMost = "1"
	}
	extra := extraTTLs[rand.IntN(len(extraTTLs))] //nolint:gosec // it only spreads expiries
	cost := strconv.FormatInt(p.scriptCost(ask), 10)
	if ask.Cost == algorithm.Forget {
		cost = "all" // also what a clock could step back to
	}
	args = append(args, cost, p.limitArgs[0], atMost, extra)
	if p.normal.Align == penstock.AlignClock {
		return append(args, p.limitArgs[1], p.limitArgs[2])
	}
	args = append(args, "")
	if s := p.calendar.Load(); s != nil {
		args = append(args, s.texts...)
	}
	return args
}

// calendarWindows are the instants at which windows of a calendar begin, around now.
type calendarWindows struct {
	starts []int64 // in ticks
	texts  []string
}

// windowsAround returns the windows around an instant, in ticks: the one before it, its
// own, and the one after.
func (p *compiledLimit) windowsAround(now int64) *calendarWindows {
	start, end := p.normal.Window(time.UnixMilli(now))
	before, _ := p.normal.Window(start.Add(-1))
	_, after := p.normal.Window(end)
	s := &calendarWindows{}
	for _, t := range []time.Time{before, start, end, after} {
		s.starts = append(s.starts, algorithm.RoundDown(t.UnixNano(), tick)/tick)
	}
	s.texts = formatInts(s.starts...)
	return s
}

// centerCalendar makes the calendar's windows those around now, unless they are already.
func (p *compiledLimit) centerCalendar(now int64) {
	if p.normal.Align <= penstock.AlignClock {
		return
	}
	if s := p.calendar.Load(); s == nil || now < s.starts[1] || now >= s.starts[2] {
		p.calendar.Store(p.windowsAround(now))
	}
}

// window returns the fixed window around now, in ticks.
func (p *compiledLimit) window(now int64) algorithm.Window {
	if p.normal.Align == penstock.AlignClock {
		offset := algorithm.RoundDown(int64(p.normal.Offset), tick)
		return algorithm.Aligned(now*tick, p.period*tick, offset)
	}
	s := p.calendar.Load()
	if s == nil || now < s.starts[0] || now >= s.starts[3] {
		s = p.windowsAround(now)
	}
	i := 0
	for now >= s.starts[i+1] && i+2 < len(s.starts) { // no calendar reaches to the end of all numbers
		i++
	}
	return algorithm.Window{End: s.starts[i+1] * tick, Length: (s.starts[i+1] - s.starts[i]) * tick}
}

// limitCache keeps plans for the limits that are asked about, and knows which limit
// has which identity.
type limitCache struct {
	slots  [1024]atomic.Pointer[compiledLimit]
	owners sync.Map // identity → the limit's identity in full
	known  atomic.Int64
}

// maxKnown is how many identities are remembered, to notice when two limits
// have the same by accident.
const maxKnown = 1 << 14

var seed = maphash.MakeSeed()

func (c *limitCache) get(l penstock.Limit) (*compiledLimit, error) {
	slot := &c.slots[mix(&l)%uint64(len(c.slots))]
	if p := slot.Load(); p != nil && p.limit == l {
		return p, nil
	}
	p, err := compileLimit(l)
	if err == nil {
		err = c.claimIdentity(p)
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

// claimIdentity returns an error if another limit has the same identity by accident.
func (c *limitCache) claimIdentity(p *compiledLimit) error {
	if c.known.Load() >= maxKnown {
		return nil
	}
	full := p.limit.Identity()
	owner, known := c.owners.LoadOrStore(p.identity, full)
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
