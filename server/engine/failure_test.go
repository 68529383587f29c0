package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

// newFailingStore returns a store that fails from the n-th request on, except refunds.
func newFailingStore(next penstock.Store, n int) penstock.Store {
	return penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		if n--; n < 0 && r.Cost >= 0 {
			return penstock.Decision{}, fmt.Errorf("connection lost: %w", penstock.ErrUnavailable)
		}
		return next.Take(ctx, r)
	})
}

func TestDecideStoreFailureLeavesNothingCharged(t *testing.T) {
	for _, c := range []struct {
		domain, yaml string
		ds           []engine.Descriptor
	}{
		{"api", apiRules, []engine.Descriptor{descriptor(1, "user=x")}},
		{"api", apiRules, []engine.Descriptor{descriptor(1, "user=x"), descriptor(1, "path=x")}},
		{"api", apiRules, []engine.Descriptor{descriptor(1, "user=x"), descriptor(1, "trial=x"), descriptor(0, "path=x")}},
		{"quota", quotaRules, []engine.Descriptor{descriptor(1, "small=x"), descriptor(1, "large=x"), descriptor(1, "hard=x"), descriptor(0, "hard=x")}},
	} {
		for n := range len(c.ds) {
			memory := newMemory()
			broken := newEngine(t, newFailingStore(memory, n), c.yaml, nil)
			var v engine.Result
			err := broken.Decide(t.Context(), c.domain, c.ds, &v)
			if !errors.Is(err, penstock.ErrUnavailable) {
				t.Fatalf("after %d of %v: got %v, want ErrUnavailable", n, c.ds, err)
			}
			whole := newEngine(t, memory, c.yaml, nil)
			for _, d := range c.ds {
				d.Cost = 0
				var after engine.Result
				if err := whole.Decide(t.Context(), c.domain, []engine.Descriptor{d}, &after); err != nil {
					t.Fatal(err)
				}
				st := after.Statuses[0]
				if st.Decision.Remaining != st.Decision.Limit && !st.Rule.Shadow {
					t.Errorf("after %d of %v, %s was left charged: %v", n, c.ds, st.Rule.Name, st.Decision)
				}
			}
		}
	}
}

// A permit that a request renews belongs to work in progress, also if the request then fails.
func TestDecideStoreFailureReleasesNoRenewedPermit(t *testing.T) {
	const yaml = `
domain: held
descriptors:
  - {key: user, limit: 2/30s concurrent, id: request_id}
  - {key: trial, limit: 5/1m, shadow_mode: true}
`
	memory := newMemory()
	whole := newEngine(t, memory, yaml, nil)
	held := descriptor(1, "user=ada", "request_id=a")
	held.Permits = engine.RenewPermits
	want(t, decide(t, whole, "held", held), "allowed: granted=1 remaining=1")
	fail := func(permit engine.Descriptor) {
		t.Helper()
		broken := newEngine(t, newFailingStore(memory, 1), yaml, nil)
		var r engine.Result
		err := broken.Decide(t.Context(), "held", []engine.Descriptor{permit, descriptor(1, "trial=ada")}, &r)
		if !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatalf("got %v, want ErrUnavailable", err)
		}
	}
	fail(held)
	want(t, decide(t, whole, "held", descriptor(0, "user=ada")), "allowed: granted=0 remaining=1")
	fail(descriptor(1, "user=ada", "request_id=new")) // under NewPermits
	want(t, decide(t, whole, "held", descriptor(0, "user=ada")), "allowed: granted=0 remaining=1")
}

func TestRuleStatsCountErrors(t *testing.T) {
	e := newEngine(t, newFailingStore(newMemory(), 0), apiRules, nil)
	var v engine.Result
	if err := e.Decide(t.Context(), "api", []engine.Descriptor{descriptor(1, "user=x"), descriptor(1, "vip=x"), descriptor(1, "path=x")}, &v); err == nil {
		t.Fatal("a broken store decided")
	}
	want(t, countersOf(t, e, "api/user"), "limit=2 allowed=0/0 denied=0/0 shadowed=0 errors=1")
	want(t, countersOf(t, e, "api/path"), "limit=10 allowed=0/0 denied=0/0 shadowed=0 errors=1")
	want(t, countersOf(t, e, "api/never"), "limit=0 allowed=0/0 denied=0/0 shadowed=0 errors=0")
}

