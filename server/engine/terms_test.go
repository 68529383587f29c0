package engine_test

import (
	"errors"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

const termRules = `
domain: d
descriptors:
  - key: user
    limit: 10/1h fixed-window
  - key: address
    limit: 4/1h
    also: 6/1d fixed-window
  - key: watched
    limit: 20/1h
    shadow_mode: true
  - key: quota
    limit: 5/1h
    quota_mode: true
  - key: kept
    limit: 10/1h fixed-window
    keep_free: 2
  - key: line
    limit: 1/1h leaky-bucket burst=3
  - key: report
    limit: 10/1h
    charge: always
`

func decideOn(t *testing.T, e *engine.Engine, terms engine.Terms, ds ...engine.Descriptor) string {
	t.Helper()
	var r engine.Result
	if err := e.DecideOn(t.Context(), "d", terms, ds, &r); err != nil {
		t.Fatalf("deciding %v on %+v: %v", ds, terms, err)
	}
	return textOf(&r)
}

// A request for at most its cost takes what the limit with the least has left, from all of them.
func TestAtMostByRulesTakesTheLeast(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, termRules, nil)
		atMost := engine.Terms{AtMost: true}
		want(t, decideOn(t, e, atMost, descriptor(7, "user=1")), "allowed: granted=7 remaining=3")
		want(t, decideOn(t, e, atMost, descriptor(9, "user=2"), descriptor(9, "address=a"), descriptor(9, "watched=w"), descriptor(9, "none=0")),
			"allowed: granted=4 remaining=6 | granted=4 remaining=0 | granted=4 remaining=16 | no rule")
		want(t, decideOn(t, e, atMost, descriptor(9, "user=2"), descriptor(9, "address=a")), "denied: granted=0 remaining=6 | granted=0 remaining=0 over denied")
		want(t, decide(t, e, "d", descriptor(0, "user=2"), descriptor(0, "watched=w")), "allowed: granted=0 remaining=6 | granted=0 remaining=16")
	})
}

// A request that cannot be granted in part is a typed error, and charges nothing.
func TestAtMostByRulesIsRefused(t *testing.T) {
	for _, c := range []struct {
		terms   engine.Terms
		options engine.Options
		ds      []engine.Descriptor
		want    error
	}{
		{ds: []engine.Descriptor{descriptor(2, "user=1"), descriptor(3, "address=a")}, want: penstock.ErrBadCost},
		{ds: []engine.Descriptor{descriptor(-2, "user=1")}, want: penstock.ErrBadCost},
		{terms: engine.Terms{ID: "x", Settle: true}, ds: []engine.Descriptor{descriptor(2, "user=1")}, want: penstock.ErrBadCost},
		{terms: engine.Terms{ID: "x"}, ds: []engine.Descriptor{descriptor(2, "user=1"), descriptor(2, "address=a")}, want: engine.ErrNoAtMost},
		{ds: []engine.Descriptor{descriptor(2, "user=1"), descriptor(2, "quota=q")}, want: engine.ErrNoAtMost},
		{ds: []engine.Descriptor{descriptor(2, "user=1"), descriptor(2, "report=q")}, want: engine.ErrNoAtMost},
		{options: engine.Options{CompatEnvoy: true}, ds: []engine.Descriptor{descriptor(2, "user=1")}, want: engine.ErrNoAtMost},
	} {
		e := newEngine(t, newMemory(), termRules, &c.options)
		c.terms.AtMost = true
		var r engine.Result
		if err := e.DecideOn(t.Context(), "d", c.terms, c.ds, &r); !errors.Is(err, c.want) {
			t.Errorf("%v on %+v: got %v, want %v", c.ds, c.terms, err, c.want)
		}
		want(t, decide(t, e, "d", descriptor(0, "user=1"), descriptor(0, "address=a")), "allowed: granted=0 remaining=10 | granted=0 remaining=4")
	}
}

// A repeated request under an ID is charged once, without settle, by all rules that apply to it.
func TestIDByRulesChargesOnce(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, termRules, &engine.Options{CacheDenials: true})
		for range 3 {
			got := decideOn(t, e, engine.Terms{ID: "x"}, descriptor(4, "user=1"), descriptor(4, "address=a"))
			want(t, got, "allowed: granted=4 remaining=6 | granted=4 remaining=0")
		}
		want(t, decide(t, e, "d", descriptor(1, "user=1"), descriptor(1, "address=a")), "denied: granted=0 remaining=6 | granted=0 remaining=0 over denied")
		want(t, decideOn(t, e, engine.Terms{ID: "x", AtMost: true}, descriptor(9, "quota=q")), "allowed: granted=5 remaining=0")
		want(t, decideOn(t, e, engine.Terms{ID: "x", AtMost: true}, descriptor(9, "quota=q")), "allowed: granted=5 remaining=0")
		want(t, decideOn(t, e, engine.Terms{AtMost: true}, descriptor(30, "watched=w")), "allowed: granted=20 remaining=0")
	})
}

// The larger of what the caller and the rule keep free must remain, also under compat. A denial for
// that reason is not remembered for others.
func TestKeepFreeByRules(t *testing.T) {
	for _, o := range []engine.Options{{}, {CacheDenials: true}, {CompatEnvoy: true, OverLimitKeys: 9}} {
		e := newEngine(t, newMemory(), termRules, &o)
		three := engine.Terms{KeepFree: 3}
		want(t, decideOn(t, e, three, descriptor(7, "user=1"), descriptor(7, "kept=1")), "allowed: granted=7 remaining=3 | granted=7 remaining=3")
		if o.CompatEnvoy { // denied hits are counted there
			want(t, decideOn(t, e, three, descriptor(1, "user=1")), "denied: granted=1 remaining=2 over denied")
			want(t, decide(t, e, "d", descriptor(1, "user=1")), "allowed: granted=1 remaining=1")
			continue
		}
		want(t, decideOn(t, e, three, descriptor(1, "user=1")), "denied: granted=0 remaining=3 over denied")
		want(t, decideOn(t, e, engine.Terms{KeepFree: 1}, descriptor(2, "kept=1")), "denied: granted=0 remaining=3 over denied")
		want(t, decide(t, e, "d", descriptor(3, "user=1")), "allowed: granted=3 remaining=0")
	}
}

// A queue allows an API that cannot hold requests what needs no delay, and no units ahead.
func TestQueueByRulesWithoutDelay(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, termRules, nil)
		cannotHold := engine.Terms{MaxDelay: engine.NoDelay}
		want(t, decideOn(t, e, cannotHold, descriptor(1, "line=1"), descriptor(1, "user=1")), "allowed: granted=1 remaining=2 | granted=1 remaining=9")
		want(t, decideOn(t, e, cannotHold, descriptor(1, "line=1"), descriptor(1, "user=1")), "denied: granted=0 remaining=2 over denied | granted=0 remaining=9")
		want(t, decide(t, e, "d", descriptor(1, "line=1")), "allowed: granted=1 remaining=1")
		if _, err := e.FindTarget(t.Context(), "d", descriptor(1, "line=1").Entries); !errors.Is(err, engine.ErrQueue) {
			t.Errorf("units ahead: got %v, want ErrQueue", err)
		}
	})
}
