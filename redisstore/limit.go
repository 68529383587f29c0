package redisstore

import (
	"fmt"
	"hash/maphash"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/redisstore/internal/script"
)

// tick is the resolution of Redis's clock.
const tick = int64(time.Millisecond)

// maxCount is the most that a window can count to: the scripts write counts with
// fourteen digits.
const maxCount = 99_999_999_999_999

// A compiledLimit is a validated limit with its arithmetic, its scripts, their
// arguments, and the batch that its takes can join.
type compiledLimit struct {
	limit       penstock.Limit // as it was given
	normal      penstock.Limit
	identity    identity
	capacity    int64 // the most that can be granted at once
	overdraft   int64 // how much more a charge may take
	recordTTL   int64 // how long a grant under an ID is remembered, in ticks
	step        script.Step
	scripts     *stepScripts
	limitArgs   []string // the script's arguments after the cost
	countArg    string   // of takes of permits
	debtArg     string   // the overdraft, if it is not the capacity
	oneUnitArgs []string // all arguments of a take of one unit
	onceArgs    [3]string

	// One of these is in use, by step; logs, rings and permits are decided by their
	// scripts.
	token   algorithm.TokenBucket
	leaky   algorithm.LeakyBucket
	fixed   algorithm.FixedWindow
	sliding algorithm.SlidingWindow

	debtUnit int64 // of a bucket's debt, in nanoseconds; 0 for windows
	period   int64 // of windows, in ticks
	calendar atomic.Pointer[calendarWindows]

	batchQueue             // of takes without a record
	onceQueue   batchQueue // of takes under an ID
	settleQueue batchQueue
	releases    batchQueue // of permits

	serial uint64 // distinguishes it from all other compiled limits
}

// limitSerial is the serial of the last compiled limit.
var limitSerial atomic.Uint64

func compileLimit(l penstock.Limit) (*compiledLimit, error) {
	if err := l.Validate(); err != nil {
		return nil, err
	}
	n := l.Normal()
	if err := checkCounts(n); err != nil {
		return nil, err
	}
	cl := &compiledLimit{
		limit:     l,
		normal:    n,
		identity:  identify(l),
		capacity:  n.Capacity(),
		overdraft: n.MaxDebt(),
		recordTTL: algorithm.RoundUp(int64(min(n.Period, 24*time.Hour)), tick) / tick,
		period:    algorithm.RoundUp(int64(n.Period), tick) / tick,
		serial:    limitSerial.Add(1),
	}
	cl.maxBatch = maxBatchFor(&n)
	cl.releases.maxBatch = cl.maxBatch
	cl.onceQueue.maxBatch = max(cl.maxBatch/stepsPerID, 1)
	cl.settleQueue.maxBatch = cl.onceQueue.maxBatch
	cl.compileStep()
	cl.setDebtArg()
	cl.setOnceArgs()
	cl.scripts = &scriptsOf[cl.step]
	cl.oneUnitArgs = cl.appendArgs(algorithm.Request{Cost: 1}, nil)
	return cl, nil
}

// checkCounts returns an error if a script cannot count what a window may count.
func checkCounts(n penstock.Limit) error {
	field, count := "Count", n.Count
	if n.Debt > maxCount {
		field, count = "Debt", n.Debt
	}
	if n.Algorithm <= penstock.LeakyBucket || count <= maxCount {
		return nil
	}
	return &penstock.FieldError{
		Field: field, Kind: penstock.ErrBadLimit,
		Problem: fmt.Sprintf("%d: Redis counts a %s to %d", count, n.Algorithm, int64(maxCount)),
	}
}

// compileStep sets the arithmetic of the limit's step, and the limit's arguments
// of its script.
func (cl *compiledLimit) compileStep() {
	n := cl.normal
	switch n.Algorithm {
	case penstock.TokenBucket:
		cl.step = script.TokenBucket
		cl.token.Rate, _ = algorithm.NewRate(n.Count, int64(n.Period), n.Burst, cl.overdraft, tick)
		cl.setDebtUnit(&cl.token.Rate)
	case penstock.LeakyBucket:
		cl.step = script.LeakyBucket
		cl.leaky.Rate, _ = algorithm.NewRate(n.Count, int64(n.Period), n.Burst, cl.overdraft, tick)
		cl.setDebtUnit(&cl.leaky.Rate)
	case penstock.FixedWindow:
		cl.step = script.FixedWindow
		cl.fixed = algorithm.FixedWindow{Count: n.Count, Overdraft: cl.overdraft, Tick: tick}
		cl.limitArgs = formatInts(n.Count, cl.period)
		if n.Align != penstock.AlignFirst {
			cl.step = script.AlignedWindow
			cl.limitArgs = formatInts(n.Count, cl.period, algorithm.RoundDown(int64(n.Offset), tick)/tick)
		}
	case penstock.SlidingWindow:
		cl.step = script.SlidingWindow
		cl.sliding = algorithm.SlidingWindow{Count: n.Count, Overdraft: cl.overdraft, Period: cl.period * tick, Tick: tick}
		cl.limitArgs = formatInts(n.Count, cl.period)
	case penstock.RollingWindow:
		cl.step = script.RollingWindow
		w := algorithm.NewRollingWindow(n.Count, int64(n.Period), int64(n.Buckets), tick)
		cl.limitArgs = formatInts(n.Count, w.Length/tick, w.Buckets)
	case penstock.SlidingLog:
		cl.step = script.SlidingLog
		cl.limitArgs = formatInts(n.Count, cl.period)
	case penstock.Concurrent:
		cl.step = script.Concurrent
		cl.limitArgs = formatInts(cl.period)
		cl.countArg = strconv.FormatInt(n.Count, 10)
	}
}