// Quota units are refunded even if the caller's context has ended.
func TestDecideRefundsAfterCallerIsGone(t *testing.T) {
	memory := newMemory()
	ctx, leave := context.WithCancel(t.Context())
	store := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		if err := ctx.Err(); err != nil {
			return penstock.Decision{}, err
		}
		d, err := memory.Take(ctx, r)
		if !d.Allowed {
			leave()
		}
		return d, err
	})
	var v engine.Result
	err := newEngine(t, store, quotaRules, nil).Decide(ctx, "quota", []engine.Descriptor{descriptor(1, "small=x"), descriptor(3, "hard=x")}, &v)
	if err != nil || !v.OverLimit {
		t.Fatalf("got over %v, %v", v.OverLimit, err)
	}
	want(t, decide(t, newEngine(t, memory, quotaRules, nil), "quota", descriptor(0, "small=x")), "allowed: granted=0 remaining=1")
}

func TestDecideRefundsOnlyOnce(t *testing.T) {
	memory := newMemory()
	taken := newEngine(t, memory, quotaRules, nil)
	want(t, decide(t, taken, "quota", descriptor(1, "large=x")), "allowed: granted=1 remaining=2")
	refunds := 0
	store := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		d, err := memory.Take(ctx, r)
		if r.Cost < 0 {
			refunds++
			err = penstock.ErrUnavailable // although it was done
		}
		return d, err
	})
	var v engine.Result
	err := newEngine(t, store, quotaRules, nil).Decide(t.Context(), "quota", []engine.Descriptor{descriptor(1, "large=x"), descriptor(3, "hard=x")}, &v)
	if !errors.Is(err, penstock.ErrUnavailable) || refunds != 1 {
		t.Errorf("got %v after %d refunds, want ErrUnavailable after 1", err, refunds)
	}
	want(t, decide(t, taken, "quota", descriptor(0, "large=x")), "allowed: granted=0 remaining=2")
}

// A store that panics, which an HTTP server survives, leaves nothing of its request behind.
func TestDecideAfterAStoreHasPanicked(t *testing.T) {
	memory, armed := newMemory(), true
	e := newEngine(t, penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		if armed {
			panic("a bug of the store")
		}
		return memory.Take(ctx, r)
	}), "domain: a\ndescriptors: [{key: k, limit: 10/1h}]", nil)
	func() {
		defer func() { _ = recover() }()
		decide(t, e, "a", descriptor(7, "k=lost"))
	}()
	armed = false
	want(t, decide(t, e, "a", descriptor(1, "k=next")), "allowed: granted=1 remaining=9")
	want(t, decide(t, e, "a", descriptor(0, "k=lost")), "allowed: granted=0 remaining=10")
}

// Several limits of a request's own deny it, and what it took is refunded. A peek that fails then
// keeps no refund from being made.
func TestDecideRefundsAllOwnLimitsBeforePeeks(t *testing.T) {
	memory := newMemory()
	yaml := strings.Replace(modelRules, "COMPAT", "", 1)
	whole := newEngine(t, memory, yaml, nil)
	keys := []string{"hard1=x", "hard2=x"}
	var ds []engine.Descriptor
	for _, key := range keys {
		decide(t, whole, "DOMAIN", descriptor(2, key))
		d := descriptor(2, key)
		d.Own = &engine.OwnLimit{Limit: penstock.Limit{
			Algorithm: penstock.FixedWindow, Count: 2, Period: 365 * 24 * time.Hour, Align: penstock.AlignClock,
		}}
		ds = append(ds, d)
	}
	broken := newEngine(t, newFailingStore(memory, 2*len(keys)), yaml, nil) // each takes, and peeks
	var v engine.Result
	if err := broken.Decide(t.Context(), "DOMAIN", ds, &v); !errors.Is(err, penstock.ErrUnavailable) {
		t.Fatalf("got %v, want ErrUnavailable", err)
	}
	for _, key := range keys {
		if err := whole.Decide(t.Context(), "DOMAIN", []engine.Descriptor{descriptor(0, key)}, &v); err != nil {
			t.Fatal(err)
		}
		if d := v.Statuses[0].Decision; d.Limit-d.Remaining != 2 {
			t.Errorf("%s: %v, want two that are charged", key, d)
		}
	}
}
