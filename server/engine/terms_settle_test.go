package engine_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
)

const settleRules = `
domain: llm
descriptors:
  - {key: minute, limit: "100/1m ALGORITHM", settle: true, hold: 1h}
  - {key: day, limit: "1000/1d ALGORITHM", settle: true}
  - {key: requests, limit: "10/1m"}
  - {key: trial, limit: "5/1m", shadow_mode: true, settle: true}
  - {key: plan, value: a, quota_mode: true, limit: "5/1m", settle: true}
  - {key: plan, value: b, quota_mode: true, limit: "50/1m", settle: true}
  - {key: used, limit: "50/1m", charge: always}
`

// newSettleEngine returns an engine with rules that settle.
func newSettleEngine(t *testing.T, store penstock.Store, algorithm string, o *engine.Options) *engine.Engine {
	return newEngine(t, store, strings.ReplaceAll(settleRules, "ALGORITHM", algorithm), o)
}

func takeWithID(t *testing.T, e *engine.Engine, id string, ds ...engine.Descriptor) string {
	t.Helper()
	var r engine.Result
	if err := e.DecideOn(t.Context(), "llm", engine.Terms{ID: id}, ds, &r); err != nil {
		t.Fatalf("taking %v: %v", ds, err)
	}
	return textOf(&r)
}

func settle(t *testing.T, e *engine.Engine, id string, ds ...engine.Descriptor) string {
	t.Helper()
	var r engine.Result
	if err := e.DecideOn(t.Context(), "llm", engine.Terms{ID: id, Settle: true}, ds, &r); err != nil {
		t.Fatalf("settling %v: %v", ds, err)
	}
	return textOf(&r)
}

// All rules with settle are settled as one, each to its own amount. Those without are
// charged once, however often the take is repeated, and are left alone.
func TestSettleByRules(t *testing.T) {
	for _, algorithm := range []string{"token-bucket", "fixed-window", "sliding-window"} {
		onBothStores(t, func(t *testing.T, store penstock.Store) {
			e := newSettleEngine(t, store, algorithm, nil)
			take := []engine.Descriptor{descriptor(40, "minute=7"), descriptor(40, "day=7"), descriptor(1, "requests=7")}
			for range 2 {
				want(t, takeWithID(t, e, "x", take...), "allowed: granted=40 remaining=60 | granted=40 remaining=960 | granted=1 remaining=9")
			}
			used := []engine.Descriptor{descriptor(15, "minute=7"), descriptor(20, "day=7"), descriptor(1, "requests=7")}
			for range 2 {
				want(t, settle(t, e, "x", used...), "allowed: granted=15 remaining=85 | granted=20 remaining=980 | granted=0 remaining=9")
			}
			want(t, settle(t, e, "x", descriptor(130, "minute=7"), descriptor(0, "day=7")),
				"allowed: granted=130 remaining=0 | granted=0 remaining=1000")
		})
	}
}

// If the ID is not remembered for one of the limits, none is settled.
func TestSettleByRulesIsAllOrNothing(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newSettleEngine(t, store, "fixed-window", nil)
		takeWithID(t, e, "x", descriptor(40, "minute=7"))
		var r engine.Result
		err := e.DecideOn(t.Context(), "llm", engine.Terms{ID: "x", Settle: true}, []engine.Descriptor{descriptor(1, "minute=7"), descriptor(1, "day=7")}, &r)
		if !errors.Is(err, penstock.ErrUnknownID) {
			t.Errorf("got %v, want ErrUnknownID", err)
		}
		want(t, decide(t, e, "llm", descriptor(0, "minute=7"), descriptor(0, "day=7")),
			"allowed: granted=0 remaining=60 | granted=0 remaining=1000")
		if n := counterOf(e, "llm/minute").Errors.Load(); n != 0 {
			t.Errorf("an unknown ID counts as %d failures of the store", n)
		}
	})
}

