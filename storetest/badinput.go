package storetest

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// A badRequest is an invalid request, and the error that it must cause.
type badRequest struct {
	request penstock.Request
	kind    error
	field   string
}

// testBadInput sends invalid requests. The error must name the field, and nothing may
// be charged.
func testBadInput(t *testing.T, open Open, supported []penstock.Algorithm) {
	t.Run("take", func(t *testing.T) {
		w := newBadInputTest(t, open, supported)
		for _, bad := range append(badRequests(), badTakes()...) {
			_, err := w.store.Take(context.Background(), bad.request)
			w.check(t, bad, err)
		}
	})
	t.Run("take each", func(t *testing.T) {
		w := newBadInputTest(t, open, supported)
		for _, bad := range append(badRequests(), badTakes()...) {
			rs := []penstock.Request{w.valid, bad.request, w.valid}
			ds := staleDecisions(len(rs))
			err := takeEachOf(w.store)(context.Background(), rs, ds)
			w.check(t, bad, err)
			checkUndecided(t, ds)
		}
	})
	t.Run("take all", func(t *testing.T) {
		w := newBadInputTest(t, open, supported)
		for _, bad := range append(badRequests(), badTakeAlls()...) {
			rs := []penstock.Request{w.valid, bad.request}
			ds := staleDecisions(len(rs))
			err := takeAllOf(w.store)(context.Background(), rs, ds)
			w.check(t, bad, err)
			checkUndecided(t, ds)
		}
	})
	t.Run("sum of costs overflows", func(t *testing.T) {
		w := newBadInputTest(t, open, supported)
		most := with(w.valid, func(r *penstock.Request) { r.Key, r.Cost = "key", math.MaxInt64 })
		rs := []penstock.Request{w.valid, most, most}
		ds := staleDecisions(len(rs))
		err := takeAllOf(w.store)(context.Background(), rs, ds)
		checkUndecided(t, ds)
		w.check(t, badRequest{most, penstock.ErrBadCost, "Cost"}, err)
	})
	t.Run("charge and take of one key", func(t *testing.T) {
		w := newBadInputTest(t, open, supported)
		charge := with(w.valid, func(r *penstock.Request) { r.Overdraw = true })
		rs := []penstock.Request{w.valid, charge}
		ds := staleDecisions(len(rs))
		err := takeAllOf(w.store)(context.Background(), rs, ds)
		checkUndecided(t, ds)
		w.check(t, badRequest{charge, penstock.ErrBadCost, "Overdraw"}, err)
	})
	t.Run("one ID twice on one key", func(t *testing.T) {
		w := newBadInputTest(t, open, supported)
		take := with(w.valid, func(r *penstock.Request) { r.ID = "x" })
		rs := []penstock.Request{take, take}
		ds := staleDecisions(len(rs))
		err := takeAllOf(w.store)(context.Background(), rs, ds)
		checkUndecided(t, ds)
		w.check(t, badRequest{take, penstock.ErrBadCost, "ID"}, err)
	})
	t.Run("too few decisions", func(t *testing.T) {
		w := newBadInputTest(t, open, supported)
		rs := []penstock.Request{w.valid, w.valid}
		for name, take := range map[string]takeFunc{"TakeEach": takeEachOf(w.store), "TakeAll": takeAllOf(w.store)} {
			ds := staleDecisions(1)
			if err := take(context.Background(), rs, ds); err == nil {
				t.Errorf("%s of 2 requests with room for 1 decision: want an error", name)
			}
			checkUndecided(t, ds)
		}
		w.checkUncharged(t, "with room for 1 decision")
	})
}

// testFailure sends requests whose context has ended. A store may decide them, or return
// an error; decisions beside an error must deny.
func testFailure(t *testing.T, open Open, supported []penstock.Algorithm) {
	limit := penstock.PerMinute(5).WithAlgorithm(overTime(t, supported)[0])
	store := openAt(t, open, &Clock{}, noon)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	for name, take := range map[string]takeFunc{"TakeEach": takeEachOf(store), "TakeAll": takeAllOf(store)} {
		rs := []penstock.Request{
			{Key: "a" + name, Limit: limit, Cost: 1},
			{Key: "b" + name, Limit: limit, Cost: 1},
		}
		ds := staleDecisions(len(rs))
		if err := take(ended, rs, ds); err != nil {
			t.Log(name, err)
			checkUndecided(t, ds)
		}
	}
}

