package overload

import (
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/breaker"
	"github.com/penstock-io/penstock/internal/defaults"
)

// tooSlow is the outcome of a call that took longer than Slow, where slow calls are counted apart.
const tooSlow = Canceled + 1

const (
	defaultWindow      = 10 * time.Second
	defaultMinRequests = 10
	windowParts        = 10
)

// A tally counts the calls of a window, in parts that end one by one, and compares them with thresholds.
type tally struct {
	errorRatio, slowRatio   float64
	errorCount, minRequests int
	partLength              int64

	mu     sync.Mutex
	parts  [windowParts]callCounts
	newest int64 // the number of the newest part
}

type callCounts struct{ calls, failed, slow int }

// newTally returns nil if the options have no threshold.
func newTally(o *BreakerOptions) *tally {
	if !(o.ErrorRatio > 0 || o.ErrorCount > 0 || o.SlowRatio > 0) {
		return nil
	}
	return &tally{
		errorRatio: o.ErrorRatio, slowRatio: o.SlowRatio, errorCount: o.ErrorCount,
		minRequests: defaults.Or(o.MinRequests, defaultMinRequests),
		partLength:  max(int64(defaults.Duration(o.Window, defaultWindow))/windowParts, 1),
	}
}

// count adds calls, and reports whether the window is over a threshold. Then it is empty.
func (t *tally) count(now int64, n callCounts) (over bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	number := now / t.partLength
	for i := max(t.newest+1, number-windowParts+1); i <= number; i++ {
		t.parts[i%windowParts] = callCounts{}
	}
	t.newest = max(t.newest, number)
	t.parts[t.newest%windowParts].add(n)
	if over = t.isOver(); over {
		t.parts = [windowParts]callCounts{}
	}
	return over
}

func (c *callCounts) add(n callCounts) {
	c.calls += n.calls
	c.failed += n.failed
	c.slow += n.slow
}

func (t *tally) isOver() bool {
	var sum callCounts
	for i := range t.parts {
		sum.add(t.parts[i])
	}
	all := float64(sum.calls)
	return sum.calls >= t.minRequests && (t.errorCount > 0 && sum.failed >= t.errorCount ||
		t.errorRatio > 0 && float64(sum.failed) >= t.errorRatio*all || t.slowRatio > 0 && float64(sum.slow) >= t.slowRatio*all)
}

// countsOf returns n calls with an outcome.
func countsOf(o Outcome, n int) callCounts {
	c := callCounts{calls: n}
	switch o {
	case Failure:
		c.failed = n
	case tooSlow:
		c.slow = n
	}
	return c
}

// afterTime returns the outcome of a call that was sent at a time: success too late is none.
func (b *Breaker) afterTime(o Outcome, sent, now int64) Outcome {
	if o == Success && now-sent >= b.slow {
		return b.late
	}
	return o
}

// mustReport reports whether an outcome is counted.
func (b *Breaker) mustReport(o Outcome) bool {
	return o == Failure || b.tally != nil || b.state.IsCounting()
}

// record counts calls under thresholds, and opens the breaker if they are over one.
func (b *Breaker) record(t breaker.Ticket, now int64, n callCounts) (opened bool) {
	return b.state.IsCurrent(t) && b.tally.count(now, n) && b.state.Open(t, now)
}

// failOverdue counts calls that have been in flight for too long, and reports whether that opened the breaker.
func (b *Breaker) failOverdue(t breaker.Ticket, now int64, n int) (opened bool) {
	if b.tally != nil {
		return b.record(t, now, countsOf(b.late, n))
	}
	return b.state.FailAll(t, now, n)
}

// failAnswered counts the failure of a call whose success was counted before.
func (b *Breaker) failAnswered(t breaker.Ticket, now int64) {
	if b.tally != nil {
		b.record(t, now, callCounts{failed: 1})
		return
	}
	b.state.FailAnswered(t, now)
}
