package engine_test

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// countersOf returns the counters of a rule in one line.
func countersOf(t testing.TB, e *engine.Engine, rule string) string {
	t.Helper()
	for _, c := range e.RuleStats() {
		if c.Rule == rule {
			return fmt.Sprintf("limit=%d allowed=%d/%d denied=%d/%d shadowed=%d errors=%d", c.Limit,
				c.Allowed(), c.AllowedUnits(), c.Denied.Load(), c.DeniedUnits.Load(), c.Shadowed.Load(), c.Errors.Load())
		}
	}
	t.Fatalf("no counters of %q", rule)
	return ""
}

func TestRuleStatsCountDecisions(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, apiRules, nil)
		decide(t, e, "api", descriptor(2, "user=ada"))
		decide(t, e, "api", descriptor(1, "user=ada"), descriptor(5, "path=/")) // the path is only peeked at
		decide(t, e, "api", descriptor(0, "user=ada"))
		decide(t, e, "api", descriptor(-1, "user=ada"))
		decide(t, e, "api", descriptor(1, "trial=x"), descriptor(3, "path=/"))
		decide(t, e, "api", descriptor(1, "trial=x"))
		decide(t, e, "api", withOverride(descriptor(2, "other=x"), 2))
		decide(t, e, "api", withOverride(descriptor(4, "other=x"), 2))
		want(t, countersOf(t, e, "api/user"), "limit=2 allowed=1/2 denied=1/1 shadowed=0 errors=0")
		want(t, countersOf(t, e, "api/path"), "limit=10 allowed=1/3 denied=0/0 shadowed=0 errors=0")
		want(t, countersOf(t, e, "api/trial"), "limit=1 allowed=1/1 denied=0/0 shadowed=1 errors=0")
		want(t, countersOf(t, e, "api/never"), "limit=0 allowed=0/0 denied=0/0 shadowed=0 errors=0")
		want(t, countersOf(t, e, ""), "limit=0 allowed=1/2 denied=1/4 shadowed=0 errors=0")
		for _, c := range e.RuleStats() {
			if c.Rule == "api/vip" {
				t.Error("there are counts of a rule that limits nothing")
			}
		}
	})
}

func TestRuleStatsOfQuotaRules(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, quotaRules, nil)
		decide(t, e, "quota", descriptor(1, "small=x"), descriptor(3, "hard=x")) // refunded
		decide(t, e, "quota", descriptor(1, "small=x"), descriptor(1, "large=x"))
		decide(t, e, "quota", descriptor(1, "small=x"), descriptor(1, "large=x"))
		want(t, countersOf(t, e, "quota/small"), "limit=1 allowed=1/1 denied=1/1 shadowed=0 errors=0")
		want(t, countersOf(t, e, "quota/large"), "limit=3 allowed=2/2 denied=0/0 shadowed=0 errors=0")
		want(t, countersOf(t, e, "quota/hard"), "limit=2 allowed=0/0 denied=1/3 shadowed=0 errors=0")
	})
}

func TestRuleStatsOfEnvoyCompatDomain(t *testing.T) {
	e := newEngine(t, newMemory(), compatRules, nil)
	decide(t, e, "envoy", descriptor(2, "one=x"), descriptor(3, "five=x")) // the first is denied, the second charged
	decide(t, e, "envoy", descriptor(9, "trial=x"))
	want(t, countersOf(t, e, "envoy/one"), "limit=1 allowed=0/0 denied=1/2 shadowed=0 errors=0")
	want(t, countersOf(t, e, "envoy/five"), "limit=5 allowed=1/3 denied=0/0 shadowed=0 errors=0")
	want(t, countersOf(t, e, "envoy/trial"), "limit=1 allowed=0/0 denied=0/0 shadowed=1 errors=0")
}

func TestRuleStatsInShadowMode(t *testing.T) {
	e := newEngine(t, newMemory(), apiRules, &engine.Options{Shadow: true})
	decide(t, e, "api", descriptor(3, "user=ada"))
	want(t, countersOf(t, e, "api/user"), "limit=2 allowed=0/0 denied=0/0 shadowed=1 errors=0")
}

