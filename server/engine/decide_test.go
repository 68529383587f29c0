package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
)

const houseRules = `
domain: house
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
		e := newEngine(t, store, houseRules, nil)
		want(t, decide(t, e, "house", of(1, "user=ada")), "pass: granted=1 remaining=1")
		want(t, decide(t, e, "house", of(1, "user=ada")), "pass: granted=1 remaining=0")
		want(t, decide(t, e, "house", of(1, "user=ada")), "over: granted=0 remaining=0 over refused")
		want(t, decide(t, e, "house", of(2, "user=bob")), "pass: granted=2 remaining=0")
		want(t, decide(t, e, "house", of(3, "user=eve")), "over: granted=0 remaining=2 over refused")
		want(t, decide(t, e, "house", of(1, "never=x")), "over: granted=0 remaining=0 over refused")
	})
}

func TestDecideAllowsWithoutMatchingRule(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, houseRules, nil)
		want(t, decide(t, e, "house", of(1, "colour=red")), "pass: no rule")
		want(t, decide(t, e, "house", of(1)), "pass: no rule")
		want(t, decide(t, e, "elsewhere", of(1, "user=ada")), "pass: no rule")
		want(t, decide(t, e, "house", of(99, "vip=ada")), "pass: unlimited")
		want(t, decide(t, e, "house", of(1, "colour=red"), of(1, "user=ada"), of(5, "vip=ada")),
			"pass: no rule | granted=1 remaining=1 | unlimited")
	})
}

func TestDecideDeniedRequestTakesNothing(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, houseRules, nil)
		ask := func() string { return decide(t, e, "house", of(1, "path=/"), of(2, "user=ada")) }
		want(t, ask(), "pass: granted=1 remaining=9 | granted=2 remaining=0")
		want(t, ask(), "over: granted=0 remaining=9 | granted=0 remaining=0 over refused")
		want(t, ask(), "over: granted=0 remaining=9 | granted=0 remaining=0 over refused")
		want(t, decide(t, e, "house", of(1, "path=/")), "pass: granted=1 remaining=8")
	})
}

func TestDecideDuplicateDescriptorsAddUp(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, houseRules, nil)
		want(t, decide(t, e, "house", of(1, "user=ada"), of(2, "user=ada")),
			"over: granted=0 remaining=2 over refused | granted=0 remaining=2 over refused")
		want(t, decide(t, e, "house", of(1, "user=ada"), of(1, "user=ada")),
			"pass: granted=1 remaining=1 | granted=1 remaining=0")
	})
}

func TestDecidePeeksAndRefunds(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, houseRules, nil)
		want(t, decide(t, e, "house", of(0, "user=ada")), "pass: granted=0 remaining=2")
		want(t, decide(t, e, "house", of(2, "user=ada"), of(0, "path=/")), "pass: granted=2 remaining=0 | granted=0 remaining=10")
		want(t, decide(t, e, "house", of(0, "user=ada")), "pass: granted=0 remaining=0")
		want(t, decide(t, e, "house", of(-1, "user=ada"), of(1, "path=/")), "pass: granted=-1 remaining=1 | granted=1 remaining=9")
		want(t, decide(t, e, "house", of(1, "user=ada")), "pass: granted=1 remaining=0")

		// A refused request gives nothing back either.
		want(t, decide(t, e, "house", of(1, "user=ada"), of(-1, "path=/")), "over: granted=0 remaining=0 over refused | granted=0 remaining=9")
		want(t, decide(t, e, "house", of(-5, "user=ada")), "pass: granted=-2 remaining=2")
		want(t, decide(t, e, "house", of(penstock.Reset, "path=/")), "pass: granted=-1 remaining=10")
	})
}

func TestDecideShadowRuleNeverDenies(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, houseRules, nil)
		want(t, decide(t, e, "house", of(1, "trial=x")), "pass: granted=1 remaining=0")
		want(t, decide(t, e, "house", of(1, "trial=x")), "pass: granted=0 remaining=0 refused")

		// It is counted only when the request passes.
		want(t, decide(t, e, "house", of(1, "trial=y"), of(3, "user=ada")), "over: granted=0 remaining=1 | granted=0 remaining=2 over refused")
		want(t, decide(t, e, "house", of(1, "trial=y"), of(2, "user=ada")), "pass: granted=1 remaining=0 | granted=2 remaining=0")
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
		ask := func() string { return decide(t, e, "quota", of(1, "small=x"), of(1, "large=x")) }
		want(t, ask(), "pass: granted=1 remaining=0 | granted=1 remaining=2")
		want(t, ask(), "pass: granted=0 remaining=0 over refused | granted=1 remaining=1")
		want(t, ask(), "pass: granted=0 remaining=0 over refused | granted=1 remaining=0")
		want(t, ask(), "over: granted=0 remaining=0 over refused | granted=0 remaining=0 over refused")

		// Then the others are only peeked at.
		want(t, decide(t, e, "quota", of(1, "hard=x"), of(1, "small=x")), "over: granted=0 remaining=2 | granted=0 remaining=0 over refused")
		want(t, decide(t, e, "quota", of(2, "hard=x")), "pass: granted=2 remaining=0")
	})
}

func TestDecideDenialRefundsQuotaRules(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, quotaRules, nil)
		want(t, decide(t, e, "quota", of(1, "small=x"), of(1, "large=x"), of(3, "hard=x")),
			"over: granted=0 remaining=1 | granted=0 remaining=3 | granted=0 remaining=2 over refused")
		want(t, decide(t, e, "quota", of(1, "small=x"), of(3, "large=x"), of(2, "hard=x")),
			"pass: granted=1 remaining=0 | granted=3 remaining=0 | granted=2 remaining=0")
	})
}

func TestDecideShadowQuotaRuleNeverDenies(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, quotaRules, nil)
		ask := func() string { return decide(t, e, "quota", of(1, "small=x"), of(1, "trial=x")) }
		want(t, ask(), "pass: granted=1 remaining=0 | granted=1 remaining=0")
		want(t, ask(), "pass: granted=0 remaining=0 over refused | granted=0 remaining=0 refused")
		want(t, decide(t, e, "quota", of(1, "small=x"), of(0, "large=x")), "pass: granted=0 remaining=0 over refused | granted=0 remaining=3")
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
		want(t, decide(t, e, "shop", of(1, "any=x"), of(2, "paid=x")), "pass: no rule | granted=2 remaining=1")
		want(t, decide(t, e, "shop", of(1, "any=x")), "pass: granted=1 remaining=0")

		// What is replaced itself still replaces, and what has no limit stays so.
		want(t, decide(t, e, "shop", of(1, "any=x"), of(9, "paid=x"), of(1, "gold=x")), "pass: no rule | no rule | unlimited")
		want(t, decide(t, e, "shop", of(1, "free=x"), of(1, "paid=x")), "pass: unlimited | granted=1 remaining=0")
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
		want(t, decide(t, e, "envoy", of(1, "five=x")), "pass: granted=1 remaining=4")
		want(t, decide(t, e, "envoy", of(3, "five=x")), "pass: granted=3 remaining=1")
		want(t, decide(t, e, "envoy", of(3, "five=x")), "over: granted=1 remaining=0 over refused")
		want(t, decide(t, e, "envoy", of(1, "five=x")), "over: granted=0 remaining=0 over refused")
		want(t, decide(t, e, "envoy", of(0, "five=x")), "pass: granted=0 remaining=0")
		want(t, decide(t, e, "envoy", of(-2, "five=x")), "pass: granted=-2 remaining=2")
	})
}

func TestDecideEnvoyCompatDecidesDescriptorsIndependently(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, compatRules, nil)
		want(t, decide(t, e, "envoy", of(1, "one=x"), of(1, "one=x"), of(1, "five=x")),
			"over: granted=1 remaining=0 | granted=0 remaining=0 over refused | granted=1 remaining=4")
		want(t, decide(t, e, "envoy", of(1, "trial=x"), of(1, "trial=x"), of(9, "one=x")),
			"over: granted=1 remaining=0 | granted=0 remaining=0 refused | granted=0 remaining=0 over refused")
		want(t, decide(t, e, "envoy", of(2, "small=x"), of(2, "large=x")), "pass: granted=1 remaining=0 over refused | granted=2 remaining=0")
		want(t, decide(t, e, "envoy", of(1, "small=x"), of(1, "large=x")), "over: granted=0 remaining=0 over refused | granted=0 remaining=0 over refused")
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
		if err := e.Decide(t.Context(), "envoy", []engine.Descriptor{of(cost, "five=x")}, &v); err != nil {
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
		if err := e.Decide(t.Context(), "envoy", []engine.Descriptor{of(c.cost, "five=x")}, &v); err != nil {
			t.Fatal(err)
		}
		if got := v.Statuses[0].Decision.RetryAfter; got != c.after {
			t.Errorf("a cost of %d may come back after %v, want %v", c.cost, got, c.after)
		}
	}
}

// own gives a descriptor its own limit, per hour.
func own(d engine.Descriptor, requests uint32) engine.Descriptor {
	d.Limit, d.RequestsPerUnit, d.Unit = rules.Hour.Limit(requests), requests, rules.Hour
	return d
}

func TestDecideOverrideLimit(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, houseRules+"---\n", nil)
		want(t, decide(t, e, "house", own(of(3, "user=ada"), 4)), "pass: granted=3 remaining=1")
		want(t, decide(t, e, "house", of(2, "user=ada")), "pass: granted=2 remaining=0")
		want(t, decide(t, e, "house", own(of(2, "user=ada"), 4)), "over: granted=0 remaining=1 over refused")

		// It counts on when its number changes, and for what no rule is about.
		want(t, decide(t, e, "house", own(of(2, "user=ada"), 5)), "pass: granted=2 remaining=0")
		want(t, decide(t, e, "house", own(of(1, "colour=red"), 1), own(of(1), 1)), "pass: granted=1 remaining=0 | granted=1 remaining=0")
		want(t, decide(t, e, "house", own(of(1, "vip=ada"), 0)), "over: granted=0 remaining=0 over refused")
		want(t, decide(t, e, "elsewhere", own(of(9, "user=ada"), 1)), "pass: no rule")
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
		want(t, decide(t, e, "a", own(of(1, "b=", "c=d"), 1)), "pass: granted=1 remaining=0")
		want(t, decide(t, e, "a|b", own(of(1, "c=d"), 1)), "pass: granted=1 remaining=0")
		want(t, decide(t, e, "a", own(of(1, "c=d"), 1)), "pass: granted=1 remaining=0")
	})
}

func TestDecideInvalidOverrideLimit(t *testing.T) {
	e := newEngine(t, newMemory(), houseRules, nil)
	bad := of(1, "user=ada")
	bad.Limit = penstock.Limit{Count: 1, Period: -time.Second}
	var v engine.Result
	err := e.Decide(t.Context(), "house", []engine.Descriptor{of(1, "path=/"), bad}, &v)
	if !errors.Is(err, penstock.ErrBadLimit) || !strings.Contains(err.Error(), "descriptor 1") {
		t.Errorf("got %v, want ErrBadLimit about descriptor 1", err)
	}
	want(t, decide(t, e, "house", of(0, "path=/")), "pass: granted=0 remaining=10")
}

func TestEngineShadowModeDeniesNothing(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, houseRules, &engine.Options{Shadow: true})
		want(t, decide(t, e, "house", of(3, "user=ada"), of(1, "path=/")), "pass: granted=0 remaining=2 over refused | granted=0 remaining=10")

		r := penstock.Request{Key: "k", Limit: penstock.PerHour(1), Cost: 2}
		d, err := e.Take(t.Context(), r)
		if err != nil || !d.Allowed || d.Granted != 0 || d.RetryAfter != 0 {
			t.Errorf("taking too much in shadow: %v, %v", d, err)
		}
		ds := make([]penstock.Decision, 2)
		if err := e.TakeAll(t.Context(), []penstock.Request{r, r}, ds); err != nil || !ds[0].Allowed || !ds[1].Allowed {
			t.Errorf("taking too much together in shadow: %v, %v", ds, err)
		}
	})
}

func TestDecideInvalidRequests(t *testing.T) {
	e := engine.New(newMemory(), &engine.Options{MaxDescriptors: 2})
	one := []engine.Descriptor{of(1, "user=ada")}
	var v engine.Result
	check := func(domain string, ds []engine.Descriptor, reason error) {
		t.Helper()
		if err := e.Decide(context.Background(), domain, ds, &v); !errors.Is(err, reason) {
			t.Errorf("got %v, want %v", err, reason)
		}
	}
	check("", one, engine.ErrNoDomain)
	check("house", nil, engine.ErrNoDescriptors)
	check("house", one, engine.ErrNoRules)
	e.SetRules(parse(t, houseRules))
	check("house", one, nil)
	check("house", make([]engine.Descriptor, 3), engine.ErrTooManyDescriptors)
	e.SetRules(nil)
	check("house", one, engine.ErrNoRules)
}

func TestDecideHashesLongKeys(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, houseRules, nil)
		long := "user=" + strings.Repeat("a", 10<<20)
		want(t, decide(t, e, "house", of(2, long), of(1, long+"b")), "pass: granted=2 remaining=0 | granted=1 remaining=1")
		want(t, decide(t, e, "house", of(1, long)), "over: granted=0 remaining=0 over refused")
		want(t, decide(t, e, "house", own(of(1, long), 1)), "pass: granted=1 remaining=0")
	})
}

func TestResultCanBeReused(t *testing.T) {
	e := newEngine(t, newMemory(), houseRules, nil)
	var v engine.Result
	for _, c := range []struct {
		ds   []engine.Descriptor
		want string
	}{
		{
			[]engine.Descriptor{of(3, "user=ada"), own(of(1, "user=ada"), 1), own(of(1, "user=bob"), 2)},
			"over: granted=0 remaining=2 over refused | granted=0 remaining=1 | granted=0 remaining=2",
		},
		{[]engine.Descriptor{of(1, "colour=red")}, "pass: no rule"},
		{
			[]engine.Descriptor{own(of(1, "user=ada"), 7), of(1, "colour=red"), of(1, "vip=x"), of(1, "path=/")},
			"pass: granted=1 remaining=6 | no rule | unlimited | granted=1 remaining=9",
		},
	} {
		if err := e.Decide(t.Context(), "house", c.ds, &v); err != nil {
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
	}), houseRules, nil)
	for _, user := range []string{"ada", "bob", "eve"} {
		decide(t, e, "house", of(1, "user="+user))
	}
	if got := strings.Join(kept, " "); got != "user=ada user=bob user=eve" {
		t.Errorf("the keys became %s", got)
	}
}