// A denied take records nothing, so that it is decided anew.
func TestDeniedTakeWithIDIsNotRemembered(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newSettleEngine(t, store, "fixed-window", nil)
		over := []engine.Descriptor{descriptor(40, "minute=7"), descriptor(2000, "day=7"), descriptor(3, "plan=b")}
		for range 2 {
			want(t, takeWithID(t, e, "x", over...),
				"denied: granted=0 remaining=100 | granted=0 remaining=1000 over denied | granted=0 remaining=50")
		}
		over[1].Cost = 30
		want(t, takeWithID(t, e, "x", over...), "allowed: granted=40 remaining=60 | granted=30 remaining=970 | granted=3 remaining=47")
	})
}

// A repeated take that is denied refunds nothing of the first one, which was allowed: not even if the
// limit that denies has a shorter period, and would forget the ID before a quota rule does.
func TestDeniedRepetitionKeepsWhatWasGranted(t *testing.T) {
	now := noon
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
	e := newEngine(t, store, `
domain: llm
descriptors:
  - {key: second, limit: "1/1s fixed-window", settle: true}
  - {key: plan, quota_mode: true, limit: "5/1h fixed-window", settle: true}
`, nil)
	take := []engine.Descriptor{descriptor(1, "second=7"), descriptor(3, "plan=a")}
	want(t, takeWithID(t, e, "x", take...), "allowed: granted=1 remaining=0 | granted=3 remaining=2")
	now = now.Add(2 * time.Second)
	want(t, takeWithID(t, e, "other", descriptor(1, "second=7")), "allowed: granted=1 remaining=0")
	want(t, takeWithID(t, e, "x", take...), "allowed: granted=1 remaining=0 | granted=3 remaining=2")
	want(t, decide(t, e, "llm", descriptor(0, "plan=a")), "allowed: granted=0 remaining=2")
	now = now.Add(time.Hour)
	want(t, takeWithID(t, e, "x", take...), "allowed: granted=1 remaining=0 | granted=3 remaining=2")
}

// A shadow rule, and a quota rule beside another, may have granted nothing to an allowed
// request. It is settled if it has, and peeked at otherwise.
func TestSettleByShadowAndQuotaRules(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newSettleEngine(t, store, "fixed-window", nil)
		for _, c := range []struct {
			id     string
			cost   int64
			settle string
		}{
			{"small", 4, "allowed: granted=1 remaining=4 | granted=1 remaining=4 | granted=1 remaining=49"},
			{"large", 20, "allowed: granted=0 remaining=4 | granted=0 remaining=4 | granted=1 remaining=48"},
		} {
			takeWithID(t, e, c.id, descriptor(c.cost, "trial=7"), descriptor(c.cost, "plan=a"), descriptor(c.cost, "plan=b"))
			want(t, settle(t, e, c.id, descriptor(1, "trial=7"), descriptor(1, "plan=a"), descriptor(1, "plan=b")), c.settle)
		}
	})
}

// In shadow mode a request is allowed that a rule would deny; to settle it is no error.
func TestSettleInShadowMode(t *testing.T) {
	e := newSettleEngine(t, newMemory(), "fixed-window", &engine.Options{Shadow: true})
	takeWithID(t, e, "x", descriptor(500, "minute=7"))
	want(t, settle(t, e, "x", descriptor(5, "minute=7")), "allowed: granted=0 remaining=100")
}

// What was used is settled also if the key was banned meanwhile, or is not limited any more.
func TestSettleUnderOverrides(t *testing.T) {
	book, err := overrides.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	e := newSettleEngine(t, newMemory(), "fixed-window", &engine.Options{Overrides: book})
	put := func(limit string) {
		if err := book.Put(t.Context(), []overrides.Override{{Rule: "llm/minute", Key: "minute=7", Limit: limit}}); err != nil {
			t.Fatal(err)
		}
	}
	takeWithID(t, e, "x", descriptor(40, "minute=7"))
	put("ban")
	want(t, settle(t, e, "x", descriptor(5, "minute=7")), "allowed: granted=5 remaining=95")
	put("unlimited")
	want(t, takeWithID(t, e, "y", descriptor(40, "minute=7"), descriptor(1, "requests=7")), "allowed: unlimited | granted=1 remaining=9")
	want(t, settle(t, e, "y", descriptor(5, "minute=7"), descriptor(1, "requests=7")), "allowed: unlimited | granted=0 remaining=9")
}

