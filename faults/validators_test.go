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

// The validators are tested with stores that break an invariant on purpose, and with
// impossible histories.

// TestMaxExcessMatchesEveryInterval compares the tree with every pair of a
// start and an end.
func TestMaxExcessMatchesEveryInterval(t *testing.T) {
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
		if got, want := maxExcess(events, rate, tick), naiveMaxExcess(events, rate); got != want {
			t.Fatalf("at %d/s: got %d, want %d of %+v", rate, got, want, events)
		}
	}
}

func naiveMaxExcess(events []event, rate int64) (most int64) {
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

// overGrantingStore returns a store that grants more than its limit.
func overGrantingStore(more int64) penstock.Store {
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

// runWithoutFault returns a finished run on a store, without a fault.
func runWithoutFault(t *testing.T, f fault, store penstock.Store) *run {
	t.Helper()
	r := newRun(t, f)
	l := &load{run: r, nodes: slices.Repeat([]penstock.Store{store}, r.nodes), pause: shortPause, close: func() {}}
	l.drain = func(q penstock.Request) (penstock.Decision, error) { return store.Take(t.Context(), q) }
	r.load = l
	l.start()
	l.awaitCalls(3000)
	l.finish()
	return r
}

func TestValidatorsAcceptCorrectStore(t *testing.T) {
	r := runWithoutFault(t, fault{guarantee: guarantee{layers: redisOnly, noErrors: true}}, penstock.NewMemory(nil))
	r.prove("no fault", 1)
	if got := r.problems(); len(got) > 0 {
		t.Errorf("a correct store has problems: %q", got)
	}
}

func TestValidatorsCatchOneExtraUnit(t *testing.T) {
	r := runWithoutFault(t, fault{guarantee: guarantee{layers: redisOnly, noErrors: true}}, overGrantingStore(1))
	wantProblem(t, r, "INV-1 ")
}

// TestValidatorsCatchFasterRefill takes a unit each millisecond, on a clock of its own,
// from a store that refills a tenth too fast.
func TestValidatorsCatchFasterRefill(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	faster := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
	r := newRun(t, fault{guarantee: guarantee{layers: redisOnly, noErrors: true}})
	request := r.request(refillingKey, 1)
	request.Limit.Count = refillingLimit.Count * 11 / 10
	for at := time.Duration(0); at < 2*time.Second; at += time.Millisecond {
		d, err := faster.Take(t.Context(), request)
		r.history.add(event{begin: at, end: at, key: refillingKey, cost: 1, decision: d, err: err})
		now = now.Add(time.Millisecond)
	}
	wantProblem(t, r, "INV-1 a store admits its limit and no more: key -1 ")
}

func TestRunWithoutEvidenceFails(t *testing.T) {
	r := runWithoutFault(t, fault{guarantee: guarantee{layers: redisOnly, noErrors: true}}, penstock.NewMemory(nil))
	wantProblem(t, r, "nothing proves that the fault happened")
	silent := newRun(ignoreErrors{TB: t}, fault{})
	silent.prove("replies that were cut", 0)
	wantProblem(t, silent, "nothing proves that the fault happened")
	wantProblem(t, silent, "no call was made")
}

// ignoreErrors is a test that ignores errors.
type ignoreErrors struct{ testing.TB }

func (ignoreErrors) Errorf(string, ...any) {}

// TestValidatorsCatchBrokenInvariants breaks each invariant with one made-up call.
func TestValidatorsCatchBrokenInvariants(t *testing.T) {
	day := 24 * time.Hour
	for name, c := range map[string]struct {
		guarantee guarantee
		event     event
	}{
		"errors":   {guarantee{noErrors: true}, event{err: penstock.ErrUnavailable}},
		"errors a": {guarantee{noErrors: true}, event{err: penstock.ErrBusy}},
		"INV-1 ":   {guarantee{}, event{cost: 1, decision: penstock.Decision{Allowed: true, Granted: burst + 1}}},
		"INV-7 ":   {guarantee{}, event{decision: penstock.Decision{Allowed: true, Remaining: burst + 1}}},
		"INV-9 ":   {guarantee{}, event{cost: 1, decision: penstock.Decision{RetryAfter: 400 * day}}},
		"INV-17 ":  {guarantee{}, event{cost: 1, decision: penstock.Decision{Allowed: true, Granted: burst - 1}}},
		"INV-20 ":  {guarantee{}, event{cost: 1, decision: penstock.Decision{Allowed: true, Source: penstock.SourceDenyCache}}},
		"INV-21 ": {
			guarantee{layers: withFallback, nodes: 2},
			event{cost: 1, decision: penstock.Decision{Allowed: true, Granted: burst/2 + 1, Source: penstock.SourceFallback}},
		},
	} {
		r := newRun(t, fault{guarantee: c.guarantee})
		r.history.add(c.event)
		wantProblem(t, r, name)
	}
}

func wantProblem(t *testing.T, r *run, begins string) {
	t.Helper()
	got := r.problems()
	if !slices.ContainsFunc(got, func(problem string) bool { return strings.HasPrefix(problem, begins) }) {
		t.Errorf("got problems %q, want one that begins with %q", got, begins)
	}
}

func TestHistoryDowntimeStartsAtFirstMissedCall(t *testing.T) {
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