func TestRuleStatsOfRequestLimits(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := engine.New(store, nil)
		limit := penstock.PerHour(5)
		take := func(cost int64) penstock.Request { return penstock.Request{Key: "k", Limit: limit, Cost: cost} }
		for _, cost := range []int64{2, 4, 0, -1} { // allowed, denied, peeked, refunded
			if _, err := e.Take(t.Context(), take(cost), nil); err != nil {
				t.Fatal(err)
			}
		}
		want(t, countersOf(t, e, ""), "limit=0 allowed=1/2 denied=1/4 shadowed=0 errors=0")

		ds := make([]penstock.Decision, 2)
		other := penstock.Request{Key: "other", Limit: limit, Cost: 1}
		if err := e.TakeEach(t.Context(), []penstock.Request{take(1), take(9)}, ds, nil); err != nil {
			t.Fatal(err)
		}
		want(t, countersOf(t, e, ""), "limit=0 allowed=2/3 denied=2/13 shadowed=0 errors=0")
		if err := e.TakeAll(t.Context(), []penstock.Request{take(9), other}, ds, nil); err != nil {
			t.Fatal(err)
		}
		want(t, countersOf(t, e, ""), "limit=0 allowed=2/3 denied=3/22 shadowed=0 errors=0")
		if err := e.TakeAll(t.Context(), []penstock.Request{take(1), other}, ds, nil); err != nil {
			t.Fatal(err)
		}
		want(t, countersOf(t, e, ""), "limit=0 allowed=4/5 denied=3/22 shadowed=0 errors=0")

		bad := penstock.Request{Key: "", Limit: limit, Cost: 1}
		if _, err := e.Take(t.Context(), bad, nil); !errors.Is(err, penstock.ErrBadKey) {
			t.Errorf("got %v, want ErrBadKey", err)
		}
		if err := e.TakeEach(t.Context(), []penstock.Request{bad}, ds, nil); !errors.Is(err, penstock.ErrBadKey) {
			t.Errorf("got %v, want ErrBadKey", err)
		}
		if err := e.TakeAll(t.Context(), []penstock.Request{bad}, ds, nil); !errors.Is(err, penstock.ErrBadKey) {
			t.Errorf("got %v, want ErrBadKey", err)
		}
		want(t, countersOf(t, e, ""), "limit=0 allowed=4/5 denied=3/22 shadowed=0 errors=3")
	})
}

// Callers choose limits and costs. However large what they are granted is, no counter goes back.
func TestAllowedUnitsDoNotOverflow(t *testing.T) {
	const most = math.MaxInt64 / 2
	limit := penstock.Limit{Algorithm: penstock.FixedWindow, Count: most, Period: time.Hour}
	e := newEngine(t, penstock.NewMemory(nil), fmt.Sprintf("domain: api\ndescriptors: [{key: user, limit: %d/1h fixed-window}]", int64(most)), nil)
	local := e.LocalStats()
	before := map[string]uint64{}
	for i := range 6 {
		key := strconv.Itoa(i)
		want(t, decide(t, e, "api", descriptor(most, "user="+key)), fmt.Sprintf("allowed: granted=%d remaining=0", int64(most)))
		if d, err := e.Take(t.Context(), penstock.Request{Key: key, Limit: requestlimits.Of(limit), Cost: most}, nil); err != nil || d.Granted != most {
			t.Fatalf("got %+v, %v", d, err)
		}
		local.Count(&limit, key, most, &penstock.Decision{Allowed: true, Granted: most})
		local.Flush()
		for _, c := range e.RuleStats() {
			if c.AllowedUnits() <= before[c.Rule] {
				t.Fatalf("after %d requests %q has %d units, before %d", i+1, c.Rule, c.AllowedUnits(), before[c.Rule])
			}
			before[c.Rule] = c.AllowedUnits()
		}
	}
}

func TestSetRulesKeepsStateAndCounters(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, apiRules, nil)
		before := e.Rules()
		want(t, decide(t, e, "api", descriptor(2, "user=ada")), "allowed: granted=2 remaining=0")

		e.SetRules(parse(t, strings.Replace(apiRules, "requests_per_unit: 2", "requests_per_unit: 5", 1)))
		want(t, decide(t, e, "api", descriptor(1, "user=ada")), "allowed: granted=1 remaining=2")
		want(t, countersOf(t, e, "api/user"), "limit=5 allowed=2/3 denied=0/0 shadowed=0 errors=0")
		if e.Rules() == before {
			t.Error("the old rules are still in force")
		}

		e.SetRules(parse(t, "domain: api"))
		want(t, decide(t, e, "api", descriptor(1, "user=ada")), "allowed: no rule")
		if n := len(e.RuleStats()); n != 1 {
			t.Errorf("without rules there are %d counts, want 1", n)
		}
	})
}