// What no rule matches can be taken and settled: nothing limits it.
func TestSettleUnmatched(t *testing.T) {
	e := newSettleEngine(t, newMemory(), "fixed-window", &engine.Options{DenyUnmatched: true})
	want(t, settle(t, e, "x", descriptor(5, "other=7")), "allowed: no rule")
	var r engine.Result
	if err := e.DecideOn(t.Context(), "elsewhere", engine.Terms{ID: "x", Settle: true}, []engine.Descriptor{descriptor(5, "other=7")}, &r); err != nil || r.OverLimit {
		t.Errorf("in an unknown domain: %v, %v", textOf(&r), err)
	}
}

// A request under an ID needs rules that can be repeated, and a settlement a rule with settle.
func TestTakeWithIDIsRefused(t *testing.T) {
	for _, c := range []struct {
		name    string
		options engine.Options
		ds      []engine.Descriptor
		want    error
	}{
		{"no rule with settle", engine.Options{}, []engine.Descriptor{descriptor(1, "requests=7")}, engine.ErrNoSettle},
		{"charge: always", engine.Options{}, []engine.Descriptor{descriptor(1, "minute=7"), descriptor(1, "used=7")}, engine.ErrNoSettle},
		{"compat", engine.Options{CompatEnvoy: true}, []engine.Descriptor{descriptor(1, "minute=7")}, engine.ErrNoSettle},
		{"a refund", engine.Options{}, []engine.Descriptor{descriptor(-1, "minute=7")}, penstock.ErrBadCost},
		{"twice the same key", engine.Options{}, []engine.Descriptor{descriptor(1, "minute=7"), descriptor(1, "minute=7")}, penstock.ErrBadCost},
		{"twice the same key beside a quota", engine.Options{}, []engine.Descriptor{descriptor(1, "plan=b"), descriptor(1, "minute=7"), descriptor(1, "minute=7")}, penstock.ErrBadCost},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newSettleEngine(t, newMemory(), "fixed-window", &c.options)
			var r engine.Result
			err := e.DecideOn(t.Context(), "llm", engine.Terms{ID: "x"}, c.ds, &r)
			if c.name != "no rule with settle" && !errors.Is(err, c.want) {
				t.Errorf("take: got %v, want %v", err, c.want)
			}
			if err := e.DecideOn(t.Context(), "llm", engine.Terms{ID: "x", Settle: true}, c.ds, &r); !errors.Is(err, c.want) {
				t.Errorf("settle: got %v, want %v", err, c.want)
			}
			want(t, decide(t, e, "llm", descriptor(0, "minute=7"), descriptor(0, "plan=b")), "allowed: granted=0 remaining=100 | granted=0 remaining=50")
		})
	}
}

// A settlement is no request: it changes neither the counters nor the top keys.
func TestSettlementsAreNotCounted(t *testing.T) {
	e := newSettleEngine(t, newMemory(), "fixed-window", nil)
	takeWithID(t, e, "x", descriptor(40, "minute=7"))
	settle(t, e, "x", descriptor(15, "minute=7"))
	c := counterOf(e, "llm/minute")
	if c.Allowed() != 1 || c.AllowedUnits() != 40 || c.Denied.Load() != 0 {
		t.Errorf("%d allowed with %d units, %d denied, want the take", c.Allowed(), c.AllowedUnits(), c.Denied.Load())
	}
}

func counterOf(e *engine.Engine, rule string) *engine.RuleStats {
	for _, c := range e.RuleStats() {
		if c.Rule == rule {
			return c
		}
	}
	return nil
}
