package redisstore

import (
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
)

// tick is the resolution of Redis's clock.
const tick = int64(time.Millisecond)

// maxCount is the most that a window can count to: the scripts write counts with
// fourteen digits.
const maxCount = 99_999_999_999_999

// A compiledLimit is a validated limit with its arithmetic, its scripts, their
// arguments, and the batches that its takes can join.
type compiledLimit struct {
	limit     penstock.Limit // as it was given
	normal    penstock.Limit
	identity  identity
	capacity  int64 // the most that can be granted at once
	overdraft int64 // how much more a charge may take
	recordTTL int64 // how long a grant under an ID is remembered, in ticks
	step      int   // the index of its row in stepRows
	*stepRow
	scripts *stepScripts

	// Arguments of the script; see arguments.go.
	limitArgs     []string // after the cost
	optionArgs    []string // after how
	alwaysOptions bool
	clockArgs     []string // of windows on the clock
	changing      bool     // whether arguments change from call to call, as those of aligned windows do
	oneUnitArgs   []string // all arguments of a take of one unit
	onceArgs      struct{ unit, perTick, most string }
	unit          int64 // what one unit costs in the script
	perTick       int64 // how much of a bucket's debt time pays in a tick
	minCost       int64 // the lowest that the script can count

	arithmetic

	rate     algorithm.Rate // of a bucket
	debtUnit int64          // of a bucket's debt, in nanoseconds
	period   int64          // of windows, in ticks
	calendar atomic.Pointer[calendarWindows]

	weight      int        // of a take in a batch, in steps on a key that holds one number
	takes       batchQueue // without a record
	onceTakes   batchQueue // under an ID
	settlements batchQueue
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
		step:      stepOf(&n),
		unit:      1,
		minCost:   -2 * maxCount, // a count and its debt
		weight:    1,
		serial:    limitSerial.Add(1),
	}
	cl.alwaysOptions = cl.overdraft != cl.capacity
	cl.stepRow, cl.scripts = &stepRows[cl.step], &scriptsOf()[cl.step]
	cl.compile(cl)
	once := formatInts(cl.unit, cl.perTick, cl.maxCharge())
	cl.onceArgs.unit, cl.onceArgs.perTick, cl.onceArgs.most = once[0], once[1], once[2]
	cl.oneUnitArgs = cl.appendAsk(nil, oneUnit)
	cl.openQueues()
	return cl, nil
}

// openQueues sets the most takes of batches, so that scripts take about the same time under
// all limits. Sixty-four rings of a thousand buckets would outlast the default timeout.
func (cl *compiledLimit) openQueues() {
	most := max(maxBatch/cl.weight, 1)
	underID := max(most/stepsPerID, 1)
	cl.takes.open(cl.scripts.batch, most)
	cl.releases.open(cl.scripts.batch, most)
	cl.onceTakes.open(cl.scripts.onceBatch, underID)
	cl.settlements.open(cl.scripts.onceBatch, underID)
}

// checkCounts returns an error if a script cannot count what a window may count.
func checkCounts(n penstock.Limit) error {
	field, count := "Count", n.Count
	if n.Debt > maxCount {
		field, count = "Debt", n.Debt
	}
	if n.IsBucket() || count <= maxCount {
		return nil
	}
	return &penstock.FieldError{
		Field: field, Kind: penstock.ErrBadLimit,
		Problem: fmt.Sprintf("%d: Redis counts a %s to %d", count, n.Algorithm, int64(maxCount)),
	}
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
