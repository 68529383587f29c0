package ahead_test

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/ahead"
	"github.com/penstock-io/penstock/server/rulestats"
)

// target returns a target of a key under five an hour.
func target(key string) ahead.Target {
	l := penstock.Limit{Algorithm: penstock.FixedWindow, Count: 5, Period: time.Hour}
	return ahead.Target{Limit: l, Request: penstock.Request{Key: key, Limit: l}, Stats: &rulestats.Rule{Stats: &rulestats.Stats{}}, Reports: &ahead.Reports{}}
}

func TestTakeGrantsAtMostWhatIsLeft(t *testing.T) {
	store := penstock.NewMemory(nil)
	banned := target("banned")
	banned.Banned = true
	ts := []ahead.Target{target("a"), target("b"), banned, target("c")}
	for i, want := range [][]int64{{3, 5, 0, 0}, {2, 0, 0, 0}} {
		ds := make([]penstock.Decision, len(ts))
		if err := ahead.Take(t.Context(), store, ts, []int64{3, 9, 3, -1}, ds); err != nil {
			t.Fatal(err)
		}
		for k := range ds {
			if ds[k].Granted != want[k] {
				t.Errorf("call %d, %s: %+v, want %d granted", i, ts[k].Request.Key, ds[k], want[k])
			}
		}
	}
	if ds := make([]penstock.Decision, 1); ahead.Take(t.Context(), store, ts[2:3], []int64{1}, ds) != nil || ds[0].Remaining != 5 {
		t.Errorf("a banned key was charged: %+v", ds[0])
	}
}

func TestTakeCountsErrors(t *testing.T) {
	bad := target("b")
	bad.Request.Limit.Count = -1
	ts, ds := []ahead.Target{target("a"), bad}, make([]penstock.Decision, 2)
	if err := ahead.Take(t.Context(), penstock.NewMemory(nil), ts, []int64{1, 1}, ds); !errors.Is(err, penstock.ErrBadLimit) {
		t.Fatal(err)
	}
	for i := range ts {
		if n := ts[i].Stats.Errors.Load(); n != 1 {
			t.Errorf("%s: %d errors, want 1", ts[i].Request.Key, n)
		}
	}
}

func TestReportsCountInStatsAndTopKeys(t *testing.T) {
	tracker := topkeys.New(nil)
	one := target("user=a")
	one.Reports.TopKeys, one.Source, one.Banned = tracker, tracker.NewSource("shop/user"), true
	one.CountReported(7, 2, true)
	one.CountShadowed(3)
	if s := one.Stats; s.Allowed() != 7 || s.Denied.Load() != 2 || s.Banned.Load() != 2 || s.Shadowed.Load() != 3 {
		t.Errorf("%d allowed, %d denied, %d by a ban, %d shadowed", s.Allowed(), s.Denied.Load(), s.Banned.Load(), s.Shadowed.Load())
	}
	rule := "shop/user"
	asked, _ := tracker.Keys(&rule)
	if top := asked.Top(1).Entries; len(top) != 1 || top[0].Key != "user=a" || top[0].Count != 9 {
		t.Errorf("top keys: %+v", top)
	}
	one.CountReported(1<<63, 1<<63, true)
	if got := one.Stats.Allowed(); got != 7+rulestats.MaxUnits {
		t.Errorf("%d allowed after a hostile report", got)
	}
}

func TestUnmatchedTargetsAreReported(t *testing.T) {
	var reported [][]rules.Entry
	var counter atomic.Uint64
	entries := []rules.Entry{{Key: "user", Value: "a"}}
	none := ahead.Target{Unmatched: &counter, Reports: &ahead.Reports{OnUnmatched: func(_ string, e []rules.Entry) { reported = append(reported, e) }}}
	none.CountReported(2, 1, true)
	none.CountShadowed(1) // without statistics
	none.ReportUnmatched("shop", entries)
	none.UnknownDomain = true
	none.ReportUnmatched("shop", entries)
	matched := target("user=a")
	matched.ReportUnmatched("shop", entries)
	if counter.Load() != 3 || len(reported) != 2 || len(reported[0]) != 1 || reported[1] != nil {
		t.Errorf("%d requests and %v, want 3, and an entry only of the known domain", counter.Load(), reported)
	}
}
