package engine_test

import (
	"context"
	"errors"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
)

const apiRules = `
domain: api
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: path
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: never
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: vip
    rate_limit: {unlimited: true}
  - key: trial
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
`

func TestDecideLimitsEachKey(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, apiRules, nil)
		want(t, decide(t, e, "api", descriptor(1, "user=ada")), "allowed: granted=1 remaining=1")
		want(t, decide(t, e, "api", descriptor(1, "user=ada")), "allowed: granted=1 remaining=0")
		want(t, decide(t, e, "api", descriptor(1, "user=ada")), "denied: granted=0 remaining=0 over denied")
		want(t, decide(t, e, "api", descriptor(2, "user=bob")), "allowed: granted=2 remaining=0")
		want(t, decide(t, e, "api", descriptor(3, "user=eve")), "denied: granted=0 remaining=2 over denied")
		want(t, decide(t, e, "api", descriptor(1, "never=x")), "denied: granted=0 remaining=0 over denied")
	})
}

func TestDecideAllowsWithoutMatchingRule(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, apiRules, nil)
		want(t, decide(t, e, "api", descriptor(1, "colour=red")), "allowed: no rule")
		want(t, decide(t, e, "api", descriptor(1)), "allowed: no rule")
		want(t, decide(t, e, "elsewhere", descriptor(1, "user=ada")), "allowed: no rule")
		want(t, decide(t, e, "api", descriptor(99, "vip=ada")), "allowed: unlimited")
		want(t, decide(t, e, "api", descriptor(1, "colour=red"), descriptor(1, "user=ada"), descriptor(5, "vip=ada")),
			"allowed: no rule | granted=1 remaining=1 | unlimited")
	})
}

func TestDecideDeniedRequestTakesNothing(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, apiRules, nil)
		request := func() string { return decide(t, e, "api", descriptor(1, "path=/"), descriptor(2, "user=ada")) }
		want(t, request(), "allowed: granted=1 remaining=9 | granted=2 remaining=0")
		want(t, request(), "denied: granted=0 remaining=9 | granted=0 remaining=0 over denied")
		want(t, request(), "denied: granted=0 remaining=9 | granted=0 remaining=0 over denied")
		want(t, decide(t, e, "api", descriptor(1, "path=/")), "allowed: granted=1 remaining=8")
	})
}

func TestDecideDuplicateDescriptorsAddUp(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, apiRules, nil)
		want(t, decide(t, e, "api", descriptor(1, "user=ada"), descriptor(2, "user=ada")),
			"denied: granted=0 remaining=2 over denied | granted=0 remaining=2 over denied")
		want(t, decide(t, e, "api", descriptor(1, "user=ada"), descriptor(1, "user=ada")),
			"allowed: granted=1 remaining=1 | granted=1 remaining=0")
	})
}

func TestDecidePeeksAndRefunds(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, apiRules, nil)
		want(t, decide(t, e, "api", descriptor(0, "user=ada")), "allowed: granted=0 remaining=2")
		want(t, decide(t, e, "api", descriptor(2, "user=ada"), descriptor(0, "path=/")), "allowed: granted=2 remaining=0 | granted=0 remaining=10")
		want(t, decide(t, e, "api", descriptor(0, "user=ada")), "allowed: granted=0 remaining=0")
		want(t, decide(t, e, "api", descriptor(-1, "user=ada"), descriptor(1, "path=/")), "allowed: granted=-1 remaining=1 | granted=1 remaining=9")
		want(t, decide(t, e, "api", descriptor(1, "user=ada")), "allowed: granted=1 remaining=0")

		// A denied request refunds nothing either.
		want(t, decide(t, e, "api", descriptor(1, "user=ada"), descriptor(-1, "path=/")), "denied: granted=0 remaining=0 over denied | granted=0 remaining=9")
		want(t, decide(t, e, "api", descriptor(-5, "user=ada")), "allowed: granted=-2 remaining=2")
		want(t, decide(t, e, "api", descriptor(penstock.Reset, "path=/")), "allowed: granted=-1 remaining=10")
	})
}

