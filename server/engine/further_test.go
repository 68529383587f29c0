package engine_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
)

const alsoRules = `
domain: llm
descriptors:
  - key: phone
    limit: "2/1m fixed-window"
    also: "3/day fixed-window"
  - key: customer
    limit: "10/1m"
    also: ["100/1h fixed-window", "200/1d sliding-log"]
    settle: true
  - key: user
    limit: "5/1m"
  - key: plan
    quota_mode: true
    limit: "2/1h fixed-window"
    also: "100/1d fixed-window"
  - key: tenant
    limit: "100/1h fixed-window"
    also: ["5/1d fixed-window", "50/2d fixed-window"]
    descriptors:
      - {key: priority, value: batch, keep_free: 40%}
  - key: paced
    limit: "10/1h leaky-bucket"
    also: "3/1d fixed-window"
  - key: trial
    shadow_mode: true
    limit: "1/1h fixed-window"
    also: "3/1d fixed-window"
`

// ruleOf returns the result of a request, and which rule it names.
func ruleOf(t *testing.T, e *engine.Engine, ds ...engine.Descriptor) (text, rule string) {
	t.Helper()
	var r engine.Result
	if err := e.Decide(t.Context(), "llm", ds, &r); err != nil {
		t.Fatal(err)
	}
	return textOf(&r), r.Statuses[0].Rule.Name
}

// A descriptor is under all limits of its rule, all or nothing, and its status is that of the tightest.
func TestDecideFurtherLimits(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, alsoRules, nil)
		phone := func(cost int64) engine.Descriptor { return descriptor(cost, "phone=1") }
		for _, step := range []struct {
			ds         []engine.Descriptor
			want, rule string
		}{
			{[]engine.Descriptor{phone(1)}, "allowed: granted=1 remaining=1", "llm/phone"},
			{[]engine.Descriptor{phone(3)}, "denied: granted=0 remaining=1 over denied", "llm/phone"}, // nothing of the day is taken
			{[]engine.Descriptor{phone(1)}, "allowed: granted=1 remaining=0", "llm/phone"},
			{[]engine.Descriptor{phone(1)}, "denied: granted=0 remaining=0 over denied", "llm/phone"},
			{[]engine.Descriptor{phone(-1)}, "allowed: granted=-1 remaining=1", "llm/phone"},
			{[]engine.Descriptor{phone(1), descriptor(1, "user=7")}, "allowed: granted=1 remaining=0 | granted=1 remaining=4", "llm/phone"},
			{[]engine.Descriptor{phone(1), descriptor(1, "user=7")}, "denied: granted=0 remaining=0 over denied | granted=0 remaining=4", "llm/phone"},
		} {
			text, rule := ruleOf(t, e, step.ds...)
			if text != step.want || rule != step.rule {
				t.Errorf("%v: got %s by %s\nwant %s by %s", step.ds, text, rule, step.want, step.rule)
			}
		}
	})
}

// The further limit denies when the first has units again, and the status names it.
func TestDecideFurtherLimitDenies(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, alsoRules, nil)
		for range 3 {
			if _, err := e.TakeRule(t.Context(), e.Rules().Rule("llm/phone//1d"), "phone=2", 1); err != nil {
				t.Fatal(err)
			}
		}
		text, rule := ruleOf(t, e, descriptor(1, "phone=2"))
		if text != "denied: granted=0 remaining=0 over denied" || rule != "llm/phone//1d" {
			t.Errorf("got %s by %s, want a denial by the limit of a day", text, rule)
		}
	})
}

// All limits of a rule are settled, and an override of the rule exempts a key from all, or bans it.
func TestDecideFurtherLimitsSettleAndOverrides(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, alsoRules, nil)
		want(t, takeWithID(t, e, "x", descriptor(8, "customer=a")), "allowed: granted=8 remaining=2")
		want(t, settle(t, e, "x", descriptor(3, "customer=a")), "allowed: granted=3 remaining=7")
		for rule, used := range map[string]int64{"llm/customer//1h": 97, "llm/customer//1d": 197} {
			if d, err := e.TakeRule(t.Context(), e.Rules().Rule(rule), "customer=a", 0); err != nil || d.Remaining != used {
				t.Errorf("%s: %v, %v, want %d remaining", rule, d, err, used)
			}
		}
		all := []overrides.Override{
			{Rule: "llm/customer", Key: "customer=a", Limit: "unlimited"}, {Rule: "llm/customer//1h", Key: "customer=b", Limit: "ban"},
		}
		if err := e.Overrides().Put(t.Context(), all); err != nil {
			t.Fatal(err)
		}
		want(t, decide(t, e, "llm", descriptor(1000, "customer=a")), "allowed: unlimited")
		if got := decide(t, e, "llm", descriptor(1, "customer=b")); got[:7] != "denied:" {
			t.Errorf("a key that is banned under a further limit: %s", got)
		}
	})
}