// setDebtUnit chooses nanoseconds for a bucket's debt, or microseconds where Lua's
// numbers would not hold nanoseconds exactly.
func (cl *compiledLimit) setDebtUnit(r *algorithm.Rate) {
	cl.debtUnit = 1
	if 2*max(r.Capacity(), r.Overdraft*r.Interval) >= 1<<53 { // see algorithm.Interval
		cl.debtUnit = 1000
	}
	cl.limitArgs = formatInts(r.Capacity() / cl.debtUnit)
}

// setDebtArg sets the argument for the overdraft. Scripts for aligned windows always
// get it, the others only where it is not the default.
func (cl *compiledLimit) setDebtArg() {
	switch {
	case cl.step != script.AlignedWindow && cl.overdraft == cl.capacity:
	case cl.debtUnit == 0:
		cl.debtArg = strconv.FormatInt(cl.overdraft, 10)
	default:
		cl.debtArg = strconv.FormatInt(cl.overdraft*cl.rate().Interval/cl.debtUnit, 10)
	}
}

func formatInts(numbers ...int64) []string {
	list := make([]string, len(numbers))
	for i, n := range numbers {
		list[i] = strconv.FormatInt(n, 10)
	}
	return list
}

func (cl *compiledLimit) rate() *algorithm.Rate {
	if cl.step == script.LeakyBucket {
		return &cl.leaky.Rate
	}
	return &cl.token.Rate
}

// calendarWindows are three consecutive windows of a calendar.
type calendarWindows struct {
	starts []int64 // of the three windows and the one after, in ticks
	texts  []string
}

// windowsAround returns the calendar windows before, around and after an instant,
// in ticks.
func (cl *compiledLimit) windowsAround(now int64) *calendarWindows {
	start, end := cl.normal.Window(time.UnixMilli(now))
	before, _ := cl.normal.Window(start.Add(-1))
	_, after := cl.normal.Window(end)
	w := &calendarWindows{}
	for _, t := range []time.Time{before, start, end, after} {
		w.starts = append(w.starts, algorithm.RoundDown(t.UnixNano(), tick)/tick)
	}
	w.texts = formatInts(w.starts...)
	return w
}

// centerCalendar replaces the calendar windows if now is not in the middle one.
func (cl *compiledLimit) centerCalendar(now int64) {
	if cl.normal.Align <= penstock.AlignClock {
		return
	}
	if w := cl.calendar.Load(); w == nil || now < w.starts[1] || now >= w.starts[2] {
		cl.calendar.Store(cl.windowsAround(now))
	}
}

// window returns the fixed window around now, in ticks.
func (cl *compiledLimit) window(now int64) algorithm.Window {
	if cl.normal.Align == penstock.AlignClock {
		offset := algorithm.RoundDown(int64(cl.normal.Offset), tick)
		return algorithm.Aligned(now*tick, cl.period*tick, offset)
	}
	w := cl.calendar.Load()
	if w == nil || now < w.starts[0] || now >= w.starts[3] {
		w = cl.windowsAround(now)
	}
	i := 0
	for now >= w.starts[i+1] && i+2 < len(w.starts) { // a forged reply can be beyond any calendar
		i++
	}
	return algorithm.Window{End: w.starts[i+1] * tick, Length: (w.starts[i+1] - w.starts[i]) * tick}
}

// A limitCache holds compiled limits, and detects limits with the same identity.
//
// Package penstock has another cache for Memory. The two share no code: a
// compiled limit there is arithmetic for a table, and here scripts, their arguments
// and an open batch.
type limitCache struct {
	slots      [1024]atomic.Pointer[compiledLimit]
	identities identityTable
}

func (c *limitCache) get(l penstock.Limit) (*compiledLimit, error) {
	slot := &c.slots[hashLimit(&l)%uint64(len(c.slots))]
	if cl := slot.Load(); cl != nil && cl.limit == l {
		return cl, nil
	}
	cl, err := compileLimit(l)
	if err == nil {
		err = c.identities.claim(cl.identity)
	}
	if err != nil {
		return nil, err
	}
	slot.Store(cl)
	return cl, nil
}

var seed = maphash.MakeSeed()

// hashLimit spreads limits over the cache. It takes less than half the time of
// [maphash.Comparable].
func hashLimit(l *penstock.Limit) uint64 {
	h := maphash.String(seed, l.Name)
	if l.Zone != "" {
		h ^= maphash.String(seed, l.Zone) << 1
	}
	shape := uint64(l.Buckets)<<32 | uint64(l.Align)<<8 | uint64(l.Algorithm)
	if l.Untrusted {
		shape |= 1 << 16
	}
	for _, field := range [...]uint64{uint64(l.Count), uint64(l.Period), uint64(l.Burst), uint64(l.Debt), uint64(l.Offset), shape} {
		h = (h ^ field) * 0x9e3779b97f4a7c15
	}
	return h >> 32
}
