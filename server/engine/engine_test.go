package engine_test

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

func TestMayRefundNeedsLoopbackOrToken(t *testing.T) {
	for _, c := range []struct {
		token, from, given string
		may                bool
	}{
		{"", "127.0.0.1", "", true},
		{"", "127.8.9.10", "", true},
		{"", "::1", "", true},
		{"", "::ffff:127.0.0.1", "", true},
		{"", "10.0.0.1", "", false},
		{"", "10.0.0.1", "guess", false},
		{"secret", "10.0.0.1", "", false},
		{"secret", "10.0.0.1", "secre", false},
		{"secret", "10.0.0.1", "secret", true},
		{"secret", "fe80::1%eth0", "secret", true},
		{"secret", "127.0.0.1", "wrong", true},
	} {
		e := engine.New(newMemory(), &engine.Options{Token: c.token})
		if may := e.MayRefund(netip.MustParseAddr(c.from), c.given); may != c.may {
			t.Errorf("with the token %q, from %s with %q: %v, want %v", c.token, c.from, c.given, may, c.may)
		}
	}
	if engine.New(newMemory(), nil).MayRefund(netip.Addr{}, "") {
		t.Error("a caller without address or token may refund")
	}
}

func TestNewHasStoreAndNoRules(t *testing.T) {
	store := newMemory()
	if e := engine.New(store, nil); e.Store() != penstock.Store(store) || e.Rules() != nil {
		t.Errorf("a new engine has store %v and rules %v", e.Store(), e.Rules())
	}
}

// Under concurrent load and reloads of the same rules, no more than the limit is allowed, and
// every decision is counted once.
func TestDecideConcurrentlyWithSetRules(t *testing.T) {
	const callers, requests = 8, 400
	const yaml = `
domain: crowd
descriptors:
  - {key: all, rate_limit: {unit: hour, requests_per_unit: 1000}}
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 300}}
  - {key: trial, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 10}}
`
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, yaml, nil)
		var passed atomic.Int64
		var running sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		reloading := make(chan struct{})
		go func() {
			defer close(reloading)
			for ctx.Err() == nil {
				e.SetRules(parse(t, yaml))
			}
		}()
		for caller := range callers {
			running.Go(func() {
				var v engine.Result
				user := descriptor(1, "user="+string(rune('a'+caller%4)))
				for range requests {
					if err := e.Decide(ctx, "crowd", []engine.Descriptor{descriptor(1, "all=x"), user, descriptor(1, "trial=x")}, &v); err != nil {
						t.Error(err)
						return
					}
					if !v.OverLimit {
						passed.Add(1)
					}
				}
			})
		}
		running.Wait()
		stop()
		<-reloading
		if passed.Load() != 1000 {
			t.Errorf("%d of %d passed, want 1000", passed.Load(), callers*requests)
		}
		for _, c := range e.RuleCounters() {
			switch c.Rule {
			case "crowd/all":
				if a, d := c.Allowed.Load(), c.Denied.Load(); a != 1000 || d == 0 {
					t.Errorf("all: %d allowed and %d denied were counted", a, d)
				}
			case "crowd/user":
				if a := c.Allowed.Load(); a != 1000 {
					t.Errorf("user: %d allowed counted", a)
				}
			case "crowd/trial":
				if a, s := c.Allowed.Load(), c.Shadowed.Load(); a != 10 || s != 990 {
					t.Errorf("trial: %d allowed and %d in shadow were counted", a, s)
				}
			}
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	e := newEngine(b, penstock.NewMemory(nil), `
domain: api
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 4000000000}}
`, nil)
	ds := []engine.Descriptor{descriptor(1, "user=ada")}
	var v engine.Result
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Decide(b.Context(), "api", ds, &v); err != nil || v.OverLimit {
			b.Fatal(v, err)
		}
	}
}