// A quota denies if one of its limits does, and neither it nor a shadow rule takes from the others then.
func TestDecideFurtherLimitsOfQuotaAndShadowRules(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, alsoRules, nil)
		a, b := descriptor(1, "plan=a"), descriptor(1, "plan=b")
		want(t, decide(t, e, "llm", a), "allowed: granted=1 remaining=1")
		want(t, decide(t, e, "llm", a), "allowed: granted=1 remaining=0")
		want(t, decide(t, e, "llm", a), "denied: granted=0 remaining=0 over denied")
		want(t, decide(t, e, "llm", a, b), "allowed: granted=0 remaining=0 over denied | granted=1 remaining=1")
		for range 3 {
			decide(t, e, "llm", descriptor(1, "trial=c"))
		}
		for key, left := range map[string]int64{"plan=a": 98, "plan=b": 99, "trial=c": 2} {
			d, err := e.TakeRule(t.Context(), e.Rules().Rule("llm/"+key[:len(key)-2]+"//1d"), key, 0)
			if err != nil || d.Remaining != left {
				t.Errorf("%s: %v, %v, want %d remaining of the day", key, d, err, left)
			}
		}
	})
}

// What a descriptor keeps free it keeps free of all limits of the one above.
func TestDecideFurtherLimitsKeepFree(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, alsoRules, nil)
		for _, step := range []struct {
			d          engine.Descriptor
			want, rule string
		}{
			{descriptor(3, "tenant=a", "priority=batch"), "allowed: granted=3 remaining=2", "llm/tenant/priority=batch//1d"},
			{descriptor(1, "tenant=a", "priority=batch"), "denied: granted=0 remaining=2 over denied", "llm/tenant/priority=batch//1d"},
			{descriptor(2, "tenant=a"), "allowed: granted=2 remaining=0", "llm/tenant//1d"},
		} {
			if text, rule := ruleOf(t, e, step.d); text != step.want || rule != step.rule {
				t.Errorf("got %s by %s\nwant %s by %s", text, rule, step.want, step.rule)
			}
		}
	})
}

// A limit that delays does so also where another one is tighter.
func TestDecideFurtherLimitsKeepDelay(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, alsoRules, nil)
		for n := range 2 {
			var r engine.Result
			if err := e.Decide(t.Context(), "llm", []engine.Descriptor{descriptor(1, "paced=a")}, &r); err != nil {
				t.Fatal(err)
			}
			if d := r.Statuses[0].Decision; !d.Allowed || d.Limit != 3 || d.Delay > 0 != (n > 0) {
				t.Errorf("request %d: %v, want the second delayed, and the numbers of the day", n, d)
			}
		}
	})
}

func TestFindTargetRefusesSeveralLimits(t *testing.T) {
	e := newEngine(t, newMemory(), alsoRules, nil)
	if _, err := e.FindTarget(t.Context(), "llm", descriptor(1, "phone=1").Entries); !errors.Is(err, engine.ErrSeveralLimits) {
		t.Errorf("got %v, want %v", err, engine.ErrSeveralLimits)
	}
}

// A ban of the key leaves nothing to take from any of its limits.
func TestFindTargetOfBannedKeyWithSeveralLimits(t *testing.T) {
	for _, rule := range []string{"llm/phone", "llm/phone//1d"} {
		o := newOverriddenAlso(t)
		o.set(rule, "phone=1", "ban")
		target, err := o.FindTarget(t.Context(), "llm", descriptor(1, "phone=1").Entries)
		if err != nil || !target.DenyAll || target.AllowAll {
			t.Errorf("%s: got %+v, %v, want that all is denied", rule, target, err)
		}
	}
}

// A key that is too long for a store does not escape a range of a further limit either.
func TestLongKeyDoesNotEscapeARangeOfAFurtherLimit(t *testing.T) {
	o := newOverriddenAlso(t)
	o.set("llm/phone//1d", "phone=tenant-7:*", "ban")
	for _, value := range []string{"tenant-7:1", "tenant-7:" + strings.Repeat("x", 1<<13)} {
		for _, allowed := range []bool{false, true} {
			var r engine.Result
			if allowed {
				o.set("llm/phone//1d", "phone=tenant-7:*", "")
			}
			if err := o.Decide(t.Context(), "llm", []engine.Descriptor{descriptor(1, "phone="+value)}, &r); err != nil || r.OverLimit == allowed {
				t.Errorf("a key of %d bytes: %+v, %v, want allowed %t", len(value), r, err, allowed)
			}
		}
		o.set("llm/phone//1d", "phone=tenant-7:*", "ban")
	}
}

func newOverriddenAlso(t *testing.T) *overridden {
	t.Helper()
	book, err := overrides.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &overridden{newEngine(t, newMemory(), alsoRules, &engine.Options{Overrides: book}), t, book}
}
