package penstock_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"pgregory.net/rapid"
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
				if p.grants < 10 {
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

// A store that is nearly full, of keys and IDs that live for a few nanoseconds, on a clock that
// moves with each reading: what one part of a decision finds, a sweep for another part may have
// dropped. No request panics, and no more is held than the store may hold.
func TestMemoryDecidesWhileStatesExpire(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now, step := int64(1_000_000), int64(0)
		o := &penstock.MemoryOptions{
			MaxKeys:  rapid.IntRange(1, 8).Draw(t, "MaxKeys"),
			MaxBytes: rapid.SampledFrom([]int64{1, 16 << 10, 33 << 10, 1 << 20}).Draw(t, "MaxBytes"),
			Now:      func() time.Time { now += step; return time.Unix(0, now) },
		}
		store := penstock.NewMemory(o)
		request := boundaryRequest()
		var last []penstock.Request
		takeAll := func(t *rapid.T, rs []penstock.Request) {
			ds := make([]penstock.Decision, len(rs))
			err := store.TakeAll(ctx, rs, ds)
			for i := range rs {
				checkBoundaryDecision(t, rs[i], ds[i], err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				r := request.Draw(t, "request")
				d, err := store.Take(ctx, r)
				checkBoundaryDecision(t, r, d, err)
			},
			"take all": func(t *rapid.T) {
				last = rapid.SliceOfN(request, 1, 5).Draw(t, "requests")
				alone := rapid.Bool().Draw(t, "without one ID")
				for i := range last {
					r := &last[i]
					r.Key, r.Cost, r.AtMost = boundaryKeys[i], max(r.Cost, 0), false
					if !alone {
						r.ID, r.Settle, r.Overdraw = "x", false, false
					}
				}
				takeAll(t, last)
			},
			"repeat": func(t *rapid.T) { takeAll(t, last) },
			"wait":   func(t *rapid.T) { now += rapid.Int64Range(0, 30).Draw(t, "for") },
			"step":   func(t *rapid.T) { step = rapid.Int64Range(0, 3).Draw(t, "step") },
			"": func(t *rapid.T) {
				if s := store.Stats(); s.Keys < 0 || s.Keys > int64(o.MaxKeys) || s.Bytes < 0 || s.Bytes > o.MaxBytes*5/4 {
					t.Fatalf("%+v, with %+v", s, o)
				}
			},
		})
	})
}

var boundaryKeys = []string{"a", "b", "c", "d", "e"}

// boundaryRequest generates requests, few of them invalid, for few keys under limits of a few
// nanoseconds.
func boundaryRequest() *rapid.Generator[penstock.Request] {
	return rapid.Custom(func(t *rapid.T) penstock.Request {
		l := penstock.Limit{
			Count:     rapid.SampledFrom([]int64{0, 1, 2, 9, 40}).Draw(t, "Count"),
			Period:    time.Duration(40 * rapid.Int64Range(1, 3).Draw(t, "Period")),
			Algorithm: penstock.Algorithm(rapid.IntRange(0, int(penstock.Concurrent)).Draw(t, "Algorithm")),
			Untrusted: rapid.Bool().Draw(t, "Untrusted"),
		}
		if l.Algorithm <= penstock.LeakyBucket && l.Count == 9 {
			l.Count = 10 // which can be spread evenly
		}
		r := penstock.Request{
			Key:   rapid.SampledFrom(boundaryKeys).Draw(t, "Key"),
			Limit: l,
			Cost:  rapid.SampledFrom([]int64{1, 1, 1, 2, 9, 40, 0, -1, penstock.Reset}).Draw(t, "Cost"),
			ID:    rapid.SampledFrom([]string{"", "", "x", "y", "z"}).Draw(t, "ID"),
			Hold:  time.Duration(rapid.SampledFrom([]int64{0, 0, 100}).Draw(t, "Hold")),
		}
		switch rapid.IntRange(0, 5).Draw(t, "kind") {
		case 0:
			r.AtMost = true
		case 1:
			r.Overdraw = true
		case 2:
			r.Settle = r.ID != ""
		case 3:
			r.MaxDelay = time.Duration(rapid.Int64Range(1, 50).Draw(t, "MaxDelay"))
		}
		return r
	})
}

// checkBoundaryDecision checks what is true of every decision.
func checkBoundaryDecision(t *rapid.T, r penstock.Request, d penstock.Decision, err error) {
	t.Helper()
	switch {
	case err != nil && d != (penstock.Decision{}):
		t.Fatalf("%+v: %v beside %v", r, d, err)
	case err != nil:
		if !errors.Is(err, penstock.ErrBadCost) && !errors.Is(err, penstock.ErrUnknownID) && !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("%+v: %v", r, err)
		}
	case d.Remaining < 0 || d.Remaining > d.Limit || d.RetryAfter < 0 || d.ResetAfter < 0 || d.Delay < 0, d.Allowed && d.RetryAfter != 0:
		t.Fatalf("%+v: %+v", r, d)
	}
}
