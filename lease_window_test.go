package penstock_test

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
)

// A windowWorld is a store and processes that lease its windows, each on a clock of its own, in virtual time. Calls of the store
// take a while, and some answers are lost.
type windowWorld struct {
	rng       *rand.Rand
	limit     penstock.Limit
	memory    *penstock.Memory
	clock     atomic.Int64 // of the store, in nanoseconds; processes look at theirs in the background, too
	decidedAt time.Time    // when the store last answered; zero if it was not asked since
	calls     int
	spent     []spending
}

type spending struct {
	at    time.Time
	units int64
}

// pass lets time pass, at most so much.
func (w *windowWorld) pass(most time.Duration) {
	w.clock.Add(w.rng.Int64N(int64(most)))
}

func (w *windowWorld) now() time.Time { return time.Unix(0, w.clock.Load()) }

// Take decides a request of a process.
func (w *windowWorld) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	w.calls++
	late := time.Millisecond
	if w.rng.IntN(8) == 0 {
		late = w.limit.Period / 3
	}
	w.pass(late)
	d, err := w.memory.Take(ctx, r)
	w.decidedAt = w.now()
	w.pass(late)
	if w.rng.IntN(20) == 0 {
		return penstock.Decision{}, penstock.ErrUnavailable
	}
	return d, err
}

// newProcess returns a process whose clock is off by hours, and up to a thousandth slower than the store's.
func (w *windowWorld) newProcess(nodes int) *penstock.Lease {
	start, offset, slow := w.now(), time.Duration(w.rng.Int64N(int64(9*time.Hour))), time.Duration(1100+w.rng.Int64N(9000))
	return penstock.WithLease(w, &penstock.LeaseOptions{Nodes: nodes, Now: func() time.Time {
		passed := w.now().Sub(start)
		return start.Add(offset + passed - passed/slow)
	}})
}

// take takes units in a process, sometimes together with others that are denied. A decision of the store counts when it was
// made, one by leased units now.
func (w *windowWorld) take(t *testing.T, process *penstock.Lease) {
	w.decidedAt = time.Time{}
	rs := []penstock.Request{{Key: "key", Limit: w.limit, Cost: 1 + w.rng.Int64N(2)}}
	if w.rng.IntN(10) == 0 {
		rs = append(rs, penstock.Request{Key: "other", Limit: penstock.PerHour(0), Cost: 1})
	}
	ds := make([]penstock.Decision, len(rs))
	if err := penstock.TakeAll(t.Context(), process, rs, ds); err != nil {
		return // the answer was lost
	}
	at := w.now()
	if !w.decidedAt.IsZero() {
		at = w.decidedAt
	}
	if ds[0].Granted > 0 {
		w.spent = append(w.spent, spending{at, ds[0].Granted})
	}
}

// run lets processes take in bursts, most of them around the ends of windows.
func (w *windowWorld) run(t *testing.T) {
	nodes := 1 + w.rng.IntN(3)
	processes := make([]*penstock.Lease, nodes)
	for i := range processes {
		processes[i] = w.newProcess(nodes)
	}
	for range 60 {
		process := processes[w.rng.IntN(nodes)]
		for range w.rng.IntN(60) {
			w.take(t, process)
			w.pass(time.Millisecond)
		}
		if w.pass(w.limit.Period / 2); w.rng.IntN(4) == 0 {
			w.pass(2 * w.limit.Period)
		}
		if i := w.rng.IntN(nodes); w.rng.IntN(20) == 0 {
			if err := processes[i].Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			processes[i] = w.newProcess(nodes)
		}
	}
}

// most returns the most that any window spent, or any Period of a sliding window.
func (w *windowWorld) most() (most int64) {
	sums := map[time.Time]int64{}
	for i, s := range w.spent {
		if w.limit.Algorithm == penstock.FixedWindow {
			start, _ := w.limit.Window(s.at)
			sums[start] += s.units
			most = max(most, sums[start])
			continue
		}
		sum := int64(0)
		for _, other := range w.spent[i:] {
			if age := other.at.Sub(s.at); 0 <= age && age < w.limit.Period {
				sum += other.units
			}
		}
		most = max(most, sum)
	}
	return most
}

func TestLeasedWindowsKeepTheirBounds(t *testing.T) {
	seeds := fixedseed.FewerUnderRace(100)
	taken, calls := 0, 0
	for seed := range uint64(seeds) {
		w := &windowWorld{rng: rand.New(rand.NewPCG(seed, 5))}
		w.clock.Store(1_800_000_000 * int64(time.Second))
		w.limit = penstock.Limit{Algorithm: penstock.FixedWindow, Align: penstock.AlignClock, Count: 60 + w.rng.Int64N(200), Period: time.Duration(1+w.rng.IntN(4)) * time.Second}
		bound := w.limit.Count
		if seed%2 == 1 {
			w.limit.Algorithm, w.limit.Align = penstock.SlidingWindow, penstock.AlignFirst
			bound = 2*w.limit.Count - 2
		}
		w.memory = penstock.NewMemory(&penstock.MemoryOptions{Now: w.now})
		w.run(t)
		if most := w.most(); most > bound {
			t.Errorf("seed %d: %d units under %v, at most %d may be", seed, most, w.limit, bound)
		}
		taken, calls = taken+len(w.spent), calls+w.calls
	}
	if calls > taken {
		t.Errorf("%d calls of the store for %d grants: too few were leased for the test to mean anything", calls, taken)
	}
}

func TestLeasedUnitsEndWithTheirWindow(t *testing.T) {
	for _, text := range []string{"1000/10s fixed-window", "1000/10s sliding-window"} {
		var passed, calls atomic.Int64 // the lease looks at both in the background, too
		clock := func() time.Time { return time.Unix(1_800_000_000, passed.Load()) }
		store := penstock.WithObserver(penstock.NewMemory(&penstock.MemoryOptions{Now: clock}), func(penstock.Observation) { calls.Add(1) })
		lim := limiter(t, penstock.WithLease(store, &penstock.LeaseOptions{Now: clock}), text)
		took := func() (called int64) {
			before := calls.Load()
			if d, err := lim.Allow(t.Context(), "key"); err != nil || !d.Allowed {
				t.Fatalf("%s: %v, %v", text, d, err)
			}
			return calls.Load() - before
		}
		for range 30 {
			took()
			passed.Add(int64(time.Millisecond))
		}
		if passed.Store(int64(9900 * time.Millisecond)); took() != 0 {
			t.Errorf("%s: no units are left at the end of the window", text)
		}
		if passed.Store(int64(10 * time.Second)); took() == 0 {
			t.Errorf("%s: a unit was spent after the end of its window", text)
		}
	}
}

func TestLeaseLeavesCountersThatNothingReachesToTheStore(t *testing.T) {
	calls := 0
	store := penstock.WithObserver(penstock.NewMemory(nil), func(penstock.Observation) { calls++ })
	lim := limiter(t, penstock.WithLease(store, nil), "70368744177664/1h fixed-window")
	for range 50 {
		if _, err := lim.Allow(t.Context(), "key"); err != nil {
			t.Fatal(err)
		}
	}
	if calls != 50 {
		t.Errorf("%d calls of the store for 50 requests", calls)
	}
}
