package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/server/ahead"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
)

const aheadRules = `
domain: api
descriptors:
  - key: user
    limit: 100/1h
    keep_free: 20%
    penalty: {after: 5/1m, for: 10m}
  - key: job
    limit: 5/1m concurrent
    id: run
`

func find(t *testing.T, e *engine.Engine, entry string) ahead.Target {
	t.Helper()
	target, err := e.FindTarget(t.Context(), "api", descriptor(1, entry).Entries)
	if err != nil {
		t.Fatal(err)
	}
	return target
}

// takeAhead takes units, and returns how many were granted.
func takeAhead(t *testing.T, e *engine.Engine, units int64, entries ...string) []int64 {
	t.Helper()
	var targets []ahead.Target
	var wants, granted []int64
	for _, entry := range entries {
		targets, wants = append(targets, find(t, e, entry)), append(wants, units)
	}
	ds := make([]penstock.Decision, len(targets))
	if err := e.TakeAhead(t.Context(), targets, wants, ds); err != nil {
		t.Fatal(err)
	}
	for i := range ds {
		granted = append(granted, ds[i].Granted)
	}
	return granted
}

func TestTakeAheadTakesWhatRequestsOfTheKeyCanHave(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, aheadRules, nil)
		big := overrides.Override{Rule: "api/user", Key: "user=big", Limit: "500/1h"}
		ban := overrides.Override{Rule: "api/user", Key: "user=bad", Limit: "ban"}
		if err := e.Overrides().Put(t.Context(), []overrides.Override{big, ban}); err != nil {
			t.Fatal(err)
		}
		if got := takeAhead(t, e, 1000, "user=ada", "user=big", "user=bad"); got[0] != 80 || got[1] != 400 || got[2] != 0 {
			t.Errorf("80, 400 and 0 units can be taken ahead, and %v were", got)
		}
		if got := find(t, e, "user=bad"); !got.DenyAll || got.AllowAll {
			t.Errorf("a banned key is %+v", got)
		}
		var r engine.Result
		if err := e.Decide(t.Context(), "api", []engine.Descriptor{descriptor(1, "user=ada")}, &r); err != nil || !r.OverLimit {
			t.Errorf("a request is allowed after all was taken ahead: %v", err)
		}
	})
}

func TestFindTargetRefusesConcurrentLimit(t *testing.T) {
	e := newEngine(t, newMemory(), aheadRules, nil)
	for _, c := range []struct {
		domain, entry string
		want          error
	}{{"api", "job=1", engine.ErrNoRelease}, {"", "job=1", engine.ErrNoDomain}} {
		if _, err := e.FindTarget(t.Context(), c.domain, descriptor(1, c.entry).Entries); !errors.Is(err, c.want) {
			t.Errorf("%q %s: %v, want %v", c.domain, c.entry, err, c.want)
		}
	}
}

func TestReportedRequestsCountInTopKeys(t *testing.T) {
	keys := topkeys.New(nil)
	e := newEngine(t, newMemory(), aheadRules, &engine.Options{TopKeys: keys})
	target := find(t, e, "user=ada")
	target.CountReported(5, 2, true)
	target.CountReported(1, 0, true)
	asked, denied := countedKeys(keys)
	if asked[target.Limit.Name+"|user=ada"] != 8 || denied[target.Limit.Name+"|user=ada"] != 2 {
		t.Errorf("asked %v, denied %v, want 8 and 2 of user=ada", asked, denied)
	}
}

func TestReportedDenialsCountTowardsPenalty(t *testing.T) {
	e := newEngine(t, newMemory(), aheadRules, nil)
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		e.Overrides().Run(ctx)
		close(done)
	}()
	defer func() { stop(); <-done }()
	target := find(t, e, "user=eve")
	target.CountReported(3, 1<<60, true)
	if c := e.RuleStats()[1]; c.Allowed() != 3 || c.Denied.Load() != 1<<40 {
		t.Errorf("allowed %d, denied %d, want 3 and 2⁴⁰", c.Allowed(), c.Denied.Load())
	}
	deadline := time.After(time.Minute)
	poll := time.NewTicker(10 * time.Millisecond)
	defer poll.Stop()
	for !find(t, e, "user=eve").DenyAll {
		select {
		case <-poll.C:
		case <-deadline:
			t.Fatal("the key is not banned")
		}
	}
}