func TestDecideShadowRuleNeverDenies(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, apiRules, nil)
		want(t, decide(t, e, "api", descriptor(1, "trial=x")), "allowed: granted=1 remaining=0")
		want(t, decide(t, e, "api", descriptor(1, "trial=x")), "allowed: granted=0 remaining=0 denied")

		// It is counted only when the request passes.
		want(t, decide(t, e, "api", descriptor(1, "trial=y"), descriptor(3, "user=ada")), "denied: granted=0 remaining=1 | granted=0 remaining=2 over denied")
		want(t, decide(t, e, "api", descriptor(1, "trial=y"), descriptor(2, "user=ada")), "allowed: granted=1 remaining=0 | granted=2 remaining=0")
	})
}

const quotaRules = `
domain: quota
descriptors:
  - {key: small, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: large, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: trial, quota_mode: true, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: hard, rate_limit: {unit: hour, requests_per_unit: 2}}
`

func TestDecideQuotaRulesDenyOnlyTogether(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, quotaRules, nil)
		request := func() string { return decide(t, e, "quota", descriptor(1, "small=x"), descriptor(1, "large=x")) }
		want(t, request(), "allowed: granted=1 remaining=0 | granted=1 remaining=2")
		want(t, request(), "allowed: granted=0 remaining=0 over denied | granted=1 remaining=1")
		want(t, request(), "allowed: granted=0 remaining=0 over denied | granted=1 remaining=0")
		want(t, request(), "denied: granted=0 remaining=0 over denied | granted=0 remaining=0 over denied")

		// Then the others are only peeked at.
		want(t, decide(t, e, "quota", descriptor(1, "hard=x"), descriptor(1, "small=x")), "denied: granted=0 remaining=2 | granted=0 remaining=0 over denied")
		want(t, decide(t, e, "quota", descriptor(2, "hard=x")), "allowed: granted=2 remaining=0")
	})
}

func TestDecideDenialRefundsQuotaRules(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, quotaRules, nil)
		want(t, decide(t, e, "quota", descriptor(1, "small=x"), descriptor(1, "large=x"), descriptor(3, "hard=x")),
			"denied: granted=0 remaining=1 | granted=0 remaining=3 | granted=0 remaining=2 over denied")
		want(t, decide(t, e, "quota", descriptor(1, "small=x"), descriptor(3, "large=x"), descriptor(2, "hard=x")),
			"allowed: granted=1 remaining=0 | granted=3 remaining=0 | granted=2 remaining=0")
	})
}

func TestDecideShadowQuotaRuleNeverDenies(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, quotaRules, nil)
		request := func() string { return decide(t, e, "quota", descriptor(1, "small=x"), descriptor(1, "trial=x")) }
		want(t, request(), "allowed: granted=1 remaining=0 | granted=1 remaining=0")
		want(t, request(), "allowed: granted=0 remaining=0 over denied | granted=0 remaining=0 denied")
		want(t, decide(t, e, "quota", descriptor(1, "small=x"), descriptor(0, "large=x")), "allowed: granted=0 remaining=0 over denied | granted=0 remaining=3")
	})
}

const replacingRules = `
domain: shop
descriptors:
  - {key: any, rate_limit: {name: basic, unit: hour, requests_per_unit: 1}}
  - {key: paid, rate_limit: {name: paid, replaces: [{name: basic}], unit: hour, requests_per_unit: 3}}
  - {key: gold, rate_limit: {replaces: [{name: paid}], unlimited: true}}
  - {key: free, rate_limit: {name: basic, unlimited: true}}
`

func TestDecideRuleReplacesOthers(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, replacingRules, nil)
		want(t, decide(t, e, "shop", descriptor(1, "any=x"), descriptor(2, "paid=x")), "allowed: no rule | granted=2 remaining=1")
		want(t, decide(t, e, "shop", descriptor(1, "any=x")), "allowed: granted=1 remaining=0")

		// What is replaced itself still replaces, and what has no limit stays so.
		want(t, decide(t, e, "shop", descriptor(1, "any=x"), descriptor(9, "paid=x"), descriptor(1, "gold=x")), "allowed: no rule | no rule | unlimited")
		want(t, decide(t, e, "shop", descriptor(1, "free=x"), descriptor(1, "paid=x")), "allowed: unlimited | granted=1 remaining=0")
	})
}

const compatRules = `
domain: envoy
compat: envoy
descriptors:
  - {key: five, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: one, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: small, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: large, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
`

