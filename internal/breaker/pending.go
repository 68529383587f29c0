package breaker

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Pending counts the calls in flight by when they were sent, to find those that
// hang. Calls are not registered one by one: time is divided into spans, and each
// span has one counter. It is safe for concurrent use.
type Pending struct {
	slow    int64
	shift   uint         // a span is 1<<shift nanoseconds: finding it needs no division
	sweepAt atomic.Int64 // no call is overdue before
	slots   [4 * spansPerSlow]atomic.Uint64

	// displaced counts overdue calls whose slot a later span needed before a sweep, which
	// happens to callers that are delayed for several times slow after they read the clock.
	displaced atomic.Uint64
}

// A slot holds the count of one span in its low bits, and above it a mark that
// identifies the span: its number and the generation of the breaker.
const (
	spansPerSlow = 16 // at least, so that a call is overdue at most a sixteenth late
	countBits    = 24
	countMask    = 1<<countBits - 1
	numberBits   = 24
	numberMask   = 1<<numberBits - 1
)

// Init sets after which time a call is overdue.
func (p *Pending) Init(slow time.Duration) {
	p.slow = int64(slow)
	p.shift = uint(bits.Len64(uint64(max(p.slow/spansPerSlow, 1)))) - 1
}

// Add counts a call that is sent now, and returns its mark.
func (p *Pending) Add(generation uint64, now int64) (mark uint64) {
	number := uint64(now) >> p.shift
	mark = generation<<(countBits+numberBits)>>countBits | number&numberMask
	slot := &p.slots[number%uint64(len(p.slots))]
	if v := slot.Load(); v>>countBits == mark && slot.CompareAndSwap(v, v+1) {
		return mark
	}
	return p.addTo(slot, mark)
}

func (p *Pending) addTo(slot *atomic.Uint64, mark uint64) uint64 {
	for {
		v := slot.Load()
		if v&countMask > 0 && isNewer(v>>countBits, mark) {
			mark = v >> countBits // the caller was delayed after it read the clock
		}
		next := mark<<countBits | 1
		if v>>countBits == mark {
			next = v + 1
		}
		if slot.CompareAndSwap(v, next) {
			if v>>countBits != mark && v&countMask > 0 {
				p.displace(v)
			}
			return mark
		}
	}
}

// displace keeps the calls of a slot for the next sweep, unless later generations have some.
func (p *Pending) displace(v uint64) {
	for {
		d, next := p.displaced.Load(), v
		if d&countMask > 0 {
			switch {
			case generationOf(d) == generationOf(v):
				next = d + v&countMask
			case isNewer(d>>countBits, v>>countBits):
				return
			}
		}
		if p.displaced.CompareAndSwap(d, next) {
			return
		}
	}
}

// generationOf returns the low bits of the generation of a slot.
func generationOf(v uint64) uint64 { return v >> (countBits + numberBits) }

// isNewer reports whether a mark belongs to a later generation or span than
// another. Both wrap around.
func isNewer(mark, other uint64) bool {
	const bits = countBits // of a word that are not in a mark
	return int64(mark<<bits-other<<bits) > 0
}

// Remove reports whether the call with that mark was still counted, and removes
// it. Otherwise it has been swept.
func (p *Pending) Remove(mark uint64) bool {
	slot := &p.slots[mark&numberMask%uint64(len(p.slots))]
	for {
		v := slot.Load()
		if v>>countBits != mark || v&countMask == 0 {
			return false
		}
		if slot.CompareAndSwap(v, v-1) {
			return true
		}
	}
}

// SweepDue reports whether a call may be overdue. It is only for speed: Sweep finds
// nothing otherwise.
func (p *Pending) SweepDue(now int64) bool { return now >= p.sweepAt.Load() }

// Sweep removes the overdue calls, and returns how many of them belong to the
// generation. Each call is returned at most once.
func (p *Pending) Sweep(generation uint64, now int64) (overdue int) {
	if !p.SweepDue(now) {
		return 0
	}
	last := (now-p.slow)>>p.shift - 1 // the last span of which all calls are overdue
	p.sweepAt.Store((last+2)<<p.shift + p.slow)
	for i := range p.slots {
		overdue += sweepSlot(&p.slots[i], generation, uint64(last))
	}
	return overdue + sweepSlot(&p.displaced, generation, uint64(last))
}

func sweepSlot(slot *atomic.Uint64, generation, last uint64) int {
	for {
		v := slot.Load()
		age := (last - v>>countBits) & numberMask
		if v&countMask == 0 || age > numberMask/2 { // younger than last
			return 0
		}
		if !slot.CompareAndSwap(v, 0) {
			continue
		}
		if generationOf(v) != generation<<(countBits+numberBits)>>(countBits+numberBits) {
			return 0
		}
		return int(v & countMask)
	}
}