type takeFunc func(context.Context, []penstock.Request, []penstock.Decision) error

// takeEachOf returns the store's own TakeEach, if it has one.
func takeEachOf(s penstock.Store) takeFunc {
	if s, ok := s.(penstock.BatchStore); ok {
		return s.TakeEach
	}
	return func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
		return penstock.TakeEach(ctx, s, rs, ds)
	}
}

// takeAllOf returns the store's own TakeAll, if it has one.
func takeAllOf(s penstock.Store) takeFunc {
	if s, ok := s.(penstock.AtomicStore); ok {
		return s.TakeAll
	}
	return func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
		return penstock.TakeAll(ctx, s, rs, ds)
	}
}

// staleDecisions returns decisions as an earlier call may have left them.
func staleDecisions(n int) []penstock.Decision {
	ds := make([]penstock.Decision, n)
	for i := range ds {
		ds[i] = penstock.Decision{Allowed: true, Granted: 1, Limit: 1}
	}
	return ds
}

// checkUndecided fails if a decision beside an error is not the zero one, which denies.
func checkUndecided(t *testing.T, ds []penstock.Decision) {
	t.Helper()
	for i := range ds {
		if ds[i] != (penstock.Decision{}) {
			t.Errorf("decision %d beside an error is %s, want the zero Decision", i, decisionText(ds[i]))
		}
	}
}

// A badInputTest is a store, and a valid request that is sent along with invalid ones
// and must never be charged.
type badInputTest struct {
	store penstock.Store
	valid penstock.Request
}

func newBadInputTest(t *testing.T, open Open, supported []penstock.Algorithm) *badInputTest {
	t.Helper()
	store := openAt(t, open, &Clock{}, noon)
	limit := penstock.PerMinute(5).WithAlgorithm(overTime(t, supported)[0])
	return &badInputTest{store, penstock.Request{Key: "valid", Limit: limit, Cost: 1}}
}

// overTime returns the algorithms that have no permits, which every test of a single one needs.
func overTime(t *testing.T, supported []penstock.Algorithm) (over []penstock.Algorithm) {
	t.Helper()
	for _, a := range supported {
		if a != penstock.Concurrent {
			over = append(over, a)
		}
	}
	if len(over) == 0 {
		t.Fatal("want an algorithm over time among those to test")
	}
	return over
}

// testUnsupported takes by the algorithms that a store does not have.
func testUnsupported(t *testing.T, open Open, supported []penstock.Algorithm) {
	store := openAt(t, open, &Clock{}, noon)
	for _, a := range algorithms {
		if slices.Contains(supported, a) {
			continue
		}
		d, err := store.Take(context.Background(), penstock.Request{Key: "key", Limit: penstock.PerMinute(5).WithAlgorithm(a), Cost: 1, ID: "id"})
		if !errors.Is(err, errors.ErrUnsupported) || d != (penstock.Decision{}) {
			t.Errorf("%v: got %s, %v, want no decision and an error that is errors.ErrUnsupported", a, decisionText(d), err)
		}
	}
}

// noon is the start of tests for which the time does not matter.
var noon = time.Date(2026, 3, 2, 12, 0, 0, 0, time.UTC)

// openAt opens a store at a time.
func openAt(t *testing.T, open Open, clock *Clock, now time.Time) penstock.Store {
	t.Helper()
	if err := clock.set(now); err != nil {
		t.Fatal(err)
	}
	return open(t, clock)
}

// check fails unless the error is the expected one and nothing was charged.
func (w *badInputTest) check(t *testing.T, bad badRequest, err error) {
	t.Helper()
	var field *penstock.FieldError
	switch {
	case err == nil:
		t.Errorf("%+v: want an error about %s", bad.request, bad.field)
	case !errors.Is(err, bad.kind):
		t.Errorf("%+v: got the error %q, want one that is %q", bad.request, err, bad.kind)
	case !errors.As(err, &field):
		t.Errorf("%+v: got the error %q, want a FieldError", bad.request, err)
	case field.Field != bad.field:
		t.Errorf("%+v: got the error %q about %s, want one about %s", bad.request, err, field.Field, bad.field)
	}
	w.checkUncharged(t, bad.field)
}