const permitRules = `domain: held
descriptors:
- {key: user, limit: 2/30s concurrent, id: request_id}
- {key: path, limit: 5/1h}
`

// The counters tell what becomes of permits: released, found expired or never granted, and
// refused because of their ID alone. A refund of a rate is none of it.
func TestRuleStatsCountPermits(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, permitRules, nil)
		permit := func(cost int64, id string) { decide(t, e, "held", descriptor(cost, "user=ada", "request_id="+id)) }
		permit(1, "a")
		permit(1, "a") // one is free: only the ID refuses it
		permit(1, "b")
		permit(1, "b") // none is free: a new ID would be denied, too
		permit(1, "c")
		permit(-1, "c") // never granted
		permit(-1, "a")
		permit(-1, "a") // released already
		permit(0, "b")
		decide(t, e, "held", descriptor(2, "path=/"))
		decide(t, e, "held", descriptor(-2, "path=/"))
		want(t, countersOf(t, e, "held/user"), "limit=2 allowed=2/2 denied=3/3 shadowed=0 errors=0")
		for _, c := range e.RuleStats() {
			got := fmt.Sprint(c.HasPermits, c.Permits.Released.Load(), c.Permits.NotHeld.Load(), c.Permits.HeldIDs.Load())
			want(t, got, map[bool]string{true: "true 1 2 1", false: "false 0 0 0"}[c.Rule == "held/user"])
		}
	})
}

// A permit is released also in a request that is denied: its work has ended, and the charge for that, which
// Envoy reports in the same request, may find nothing left. Other refunds are not done then.
func TestDeniedRequestReleasesPermits(t *testing.T) {
	const yaml = `
domain: held
descriptors:
  - {key: user, limit: 2/30s concurrent, id: request_id}
  - {key: tokens, limit: 10/1h fixed-window, charge: always}
  - {key: path, limit: 5/1h fixed-window}
`
	for _, denied := range []engine.Descriptor{descriptor(7, "tokens=ada"), descriptor(6, "path=/")} {
		onBothStores(t, func(t *testing.T, store penstock.Store) {
			e := newEngine(t, store, yaml, nil)
			decide(t, e, "held", descriptor(10, "tokens=ada"))
			decide(t, e, "held", descriptor(3, "path=/b"))
			decide(t, e, "held", descriptor(1, "user=ada", "request_id=a"))
			release := descriptor(-1, "user=ada", "request_id=a")
			for range 2 {
				got := decide(t, e, "held", release, denied, descriptor(-2, "path=/b"))
				if !strings.HasPrefix(got, "denied: ") {
					t.Fatalf("got %s, want a denial", got)
				}
			}
			want(t, decide(t, e, "held", descriptor(0, "user=ada"), descriptor(0, "path=/b")), "allowed: granted=0 remaining=2 | granted=0 remaining=2")
			permits := &counterOf(e, "held/user").Permits
			want(t, fmt.Sprint(permits.Released.Load(), permits.NotHeld.Load()), "1 1")
		})
	}
}

// More permits than a store grants at once are denied, and fail only a caller that chose them itself:
// Envoy lets a request pass whose call fails.
func TestTooManyPermitsAreDenied(t *testing.T) {
	for _, compat := range []bool{false, true} {
		onBothStores(t, func(t *testing.T, store penstock.Store) {
			e := newEngine(t, store, permitRules, &engine.Options{CompatEnvoy: compat})
			for _, cost := range []int64{100, 101, math.MaxInt64} {
				got := decide(t, e, "held", descriptor(cost, "user=ada", "request_id=a"), descriptor(0, "path=/"))
				if !strings.HasPrefix(got, "denied: granted=0 ") {
					t.Errorf("%d permits: got %s, want a denial", cost, got)
				}
			}
			want(t, decide(t, e, "held", descriptor(1, "user=ada", "request_id=a"), descriptor(1, "path=/")), "allowed: granted=1 remaining=1 | granted=1 remaining=4")
			own := descriptor(101, "user=ada", "request_id=b")
			own.Permits = engine.RenewPermits
			var r engine.Result
			if err := e.Decide(t.Context(), "held", []engine.Descriptor{own}, &r); !errors.Is(err, penstock.ErrBadCost) {
				t.Errorf("101 permits of a caller that knows its IDs: got %v, want ErrBadCost", err)
			}
		})
	}
}