func TestDecideEnvoyCompatCountsDeniedHits(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, compatRules, nil)
		want(t, decide(t, e, "envoy", descriptor(1, "five=x")), "allowed: granted=1 remaining=4")
		want(t, decide(t, e, "envoy", descriptor(3, "five=x")), "allowed: granted=3 remaining=1")
		want(t, decide(t, e, "envoy", descriptor(3, "five=x")), "denied: granted=3 remaining=0 over denied")
		want(t, decide(t, e, "envoy", descriptor(1, "five=x")), "denied: granted=1 remaining=0 over denied")
		want(t, decide(t, e, "envoy", descriptor(0, "five=x")), "denied: granted=0 remaining=0 over denied")
		want(t, decide(t, e, "envoy", descriptor(-3, "five=x")), "allowed: granted=-3 remaining=0")
		want(t, decide(t, e, "envoy", descriptor(0, "five=x")), "allowed: granted=0 remaining=0")
		want(t, decide(t, e, "envoy", descriptor(-2, "five=x")), "allowed: granted=-2 remaining=2")
	})
}

func TestDecideEnvoyCompatDecidesDescriptorsIndependently(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, compatRules, nil)
		want(t, decide(t, e, "envoy", descriptor(1, "one=x"), descriptor(1, "one=x"), descriptor(1, "five=x")),
			"denied: granted=1 remaining=0 | granted=1 remaining=0 over denied | granted=1 remaining=4")
		want(t, decide(t, e, "envoy", descriptor(1, "trial=x"), descriptor(1, "trial=x"), descriptor(9, "one=x")),
			"denied: granted=1 remaining=0 | granted=1 remaining=0 denied | granted=9 remaining=0 over denied")
		want(t, decide(t, e, "envoy", descriptor(2, "small=x"), descriptor(2, "large=x")), "allowed: granted=2 remaining=0 over denied | granted=2 remaining=0")
		want(t, decide(t, e, "envoy", descriptor(1, "small=x"), descriptor(1, "large=x")), "denied: granted=1 remaining=0 over denied | granted=1 remaining=0 over denied")
	})
}

// A cost above the fallback's share may fit once the store is up again.
func TestDecideEnvoyCompatDenialOfShareIsNotNever(t *testing.T) {
	down := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, penstock.ErrUnavailable
	})
	e := newEngine(t, penstock.WithFallback(down, nil, &penstock.FallbackOptions{Share: 0.5}), compatRules, nil)
	for cost, never := range map[int64]bool{3: false, 5: false, 6: true} {
		var v engine.Result
		if err := e.Decide(t.Context(), "envoy", []engine.Descriptor{descriptor(cost, "five=x")}, &v); err != nil {
			t.Fatal(err)
		}
		d := v.Statuses[0].Decision
		if !v.OverLimit || (d.RetryAfter == penstock.Never) != never || d.RetryAfter <= 0 {
			t.Errorf("a cost of %d, of a share of two: %v, want never: %v", cost, d, never)
		}
	}
}

func TestDecideEnvoyCompatRetryAfter(t *testing.T) {
	e := newEngine(t, penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return noon.Add(time.Minute) }}), compatRules, nil)
	for _, c := range []struct {
		cost  int64
		after time.Duration
	}{{3, 0}, {3, 59 * time.Minute}, {1, 59 * time.Minute}, {5, 59 * time.Minute}, {6, penstock.Never}} {
		var v engine.Result
		if err := e.Decide(t.Context(), "envoy", []engine.Descriptor{descriptor(c.cost, "five=x")}, &v); err != nil {
			t.Fatal(err)
		}
		if got := v.Statuses[0].Decision.RetryAfter; got != c.after {
			t.Errorf("a cost of %d may come back after %v, want %v", c.cost, got, c.after)
		}
	}
}

// withOverride gives a descriptor its own limit, per hour.
func withOverride(d engine.Descriptor, requests uint32) engine.Descriptor {
	d.Own = &engine.OwnLimit{Limit: rules.Hour.Limit(requests), RequestsPerUnit: requests, Unit: rules.Hour}
	return d
}

