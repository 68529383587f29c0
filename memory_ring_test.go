package penstock_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/fixedseed"
)

// A Memory keeps of a ring's newest bucket only what the total has beyond the others. It
// decides as the plain ring does, with one bucket and with the most, whatever the counts, after
// takes, refunds, snapshots and steps of the clock, and when the limit is raised and lowered.
func TestMemoryRollingWindowDecidesAsPlainRing(t *testing.T) {
	for _, buckets := range []int{1, 2, 10, 16, 17, 1000} {
		for _, count := range []int64{3, 50, math.MaxUint32, math.MaxUint32 + 1, math.MaxInt64} {
			t.Run(fmt.Sprint(buckets, " buckets of ", count), func(t *testing.T) {
				p := newRingPair(uint64(buckets), count)
				for range fixedseed.FewerUnderRace(2000) {
					p.step(t)
				}
				if p.grants < 20 {
					t.Errorf("only %d requests were granted: the test proves nothing", p.grants)
				}
			})
		}
	}
}

// A ringPair is a key of a Memory and a plain ring, which get the same requests.
type ringPair struct {
	rand    *rand.Rand
	clock   *fakeClock
	options *penstock.MemoryOptions
	store   *penstock.Memory
	limit   penstock.Limit
	most    int64 // the highest Count
	ring    algorithm.Ring
	grants  int
}

func newRingPair(buckets uint64, count int64) *ringPair {
	p := &ringPair{rand: rand.New(rand.NewPCG(buckets, uint64(count))), clock: newFakeClock(), most: count}
	p.options = &penstock.MemoryOptions{MaxKeys: 100, Now: p.clock.now, Durable: true}
	p.store = penstock.NewMemory(p.options)
	p.limit = penstock.Limit{
		Name: "x", Algorithm: penstock.RollingWindow, Count: count, Period: time.Duration(buckets) * time.Second, Buckets: int(buckets),
	}
	p.ring.Counts = make([]int64, buckets+1)
	return p
}

// step changes the clock, the limit or the store at times, and decides one request.
func (p *ringPair) step(t *testing.T) {
	t.Helper()
	switch p.rand.IntN(12) {
	case 0:
		p.clock.advance(time.Duration(p.rand.Int64N(int64(p.limit.Period) / 3)))
	case 1:
		p.clock.advance(time.Second)
	case 2:
		p.clock.advance(-time.Duration(p.rand.Int64N(int64(2 * time.Second))))
	case 3:
		p.limit.Count = p.most - p.rand.Int64N(p.most/2+1)
	case 4:
		p.restart(t)
	}
	cost := 1 + p.rand.Int64N(max(p.limit.Count/16, 2))
	switch p.rand.IntN(8) {
	case 0:
		cost = 0
	case 1:
		cost = -cost
	case 2:
		cost = p.limit.Count
	}
	p.decide(t, cost)
}

// restart restores the store from a snapshot, which has no state that has expired.
func (p *ringPair) restart(t *testing.T) {
	t.Helper()
	p.store = restoreMemory(t, snapshot(t, p.store), p.options)
	if w := p.window(); w.Empty(&p.ring) <= p.clock.nanos.Load() {
		p.ring = algorithm.Ring{Counts: make([]int64, len(p.ring.Counts))}
	}
}

func (p *ringPair) window() algorithm.RollingWindow {
	return algorithm.NewRollingWindow(p.limit.Count, int64(p.limit.Period), int64(p.limit.Buckets), 1)
}

// decide compares a decision of the store with that of the plain ring.
func (p *ringPair) decide(t *testing.T, cost int64) {
	t.Helper()
	got, err := p.store.Take(ctx, penstock.Request{Key: "k", Limit: p.limit, Cost: cost})
	if err != nil {
		t.Fatal(err)
	}
	now, w := p.clock.nanos.Load(), p.window()
	w.Normalize(&p.ring, now)
	out := w.Decide(&p.ring, now, algorithm.Request{Cost: cost})
	if out.Granted != 0 {
		w.Record(&p.ring, now, out.Granted)
	}
	bal := w.Balance(&p.ring, now)
	want := penstock.Decision{
		Allowed: out.Allowed, Granted: out.Granted, Limit: p.limit.Count, Remaining: bal.Remaining,
		RetryAfter: time.Duration(out.RetryAfter), ResetAfter: time.Duration(bal.ResetAfter),
	}
	if got != want {
		t.Fatalf("cost %d under %v: got %v, want %v", cost, p.limit, got, want)
	}
	if got.Granted > 0 {
		p.grants++
	}
}
