package algorithmtest

import (
	"fmt"
	"slices"

	"github.com/penstock-io/penstock/internal/algorithm"
)

var (
	fixedWindow = newKind("fixed-window", row{
		debt: true, newKey: func() key { return &fixedKey{} }, newLedger: newFixedLedger, refill: windowLength,
	})
	alignedWindow = newKind("aligned-window", row{
		debt: true, newKey: func() key { return &fixedKey{} }, newLedger: newFixedLedger, refill: windowLength,
	})
)

func windowLength(l limit, now int64) int64 { return l.windows.window(now).Length }

// A schedule is where the windows of a fixed window lie.
type schedule interface {
	window(now int64) algorithm.Window // for the algorithm
	endAfter(now int64) int64          // for the oracle
	shortest() int64                   // of the windows' lengths
}

// fromFirst has windows of one length that begin with their first unit.
type fromFirst struct{ length int64 }

func (f fromFirst) window(now int64) algorithm.Window {
	return algorithm.Window{End: now + f.length, Length: f.length}
}

func (f fromFirst) endAfter(now int64) int64 { return now + f.length }

func (f fromFirst) shortest() int64 { return f.length }

// onClock has windows of one length, one of which begins at an offset.
type onClock struct{ length, offset int64 }

func (c onClock) window(now int64) algorithm.Window {
	return algorithm.Aligned(now, c.length, c.offset)
}

// endAfter starts a whole number of lengths before now, plus the offset, and then adds
// whole windows.
func (c onClock) endAfter(now int64) int64 {
	end := now/c.length*c.length - 2*c.length + c.offset
	for end <= now {
		end += c.length
	}
	return end
}

func (c onClock) shortest() int64 { return c.length }

// calendar has windows of several lengths, in turn, like months. The first begins at or
// before zero.
type calendar struct {
	start   int64
	lengths []int64
}

func (c calendar) window(now int64) algorithm.Window {
	turn := int64(0)
	for _, length := range c.lengths {
		turn += length
	}
	start := c.start + (now-c.start)/turn*turn
	for _, length := range c.lengths {
		if now < start+length {
			return algorithm.Window{End: start + length, Length: length}
		}
		start += length
	}
	return algorithm.Window{} // unreachable
}

func (c calendar) endAfter(now int64) int64 { return c.window(now).End }

func (c calendar) shortest() int64 { return slices.Min(c.lengths) }

type fixedKey struct {
	limit   algorithm.FixedWindow
	windows schedule
	counter algorithm.Counter
}

func (k *fixedKey) decide(now int64, req algorithm.Request) result {
	after, v := k.limit.Decide(k.counter, now, k.windows.window(now), req)
	k.counter = after
	return result{v, k.limit.Balance(k.counter, now)}
}

func (k *fixedKey) refundDue(now, units, due int64) (r result) {
	k.counter, r.Outcome = k.limit.RefundDue(k.counter, now, k.windows.window(now), units, due)
	r.Balance = k.limit.Balance(k.counter, now)
	return r
}

func (k *fixedKey) change(l limit) {
	k.limit = algorithm.FixedWindow{Count: l.count, Overdraft: l.overdraft, Tick: l.tick}
	k.windows = l.windows
}

func (k *fixedKey) fork() key { copied := *k; return &copied }

// state describes the counter of the open window.
func (k *fixedKey) state(now int64) string {
	if k.counter.End <= now {
		return "unused"
	}
	return fmt.Sprintf("%+v", k.counter)
}

func (k *fixedKey) valid(now int64) bool {
	c := k.counter
	return c == algorithm.Counter{} || c.Used > 0 && c.End <= now+k.windows.window(now).Length
}

// A fixedLedger counts everything in its history until the open window ends.
type fixedLedger struct {
	windowLedger
	windows schedule
	end     int64 // of the open window
}

func newFixedLedger(l limit) ledger {
	f := &fixedLedger{windows: l.windows}
	f.count, f.overdraft = l.count, l.overdraft
	f.counts = func(t, _ int64) bool { return t < f.end }
	return f
}

// charge opens a window, unless one is open and something of it is used.
func (f *fixedLedger) charge(now, n int64) {
	if f.unused(now) {
		f.history, f.end = nil, f.windows.endAfter(now)
	}
	f.windowLedger.charge(now, n)
}

// storeWindows are those of a store, whose lengths are not known.
type storeWindows struct{ Windows }

func (s storeWindows) window(now int64) algorithm.Window { return s.Window(now) }

func (s storeWindows) endAfter(now int64) int64 { return s.Window(now).End }

func (s storeWindows) shortest() int64 { return 0 }