func (w *badInputTest) checkUncharged(t *testing.T, why string) {
	t.Helper()
	peek := w.valid
	peek.Cost = 0
	d, err := w.store.Take(context.Background(), peek)
	if err != nil || d.Remaining != 5 {
		t.Fatalf("after a bad request (%s): got %s, %v, want 5 remaining of a key that was never charged",
			why, decisionText(d), err)
	}
}

// badRequests are invalid in every call.
func badRequests() []badRequest {
	good := penstock.Request{Key: "key", Limit: penstock.PerMinute(5), Cost: 1}
	bad := []badRequest{
		{with(good, func(r *penstock.Request) { r.Key = "" }), penstock.ErrBadKey, "Key"},
		{with(good, func(r *penstock.Request) { r.MaxDelay = -time.Second }), penstock.ErrBadCost, "MaxDelay"},
		{with(good, func(r *penstock.Request) { r.KeepFree = -1 }), penstock.ErrBadCost, "KeepFree"},
		{with(good, func(r *penstock.Request) { r.Overdraw, r.Cost = true, 0 }), penstock.ErrBadCost, "Overdraw"},
		{with(good, func(r *penstock.Request) { r.Overdraw, r.MaxDelay = true, time.Second }), penstock.ErrBadCost, "Overdraw"},
		{with(good, func(r *penstock.Request) { r.Overdraw, r.Limit.Algorithm = true, penstock.RollingWindow }), penstock.ErrBadCost, "Overdraw"},
		{with(good, func(r *penstock.Request) { r.Overdraw, r.Limit.Algorithm = true, penstock.SlidingLog }), penstock.ErrBadCost, "Overdraw"},
		{with(good, func(r *penstock.Request) { r.Overdraw, r.Limit.Algorithm = true, penstock.Concurrent }), penstock.ErrBadCost, "Overdraw"},
		{with(good, func(r *penstock.Request) { r.Limit.Algorithm = penstock.Concurrent }), penstock.ErrBadCost, "ID"},
	}
	settle := with(good, func(r *penstock.Request) { r.Settle, r.ID = true, "x" })
	bad = append(bad, []badRequest{
		{with(good, func(r *penstock.Request) { r.Hold = -1 }), penstock.ErrBadCost, "Hold"},
		{with(good, func(r *penstock.Request) { r.Hold = day + 1 }), penstock.ErrBadCost, "Hold"},
		{with(settle, func(r *penstock.Request) { r.ID = "" }), penstock.ErrBadCost, "ID"},
		{with(settle, func(r *penstock.Request) { r.MaxDelay = 1 }), penstock.ErrBadCost, "Settle"},
		{with(settle, func(r *penstock.Request) { r.Limit.Algorithm = penstock.Concurrent }), penstock.ErrBadCost, "Settle"},
	}...)
	for _, l := range badLimits() {
		r := with(good, func(r *penstock.Request) { r.Limit = l.limit })
		if needsID(r.Limit) {
			r.Cost = 0 // a cost without an ID is another error
		}
		bad = append(bad, badRequest{r, penstock.ErrBadLimit, l.field})
	}
	return bad
}

// badTakes are invalid in Take and TakeEach; in TakeAll they are invalid for another
// reason.
func badTakes() []badRequest {
	good := penstock.Request{Key: "key", Limit: penstock.PerMinute(5), Cost: 1}
	return []badRequest{
		{with(good, func(r *penstock.Request) { r.AtMost, r.Cost = true, -1 }), penstock.ErrBadCost, "AtMost"},
		{with(good, func(r *penstock.Request) { r.ID, r.Cost = "x", penstock.Reset }), penstock.ErrBadCost, "ID"},
		{with(good, func(r *penstock.Request) { r.Overdraw, r.Cost = true, -1 }), penstock.ErrBadCost, "Overdraw"},
		{with(good, func(r *penstock.Request) { r.Overdraw, r.AtMost = true, true }), penstock.ErrBadCost, "Overdraw"},
		{with(good, func(r *penstock.Request) { r.Limit.Algorithm, r.Cost = penstock.Concurrent, -1 }), penstock.ErrBadCost, "ID"},
		{with(good, func(r *penstock.Request) { r.Limit.Algorithm, r.ID, r.Cost = penstock.Concurrent, "x", maxPermits+1 }), penstock.ErrBadCost, "Cost"},
	}
}

