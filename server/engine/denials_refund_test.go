package engine_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/requestlimits"
)

const returningRules = `
domain: api
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2}
    descriptors:
      - {key: priority, value: batch, keep_free: 50%}
  - {key: plan, quota_mode: true, limit: "2/1h fixed-window"}
  - {key: tokens, limit: "2/1h fixed-window", settle: true}
  - {key: never, rate_limit: {unit: hour, requests_per_unit: 0}}
  - {key: failing, limit: "2/1h"}
`

// cacheUntilReset are options under which a denial is cached until its window ends.
func cacheUntilReset(compat bool) *engine.Options {
	return &engine.Options{OverLimitKeys: 1000, OverLimitAge: time.Hour, CacheDenials: true, CompatEnvoy: compat}
}

// An interruptedStore calls functions once, before and after it decides a request that they are for.
type interruptedStore struct {
	memory        *penstock.Memory
	during        func(penstock.Request) bool
	before, after func()
}

func (s *interruptedStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	before, after := s.before, s.after
	if s.during == nil || !s.during(r) {
		before, after = nil, nil
	} else {
		s.during = nil
	}
	if before != nil {
		before()
	}
	d, err := s.memory.Take(ctx, r)
	if after != nil {
		after()
	}
	if r.Key == "failing=x" {
		return penstock.Decision{}, errors.New("down")
	}
	return d, err
}

func isRefund(r penstock.Request) bool { return r.Cost < 0 }

// A request that returns units is in flight, and one that comes meanwhile is denied. That denial
// ends with the first request, whatever it is that returns the units.
func TestDenialDuringAReturnOfUnitsIsNotCached(t *testing.T) {
	ada := descriptor(1, "user=ada")
	type testCase struct {
		compat   bool
		full     []engine.Descriptor // what is taken before
		during   func(penstock.Request) bool
		retry    engine.Descriptor
		returned []engine.Descriptor // the request that returns units
	}
	for name, c := range map[string]testCase{
		"refund":           {full: []engine.Descriptor{descriptor(2, "user=ada")}, during: isRefund, retry: ada, returned: []engine.Descriptor{descriptor(-1, "user=ada")}},
		"refund in compat": {compat: true, full: []engine.Descriptor{descriptor(2, "user=ada")}, during: isRefund, retry: ada, returned: []engine.Descriptor{descriptor(-2, "user=ada")}},
		"denied beside a quota": {
			during: func(r penstock.Request) bool { return r.Key == "never=x" }, retry: descriptor(1, "plan=a"),
			returned: []engine.Descriptor{descriptor(2, "plan=a"), descriptor(1, "never=x")},
		},
		"failed beside a quota": {
			during: func(r penstock.Request) bool { return r.Key == "failing=x" }, retry: descriptor(1, "plan=a"),
			returned: []engine.Descriptor{descriptor(2, "plan=a"), descriptor(1, "failing=x")},
		},
		"denied all or nothing": {
			during: func(r penstock.Request) bool { return r.Key == "never=x" }, retry: ada,
			returned: []engine.Descriptor{descriptor(2, "user=ada"), descriptor(1, "never=x")},
		},
		"failed all or nothing": {
			during: func(r penstock.Request) bool { return r.Key == "failing=x" }, retry: ada,
			returned: []engine.Descriptor{descriptor(2, "user=ada"), descriptor(1, "failing=x")},
		},
		"denied by an override": {during: isRefund, retry: ada, returned: []engine.Descriptor{withOverride(descriptor(2, "user=ada"), 1)}},
	} {
		t.Run(name, func(t *testing.T) {
			store := &interruptedStore{memory: newMemory()}
			e := newEngine(t, store, returningRules, cacheUntilReset(c.compat))
			if c.full != nil {
				decide(t, e, "api", c.full...)
			}
			retried := ""
			store.during, store.before = c.during, func() { retried = decide(t, e, "api", c.retry) }
			var r engine.Result
			_ = e.Decide(t.Context(), "api", c.returned, &r)
			if !strings.HasPrefix(retried, "denied") {
				t.Errorf("during the request: got %q, want a denial", retried)
			}
			if got := decide(t, e, "api", c.retry); !strings.HasPrefix(got, "allowed") {
				t.Errorf("after it: got %q, want the units that were returned", got)
			}
		})
	}
}

// A denial that the store made before a refund arrives after it.
func TestDenialOlderThanARefundIsNotCached(t *testing.T) {
	for _, compat := range []bool{false, true} {
		store := &interruptedStore{memory: newMemory()}
		e := newEngine(t, store, returningRules, cacheUntilReset(compat))
		decide(t, e, "api", descriptor(2, "user=ada"))
		store.during = func(r penstock.Request) bool { return r.Cost > 0 }
		store.after = func() { decide(t, e, "api", descriptor(-2, "user=ada")) }
		if got := decide(t, e, "api", descriptor(1, "user=ada")); !strings.HasPrefix(got, "denied") {
			t.Errorf("compat %v: got %q, want a denial", compat, got)
		}
		if got := decide(t, e, "api", descriptor(1, "user=ada")); !strings.HasPrefix(got, "allowed") {
			t.Errorf("compat %v: after the refund got %q", compat, got)
		}
	}
}

func TestDenialDuringASettlementIsNotCached(t *testing.T) {
	store := &interruptedStore{memory: newMemory()}
	e := newEngine(t, store, strings.ReplaceAll(returningRules, "domain: api", "domain: llm"), cacheUntilReset(false))
	takeWithID(t, e, "x", descriptor(2, "tokens=7"))
	retry := func() string { return decide(t, e, "llm", descriptor(1, "tokens=7")) }
	store.during = func(r penstock.Request) bool { return r.Settle }
	store.before = func() { want(t, retry(), "denied: granted=0 remaining=0 over denied") }
	settle(t, e, "x", descriptor(1, "tokens=7"))
	want(t, retry(), "allowed: granted=1 remaining=0")
}

