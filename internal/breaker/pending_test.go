package breaker

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Against a list of all calls: each is swept once, after Slow and at most a
// sixteenth later if there are sweeps, or is removed before.
func TestPendingSweepsEachOverdueCallOnce(t *testing.T) {
	const slow = int64(1600)
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var p Pending
		p.Init(time.Duration(slow))
		type call struct {
			sent int64
			mark uint64
		}
		var calls []call
		now := int64(1)
		for range 500 {
			now += rng.Int64N(slow / 4)
			if rng.IntN(50) == 0 {
				now += rng.Int64N(10 * slow)
			}
			swept := p.Sweep(7, now)
			kept := calls[:0]
			for _, c := range calls {
				switch age := now - c.sent; {
				case age >= slow+slow/spansPerSlow:
					swept--
				case age >= slow && !p.contains(c.mark):
					swept--
				default:
					kept = append(kept, c)
				}
			}
			if calls = kept; swept != 0 {
				t.Fatalf("seed %d: swept %d calls too many", seed, swept)
			}
			if len(calls) > 0 && rng.IntN(3) == 0 {
				i := rng.IntN(len(calls))
				if !p.Remove(calls[i].mark) {
					t.Fatalf("seed %d: a call that was not swept is gone", seed)
				}
				calls = append(calls[:i], calls[i+1:]...)
			}
			calls = append(calls, call{now, p.Add(7, now)})
		}
	}
}

// contains reports whether a call of that span is counted.
func (p *Pending) contains(mark uint64) bool {
	v := p.slots[mark&numberMask%uint64(len(p.slots))].Load()
	return v>>countBits == mark && v&countMask > 0
}

func TestPendingIgnoresCallsOfOtherGenerations(t *testing.T) {
	var p Pending
	p.Init(time.Second)
	old := p.Add(1, 1)
	young := p.Add(2, 2)
	if p.Remove(old) {
		t.Error("removed a call of an earlier generation")
	}
	if n := p.Sweep(2, int64(time.Minute)); n != 1 {
		t.Errorf("swept %d calls, want the one of the current generation", n)
	}
	if p.Remove(young) {
		t.Error("removed a call that had been swept")
	}
}

// A caller that is delayed after it read the clock adds its call to a span that was swept, and
// a later one needs its slot before the next sweep.
func TestPendingCountsCallOfDelayedCaller(t *testing.T) {
	var p Pending
	p.Init(1600) // in spans of 64
	cycle := int64(64 * len(p.slots))
	p.Sweep(1, 2*cycle)
	for range 3 {
		p.Add(1, 10)
	}
	other := p.Add(1, 10+64)
	p.Add(1, 10+2*cycle)
	p.Add(1, 10+64+2*cycle)
	if p.Remove(other) {
		t.Error("removed a call whose slot another span has")
	}
	if n := p.Sweep(1, 2*cycle+1); n != 0 {
		t.Errorf("swept %d calls, though no sweep was due", n)
	}
	if n := p.Sweep(1, 3*cycle); n != 6 {
		t.Errorf("swept %d calls, want 4 that were displaced and 2", n)
	}
	if n := p.Sweep(1, 4*cycle); n != 0 {
		t.Errorf("swept %d calls twice", n)
	}
}

func TestPendingDisplacedCallsOfOtherGenerationsAreIgnored(t *testing.T) {
	var p Pending
	p.Init(1600)
	cycle := int64(64 * len(p.slots))
	p.Add(1, 10)
	p.Add(2, 10+cycle) // displaces the first
	p.Add(2, 10+2*cycle)
	p.Add(1, 10+64)
	p.Add(2, 10+64+cycle) // displaces it, too, but not those of the later generation
	if n := p.Sweep(2, 4*cycle); n != 3 {
		t.Errorf("swept %d calls, want the three of the current generation", n)
	}
}

func TestPendingConcurrentUseCountsEachCallOnce(t *testing.T) {
	var p Pending
	p.Init(1600)
	var now, removed, swept atomic.Int64
	var wg sync.WaitGroup
	const workers, calls = 8, 5000
	for range workers {
		wg.Go(func() {
			var marks []uint64
			for i := range calls {
				at := now.Add(1)
				swept.Add(int64(p.Sweep(1, at)))
				marks = append(marks, p.Add(1, at))
				if i%3 == 0 && p.Remove(marks[0]) {
					removed.Add(1)
				}
				if i%3 == 0 {
					marks = marks[1:]
				}
			}
		})
	}
	wg.Wait()
	swept.Add(int64(p.Sweep(1, now.Load()+10_000)))
	if got := removed.Load() + swept.Load(); got != workers*calls || removed.Load() == 0 {
		t.Errorf("%d calls removed and %d swept, want %d together", removed.Load(), swept.Load(), workers*calls)
	}
}
