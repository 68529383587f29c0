// Package history keeps what counters did lately: their increase in each second of two
// minutes, in each ten seconds of an hour, and in each five minutes of a day. It has no
// clock: its owner reads the counters once a second and says which second it is.
package history

import (
	"math"
	"sync"
)

// A Resolution is how finely a span of time is kept.
type Resolution int

// The resolutions, from the finest.
const (
	Seconds     Resolution = iota // 120 steps of 1 s
	TenSeconds                    // 360 steps of 10 s
	FiveMinutes                   // 288 steps of 5 minutes
	resolutions
)

var (
	steps = [resolutions]int64{1, 10, 300} // seconds
	slots = [resolutions]int64{120, 360, 288}
)

// Step returns the length of a step in seconds.
func (r Resolution) Step() int64 { return steps[r] }

// Slots returns how many steps are kept.
func (r Resolution) Slots() int { return int(slots[r]) }

// MaxSeries is how many names have a series of their own. The rest share one.
const MaxSeries = 1000

// A History is the history of named counters, each of which consists of the same number of
// columns. It is safe for concurrent use.
type History struct {
	mu     sync.Mutex
	width  int
	second int64 // the last that was recorded, in Unix time; 0 before the first
	named  map[string]*counters
	owners int   // names with a series of their own
	sum    rings // of all names
	others rings // of the names without a series
}

// counters are what is known of one name.
type counters struct {
	last []uint64 // their values when they were last read
	own  *rings   // nil if the name shares the series of others
	tick int64    // the second of the last reading
}

// rings are the increases in the last steps, for each resolution. Step n of a resolution is
// at n modulo its slots; a step has one number for each column.
type rings [resolutions][]uint32

func newRings(width int) (r rings) {
	for i := range r {
		r[i] = make([]uint32, int(slots[i])*width)
	}
	return r
}

// New returns an empty history of counters with that many columns.
func New(width int) *History {
	return &History{width: width, named: map[string]*counters{}, sum: newRings(width), others: newRings(width)}
}

// Tick records the counters at the end of a second of Unix time. Read is called once; it
// calls record for each name with the counters' present values. Names that it leaves out
// are forgotten. A second that was recorded already is recorded again in addition.
func (h *History) Tick(second int64, read func(record func(name string, values []uint64))) {
	h.TickSome(second, read)
	h.mu.Lock()
	defer h.mu.Unlock()
	for name, c := range h.named {
		if c.tick != h.second {
			h.forget(name, c)
		}
	}
}

// TickSome is Tick without forgetting the names that are left out.
func (h *History) TickSome(second int64, read func(record func(name string, values []uint64))) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.advance(second)
	read(h.record)
}

func (h *History) forget(name string, c *counters) {
	if c.own != nil {
		h.owners--
	}
	delete(h.named, name)
}

// maxStepBack is how many seconds the clock may go back until history begins anew. By less,
// the last step goes on.
const maxStepBack = 30

// advance begins the steps up to a second.
func (h *History) advance(second int64) {
	if second < h.second-maxStepBack {
		h.second = 0
	}
	if second <= h.second {
		return
	}
	all := []*rings{&h.sum, &h.others}
	for _, c := range h.named {
		if c.own != nil {
			all = append(all, c.own)
		}
	}
	for i := range steps {
		before, now := h.second/steps[i], second/steps[i]
		for n := max(before+1, now-slots[i]+1); n <= now; n++ {
			for _, r := range all {
				clear(r.at(i, n, h.width))
			}
		}
	}
	h.second = second
}

// at returns the numbers of a step.
func (r *rings) at(resolution int, step int64, width int) []uint32 {
	i := int(step%slots[resolution]) * width
	return r[resolution][i : i+width]
}

// record adds the increase of a name's counters to the present steps. It ignores counters for which there
// is no column: this is no place to end a daemon because of its metrics.
func (h *History) record(name string, values []uint64) {
	values = values[:min(len(values), h.width)]
	c := h.named[name]
	if c == nil {
		c = &counters{}
		h.named[name] = c
	}
	if c.last == nil {
		c.last = make([]uint64, h.width)
	}
	if c.own == nil && h.owners < MaxSeries {
		own := newRings(h.width)
		c.own = &own
		h.owners++
	}
	for column, value := range values {
		h.add(c, column, increase(c.last[column], value))
	}
	copy(c.last, values)
	c.tick = h.second
}

// increase returns how much a counter grew. One that is smaller than before was reset.
func increase(before, now uint64) uint64 {
	if now < before {
		return now
	}
	return now - before
}

func (h *History) add(c *counters, column int, n uint64) {
	if n == 0 {
		return
	}
	target := &h.others
	if c.own != nil {
		target = c.own
	}
	for i := range steps {
		for _, r := range []*rings{target, &h.sum} {
			step := &r.at(i, h.second/steps[i], h.width)[column]
			*step = uint32(min(uint64(*step)+n, math.MaxUint32))
		}
	}
}

// Len returns how many names have a series of their own.
func (h *History) Len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.owners
}

// A Span is the increase of counters over time, the oldest step first: Columns[c][i] is
// that of column c in step i.
type Span struct {
	From    int64 // when the first step began, in Unix seconds
	Step    int64 // seconds
	Last    int64 // seconds that the last step covers so far
	Columns [][]uint64
}

// Sum returns the history of all names together.
func (h *History) Sum(r Resolution) Span {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.span(&h.sum, r)
}

// Others returns the history of the names without a series, and whether there are any.
func (h *History) Others(r Resolution) (Span, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.span(&h.others, r), len(h.named) > h.owners
}

// Of returns the history of a name, and whether it has one.
func (h *History) Of(name string, r Resolution) (Span, bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.named[name]
	if c == nil || c.own == nil {
		return Span{}, false
	}
	return h.span(c.own, r), true
}

func (h *History) span(of *rings, r Resolution) Span {
	step, n := steps[r], slots[r]
	last := h.second / step
	s := Span{From: (last - n + 1) * step, Step: step, Last: h.second - last*step + 1, Columns: make([][]uint64, h.width)}
	for c := range s.Columns {
		s.Columns[c] = make([]uint64, n)
	}
	if h.second == 0 {
		return s
	}
	for i := range n {
		for c, v := range of.at(int(r), last-n+1+i, h.width) {
			s.Columns[c][i] = uint64(v)
		}
	}
	return s
}