// In compat a refund is there for later descriptors of its request.
func TestRefundEndsADenialWithinARequest(t *testing.T) {
	e := newEngine(t, newMemory(), returningRules, cacheUntilReset(true))
	decide(t, e, "api", descriptor(2, "user=ada"))
	want(t, decide(t, e, "api", descriptor(1, "user=ada")), "denied: granted=1 remaining=0 over denied")
	want(t, decide(t, e, "api", descriptor(-2, "user=ada"), descriptor(1, "user=ada")), "allowed: granted=-2 remaining=1 | granted=1 remaining=0")
}

// Requests that keep units free are denied at another count of the same counter.
func TestRefundEndsDenialsOfAllCounts(t *testing.T) {
	e := newEngine(t, newMemory(), returningRules, cacheUntilReset(false))
	decide(t, e, "api", descriptor(2, "user=ada"))
	want(t, decide(t, e, "api", descriptor(1, "user=ada")), "denied: granted=0 remaining=0 over denied")
	decide(t, e, "api", descriptor(-1, "user=ada", "priority=batch"))
	want(t, decide(t, e, "api", descriptor(1, "user=ada")), "allowed: granted=1 remaining=0")
}

// An operator may have the rule from before a reload.
func TestTakeRuleEndsDenialsAfterAReload(t *testing.T) {
	e := newEngine(t, newMemory(), returningRules, cacheUntilReset(false))
	rule := e.Rules().Rules()[0]
	decide(t, e, "api", descriptor(2, "user=ada"))
	want(t, decide(t, e, "api", descriptor(1, "user=ada")), "denied: granted=0 remaining=0 over denied")
	e.SetRules(parse(t, returningRules))
	if _, err := e.TakeRule(t.Context(), rule, "user=ada", -1); err != nil {
		t.Fatal(err)
	}
	want(t, decide(t, e, "api", descriptor(1, "user=ada")), "allowed: granted=1 remaining=0")
}

// The units that a key has used are carried to the limit of an override, and refunded there.
func TestOverrideEndsDenialsOfItsRule(t *testing.T) {
	book, err := overrides.Open(nil)
	if err != nil {
		t.Fatal(err)
	}
	options := cacheUntilReset(false)
	options.Overrides = book
	e := newEngine(t, newMemory(), returningRules, options)
	decide(t, e, "api", descriptor(2, "user=ada"))
	want(t, decide(t, e, "api", descriptor(1, "user=ada")), "denied: granted=0 remaining=0 over denied")
	all := []overrides.Override{{Rule: "api/user", Key: "user=ada", Limit: "5/1d fixed-window"}}
	if err := book.Put(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	want(t, decide(t, e, "api", descriptor(-2, "user=ada")), "allowed: granted=-2 remaining=5")
	if err := book.Delete(t.Context(), all); err != nil {
		t.Fatal(err)
	}
	want(t, decide(t, e, "api", descriptor(1, "user=ada")), "allowed: granted=1 remaining=1")
}

// The store counts the end of the window from its decision, which comes before its answer.
func TestCachedDenialEndsWithItsWindowHoweverSlowTheStore(t *testing.T) {
	for _, compat := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			memory := penstock.NewMemory(nil)
			store := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
				d, err := memory.Take(ctx, r)
				time.Sleep(10 * time.Minute) // for the answer
				return d, err
			})
			e := newEngine(t, store, returningRules, cacheUntilReset(compat))
			decide(t, e, "api", descriptor(2, "user=ada"))
			decide(t, e, "api", descriptor(1, "user=ada"))
			time.Sleep(40*time.Minute - time.Nanosecond)
			if got := decide(t, e, "api", descriptor(1, "user=ada")); !strings.HasPrefix(got, "denied") {
				t.Errorf("compat %v: before the window ends: got %q, want a denial", compat, got)
			}
			time.Sleep(time.Nanosecond)
			if got := decide(t, e, "api", descriptor(1, "user=ada")); !strings.HasPrefix(got, "allowed") {
				t.Errorf("compat %v: when it ends: got %q", compat, got)
			}
		})
	}
}

// A request limit of the name override is the counter of a descriptor with its own limit.
func TestRefundUnderAnOverridesNameEndsADenial(t *testing.T) {
	always := func() bool { return true }
	limit := requestlimits.Of(rules.Hour.Limit(2).WithName(requestlimits.EnvoyName))
	refund := []penstock.Request{{Key: "api=|other=x", Limit: limit, Cost: penstock.Reset}}
	for name, refund := range map[string]func(context.Context, *engine.Engine) error{
		"take": func(ctx context.Context, e *engine.Engine) error {
			_, err := e.Take(ctx, refund[0], always)
			return err
		},
		"take each": func(ctx context.Context, e *engine.Engine) error {
			return e.TakeEach(ctx, refund, make([]penstock.Decision, 1), always)
		},
		"store": func(ctx context.Context, e *engine.Engine) error {
			_, err := e.Store().Take(ctx, refund[0])
			e.Denials.ForgetReturned(&refund[0])
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, newMemory(), returningRules, cacheUntilReset(true))
			take := func() string { return decide(t, e, "api", withOverride(descriptor(1, "other=x"), 2)) }
			for range 2 {
				take()
			}
			want(t, take(), "denied: granted=1 remaining=0 over denied")
			if err := refund(t.Context(), e); err != nil {
				t.Fatal(err)
			}
			want(t, take(), "allowed: granted=1 remaining=1")
		})
	}
}