func TestDecideOverrideLimitReplacesRules(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, apiRules+"---\n", nil)
		want(t, decide(t, e, "api", withOverride(descriptor(3, "user=ada"), 4)), "allowed: granted=3 remaining=1")
		want(t, decide(t, e, "api", descriptor(1, "user=ada")), "denied: granted=0 remaining=0 over denied")
		want(t, decide(t, e, "api", withOverride(descriptor(2, "user=ada"), 4)), "denied: granted=0 remaining=1 over denied")

		// It counts on when its number changes, and for what no rule is about.
		want(t, decide(t, e, "api", withOverride(descriptor(2, "user=ada"), 5)), "allowed: granted=2 remaining=0")
		want(t, decide(t, e, "api", withOverride(descriptor(1, "colour=red"), 1), withOverride(descriptor(1), 1)), "allowed: granted=1 remaining=0 | granted=1 remaining=0")
		want(t, decide(t, e, "api", withOverride(descriptor(1, "vip=ada"), 0)), "denied: granted=0 remaining=0 over denied")
		want(t, decide(t, e, "elsewhere", withOverride(descriptor(9, "user=ada"), 1)), "allowed: no rule")
	})
}

// What a quota denied is refunded before other descriptors of its key are decided.
func TestDecideDeniedQuotaLeavesHitsToOthers(t *testing.T) {
	const file = "domain: d\ndescriptors:\n  - {key: user, rate_limit: {unit: hour, requests_per_unit: 5}}\n"
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, file, &engine.Options{QuotaMode: true})
		want(t, decide(t, e, "d", withOverride(descriptor(5, "user=ada"), 4), descriptor(5, "user=ada")),
			"allowed: granted=0 remaining=4 over denied | granted=5 remaining=0")
		want(t, decide(t, e, "d", descriptor(0, "user=ada")), "allowed: granted=0 remaining=0")
	})
}

func TestDecideOverrideLimitIsPerDomain(t *testing.T) {
	set, err := rules.Parse(
		rules.File{Name: "a.yaml", Text: []byte("domain: a")},
		rules.File{Name: "b.yaml", Text: []byte("domain: a|b")},
	)
	if err != nil {
		t.Fatal(err)
	}
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := engine.New(store, nil)
		e.SetRules(set)
		want(t, decide(t, e, "a", withOverride(descriptor(1, "b=", "c=d"), 1)), "allowed: granted=1 remaining=0")
		want(t, decide(t, e, "a|b", withOverride(descriptor(1, "c=d"), 1)), "allowed: granted=1 remaining=0")
		want(t, decide(t, e, "a", withOverride(descriptor(1, "c=d"), 1)), "allowed: granted=1 remaining=0")
	})
}

func TestDecideRejectsInvalidOverrideLimit(t *testing.T) {
	e := newEngine(t, newMemory(), apiRules, nil)
	bad := descriptor(1, "user=ada")
	bad.Own = &engine.OwnLimit{Limit: penstock.Limit{Count: 1, Period: -time.Second}}
	var v engine.Result
	err := e.Decide(t.Context(), "api", []engine.Descriptor{descriptor(1, "path=/"), bad}, &v)
	if !errors.Is(err, penstock.ErrBadLimit) || !strings.Contains(err.Error(), "descriptor 1") {
		t.Errorf("got %v, want ErrBadLimit about descriptor 1", err)
	}
	want(t, decide(t, e, "api", descriptor(0, "path=/")), "allowed: granted=0 remaining=10")
}

func TestEngineShadowModeDeniesNothing(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, apiRules, &engine.Options{Shadow: true})
		want(t, decide(t, e, "api", descriptor(3, "user=ada"), descriptor(1, "path=/")), "allowed: granted=0 remaining=2 over denied | granted=0 remaining=10")

		r := penstock.Request{Key: "k", Limit: penstock.PerHour(1), Cost: 2}
		d, err := e.Take(t.Context(), r, nil)
		if err != nil || !d.Allowed || d.Granted != 0 || d.RetryAfter != 0 {
			t.Errorf("taking too much in shadow: %v, %v", d, err)
		}
		ds := make([]penstock.Decision, 2)
		if err := e.TakeAll(t.Context(), []penstock.Request{r, r}, ds, nil); err != nil || !ds[0].Allowed || !ds[1].Allowed {
			t.Errorf("taking too much together in shadow: %v, %v", ds, err)
		}
	})
}