// badTakeAlls are invalid only in TakeAll.
func badTakeAlls() []badRequest {
	good := penstock.Request{Key: "key", Limit: penstock.PerMinute(5), Cost: 1}
	return []badRequest{
		{with(good, func(r *penstock.Request) { r.AtMost = true }), penstock.ErrBadCost, "AtMost"},
		{with(good, func(r *penstock.Request) { r.Cost = -1 }), penstock.ErrBadCost, "Cost"},
		{with(good, func(r *penstock.Request) { r.Cost = penstock.Reset }), penstock.ErrBadCost, "Cost"},
		{with(good, func(r *penstock.Request) { r.ID = "x" }), penstock.ErrBadCost, "ID"},
	}
}

func with(r penstock.Request, change func(*penstock.Request)) penstock.Request {
	change(&r)
	return r
}

type badLimit struct {
	limit penstock.Limit
	field string
}

func badLimits() []badLimit {
	const (
		fixed   = penstock.FixedWindow
		rolling = penstock.RollingWindow
		log     = penstock.SlidingLog
	)
	return []badLimit{
		{penstock.Limit{}, "Period"},
		{penstock.Limit{Count: 1, Period: -time.Second}, "Period"},
		{penstock.Limit{Count: 1, Period: 366*day + 1}, "Period"},
		{penstock.Limit{Count: -1, Period: time.Second}, "Count"},
		{penstock.Limit{Count: math.MinInt64, Period: time.Second}, "Count"},
		{penstock.Limit{Count: 1, Period: time.Second, Burst: -1}, "Burst"},
		{penstock.Limit{Count: 1, Period: time.Second, Burst: math.MaxInt64}, "Burst"},
		{penstock.Limit{Count: 999_999_999, Period: time.Second}, "Count"}, // no whole nanosecond is near
		{penstock.Limit{Count: 1, Period: time.Second, Debt: -2}, "Debt"},
		{penstock.Limit{Count: 1, Period: time.Second, Debt: math.MaxInt64}, "Debt"},
		{penstock.Limit{Count: 1, Period: time.Second, Algorithm: fixed, Debt: math.MaxInt64}, "Debt"},
		{penstock.Limit{Count: 1, Period: time.Second, Algorithm: penstock.SlidingWindow, Debt: 1<<26 - 1}, "Debt"},
		{penstock.Limit{Count: 1, Period: time.Second, Name: strings.Repeat("n", 65)}, "Name"},
		{penstock.Limit{Count: 1, Period: time.Second, Algorithm: penstock.Algorithm(len(algorithms))}, "Algorithm"},
		{penstock.Limit{Count: 1, Period: time.Second, Algorithm: rolling, Buckets: -1}, "Buckets"},
		{penstock.Limit{Count: 1, Period: time.Second, Algorithm: rolling, Buckets: 1001}, "Buckets"},
		{penstock.Limit{Count: 10_001, Period: time.Second, Algorithm: log}, "Count"},
		{penstock.Limit{Count: 1, Period: 24*day + 1, Algorithm: log}, "Period"},
		{penstock.Limit{Count: 10_001, Period: time.Second, Algorithm: penstock.Concurrent}, "Count"},
		{penstock.Limit{Count: 1, Period: day + 1, Algorithm: penstock.Concurrent}, "Period"},
		{penstock.Limit{Count: 1 << 26, Period: time.Second, Algorithm: penstock.SlidingWindow}, "Count"},
		{penstock.Limit{Count: 1, Period: time.Second, Algorithm: fixed, Align: penstock.AlignYear + 1}, "Align"},
		{penstock.Limit{Count: 1, Period: time.Minute, Algorithm: fixed, Align: penstock.AlignDay}, "Period"},
		{penstock.Limit{Count: 1, Algorithm: fixed, Align: penstock.AlignDay, Zone: "Mars/Olympus_Mons"}, "Zone"},
		{penstock.Limit{Count: 1, Algorithm: fixed, Align: penstock.AlignDay, Offset: 24 * time.Hour}, "Offset"},
		{penstock.Limit{Count: 1, Period: time.Second, Algorithm: fixed, Align: penstock.AlignClock, Offset: -time.Second}, "Offset"},
	}
}
