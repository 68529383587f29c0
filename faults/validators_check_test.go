package faults

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// Whoever judges is judged first: stores that break a promise, on purpose, and
// histories that nobody could have lived.

// TestBeyondIsTheLargestOfAllIntervals compares the tree with every pair of a
// beginning and an end.
func TestBeyondIsTheLargestOfAllIntervals(t *testing.T) {
	for range 2000 {
		var events []event
		for range 1 + rand.IntN(20) {
			begin := time.Duration(rand.Int64N(int64(time.Second)))
			events = append(events, event{
				begin: begin, end: begin + time.Duration(rand.Int64N(int64(time.Second/4))),
				decision: penstock.Decision{Granted: rand.Int64N(5)},
			})
		}
		slices.SortFunc(events, func(a, b event) int { return int(a.end - b.end) })
		rate := rand.Int64N(100)
		if got, want := beyond(events, rate, tick), beyondByHand(events, rate); got != want {
			t.Fatalf("at %d/s: got %d, want %d of %+v", rate, got, want, events)
		}
	}
}

func beyondByHand(events []event, rate int64) (most int64) {
	for _, first := range events {
		for _, last := range events {
			units := int64(0)
			for _, e := range events {
				if e.begin >= first.begin && e.end <= last.end {
					units += e.granted() * int64(time.Second)
				}
			}
			if last.end >= first.begin {
				most = max(most, units-rate*int64(last.end+tick-first.begin))
			}
		}
	}
	return (most + int64(time.Second) - 1) / int64(time.Second)
}

// A generousStore grants more than its limit.
func generousStore(more int64) penstock.Store {
	store := penstock.NewMemory(nil)
	return penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		r.Limit.Count += more
		if r.Limit.Burst > 0 {
			r.Limit.Burst += more
		}
		d, err := store.Take(ctx, r)
		d.Remaining = min(d.Remaining, capacity(r.Limit)-more)
		return d, err
	})
}

// lived returns a run on a store, as the faults have it, but nothing befalls it.
func lived(t *testing.T, f fault, store penstock.Store) *run {
	t.Helper()
	r := newRun(t, f)
	l := &load{run: r, nodes: slices.Repeat([]penstock.Store{store}, r.nodes), pace: brisk, close: func() {}}
	l.drain = func(q penstock.Request) (penstock.Decision, error) { return store.Take(t.Context(), q) }
	r.load = l
	l.start()
	l.asks(3000)
	l.finish()
	return r
}

func TestGoodStoresAreNotBlamed(t *testing.T) {
	r := lived(t, fault{promise: promise{layers: alone, calm: true}}, penstock.NewMemory(nil))
	r.happened("faults that need not happen", 1)
	if got := r.verdict(); len(got) > 0 {
		t.Errorf("a good store was blamed: %q", got)
	}
}

func TestOneTooManyIsCaught(t *testing.T) {
	r := lived(t, fault{promise: promise{layers: alone, calm: true}}, generousStore(1))
	wantComplaint(t, r, "INV-1 ")
}

func TestRateTooHighIsCaught(t *testing.T) {
	faster := penstock.NewMemory(nil)
	r := lived(t, fault{promise: promise{layers: alone, calm: true}}, penstock.StoreFunc(
		func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
			if r.Limit == flowLimit {
				r.Limit.Count = flowLimit.Count * 11 / 10
			}
			return faster.Take(ctx, r)
		}))
	wantComplaint(t, r, "INV-1 a store admits its limit and no more: key -1 ")
}

func TestFaultThatDidNotHappenIsCaught(t *testing.T) {
	r := lived(t, fault{promise: promise{layers: alone, calm: true}}, penstock.NewMemory(nil))
	wantComplaint(t, r, "nothing proves that the fault happened")
	silent := newRun(silently{TB: t}, fault{})
	silent.happened("replies that were cut", 0)
	wantComplaint(t, silent, "nothing proves that the fault happened")
	wantComplaint(t, silent, "nobody asked for anything")
}

// A silently is a test that does not mind errors.
type silently struct{ testing.TB }

func (silently) Errorf(string, ...any) {}

// TestEveryValidatorCanFail breaks each invariant by one call that never was.
func TestEveryValidatorCanFail(t *testing.T) {
	day := 24 * time.Hour
	for name, c := range map[string]struct {
		promise promise
		event   event
	}{
		"every call": {promise{calm: true}, event{err: penstock.ErrUnavailable}},
		"INV-1 ":     {promise{}, event{cost: 1, decision: penstock.Decision{Allowed: true, Granted: burst + 1}}},
		"INV-7 ":     {promise{}, event{decision: penstock.Decision{Allowed: true, Remaining: burst + 1}}},
		"INV-9 ":     {promise{}, event{cost: 1, decision: penstock.Decision{RetryAfter: 400 * day}}},
		"INV-17 ":    {promise{}, event{cost: 1, decision: penstock.Decision{Allowed: true, Granted: burst - 1}}},
		"INV-20 ":    {promise{}, event{cost: 1, decision: penstock.Decision{Allowed: true, Source: penstock.SourceDenyCache}}},
		"INV-21 ": {
			promise{layers: guarded, nodes: 2},
			event{cost: 1, decision: penstock.Decision{Allowed: true, Granted: burst/2 + 1, Source: penstock.SourceFallback}},
		},
	} {
		r := newRun(t, fault{promise: c.promise})
		r.history.add(c.event)
		wantComplaint(t, r, name)
	}
}

func wantComplaint(t *testing.T, r *run, begins string) {
	t.Helper()
	got := r.verdict()
	if !slices.ContainsFunc(got, func(complaint string) bool { return strings.HasPrefix(complaint, begins) }) {
		t.Errorf("got complaints %q, want one that begins with %q", got, begins)
	}
}

// A call that a store has not answered counts as downtime until one is answered.
func TestDowntimeIsCountedFromTheFirstCallThatMissed(t *testing.T) {
	h := &history{}
	for _, e := range []event{
		{begin: 0, end: 1},
		{begin: 10, end: 60, err: penstock.ErrUnavailable},
		{begin: 20, end: 70, decision: penstock.Decision{Source: penstock.SourceFallback}},
		{begin: 80, end: 100},
		{begin: 110, end: 120, err: penstock.ErrUnavailable, key: 1},
		{begin: 500, end: 600, key: 1},
	} {
		h.add(e)
	}
	if got := h.downtime(func(key int) bool { return key == 0 }); got != 90 {
		t.Errorf("downtime of one key: got %d, want 90", got)
	}
	if got := h.downtime(func(int) bool { return true }); got != 490 {
		t.Errorf("downtime of both: got %d, want 490", got)
	}
}