func TestDecideRejectsInvalidRequests(t *testing.T) {
	e := engine.New(newMemory(), &engine.Options{MaxDescriptors: 2})
	one := []engine.Descriptor{descriptor(1, "user=ada")}
	var v engine.Result
	check := func(domain string, ds []engine.Descriptor, reason error) {
		t.Helper()
		if err := e.Decide(context.Background(), domain, ds, &v); !errors.Is(err, reason) {
			t.Errorf("got %v, want %v", err, reason)
		}
	}
	check("", one, engine.ErrNoDomain)
	check("api", nil, engine.ErrNoDescriptors)
	check("api", one, engine.ErrNoRules)
	e.SetRules(parse(t, apiRules))
	check("api", one, nil)
	check("api", make([]engine.Descriptor, 3), engine.ErrTooManyDescriptors)
	e.SetRules(nil)
	check("api", one, engine.ErrNoRules)
}

func TestDecideHashesLongKeys(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, apiRules, nil)
		long := "user=" + strings.Repeat("a", 1<<20)
		want(t, decide(t, e, "api", descriptor(2, long), descriptor(1, long+"b")), "allowed: granted=2 remaining=0 | granted=1 remaining=1")
		want(t, decide(t, e, "api", descriptor(1, long)), "denied: granted=0 remaining=0 over denied")
		want(t, decide(t, e, "api", withOverride(descriptor(1, long), 3)), "allowed: granted=1 remaining=0")
	})
}

func TestResultCanBeReused(t *testing.T) {
	e := newEngine(t, newMemory(), apiRules, nil)
	var v engine.Result
	for _, c := range []struct {
		ds   []engine.Descriptor
		want string
	}{
		{
			[]engine.Descriptor{descriptor(3, "user=ada"), withOverride(descriptor(1, "user=eve"), 1), withOverride(descriptor(1, "user=bob"), 2)},
			"denied: granted=0 remaining=2 over denied | granted=0 remaining=1 | granted=0 remaining=2",
		},
		{[]engine.Descriptor{descriptor(1, "colour=red")}, "allowed: no rule"},
		{
			[]engine.Descriptor{withOverride(descriptor(1, "user=ada"), 7), descriptor(1, "colour=red"), descriptor(1, "vip=x"), descriptor(1, "path=/")},
			"allowed: granted=1 remaining=6 | no rule | unlimited | granted=1 remaining=9",
		},
	} {
		if err := e.Decide(t.Context(), "api", c.ds, &v); err != nil {
			t.Fatal(err)
		}
		want(t, textOf(&v), c.want)
	}
	if r := v.Statuses[0].Rule; r.RequestsPerUnit != 7 || r.Unit != rules.Hour {
		t.Errorf("the rule made of a limit says %d per %v, want 7 per hour", r.RequestsPerUnit, r.Unit)
	}
}

// A store may keep a key, for example to retry after a timeout.
func TestDecideCopiesKeysForOtherStores(t *testing.T) {
	var kept []string
	memory := newMemory()
	e := newEngine(t, penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		kept = append(kept, r.Key)
		return memory.Take(ctx, r)
	}), apiRules, nil)
	for _, user := range []string{"ada", "bob", "eve"} {
		decide(t, e, "api", descriptor(1, "user="+user))
	}
	if got := strings.Join(kept, " "); got != "user=ada user=bob user=eve" {
		t.Errorf("the keys became %s", got)
	}
}

// The memory of an evaluation is used again, also after a request that failed while its rules
// were found: the next one must not be decided with parts of it.
func TestEngineFailedRequestLeavesNothingToTheNext(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // which would empty the pool
	set, err := overrides.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := set.Put(t.Context(), []overrides.Override{{Rule: "d/held", Key: "held=b", Limit: "ban"}}); err != nil {
		t.Fatal(err)
	}
	e := newEngine(t, newMemory(), `
domain: d
descriptors:
  - {key: held, limit: 2/30s concurrent, id: request_id}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: user, limit: 5/1m}
`, &engine.Options{Overrides: set})
	var r engine.Result
	for _, failing := range []string{"held=a", "held=b"} {
		for _, next := range []string{"free=a", "user=a"} {
			err := e.Decide(t.Context(), "d", []engine.Descriptor{descriptor(1, failing)}, &r)
			if !errors.Is(err, engine.ErrNoPermitID) {
				t.Fatalf("%s without an ID: got %v, want %v", failing, err, engine.ErrNoPermitID)
			}
			if err := e.Decide(t.Context(), "d", []engine.Descriptor{descriptor(1, next)}, &r); err != nil || r.OverLimit {
				t.Errorf("%s after a failed %s: got %s, %v, want that it is allowed", next, failing, textOf(&r), err)
			}
		}
	}
}
