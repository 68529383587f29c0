package engine_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/server/callers"
	"github.com/penstock-io/penstock/server/engine"
)

func TestMayRefundNeedsTheTokenOrALocalCaller(t *testing.T) {
	for _, c := range []struct {
		token    string
		distrust bool
		local    bool
		given    string
		may      bool
	}{
		{"", false, true, "", true},
		{"", false, true, "guess", true},
		{"", false, false, "", false},
		{"", false, false, "guess", false},
		{"", true, true, "", false},
		{"", true, false, "", false},
		{"secret", false, true, "", false},
		{"secret", false, true, "secre", false},
		{"secret", false, true, "secret", true},
		{"secret", false, false, "", false},
		{"secret", false, false, "secret", true},
		{"secret", true, true, "", false},
		{"secret", true, true, "secret", true},
	} {
		e := engine.New(newMemory(), &engine.Options{Token: c.token, DistrustLocal: c.distrust})
		if may := e.MayRefund(callers.Caller{Local: c.local, Token: c.given}); may != c.may {
			t.Errorf("%+v: got %t", c, may)
		}
	}
}

func TestIdentifyNamesTheToken(t *testing.T) {
	e := engine.New(newMemory(), &engine.Options{Token: "plain", Tokens: []callers.Token{{Name: "ada", Secret: "s1"}, {Name: "bob", Secret: "s2"}}})
	for token, want := range map[string]callers.Identity{
		"plain":     {MayRefund: true, ByToken: true},
		"s1":        {MayRefund: true, ByToken: true, Name: "ada"},
		"ada:s1":    {MayRefund: true, ByToken: true, Name: "ada"},
		"s2":        {MayRefund: true, ByToken: true, Name: "bob"},
		"ada:s2":    {},
		"bob":       {},
		":s1":       {},
		"ada:plain": {},
		"":          {},
	} {
		if got := e.Identify(callers.Caller{Local: true, Token: token}); got != want {
			t.Errorf("%q: got %+v, want %+v", token, got, want)
		}
	}
	empty := engine.New(newMemory(), &engine.Options{Tokens: []callers.Token{{Name: "ada"}}})
	if empty.HasToken() || empty.MayRefund(callers.Caller{Token: "ada:"}) || empty.MayRefund(callers.Caller{}) {
		t.Error("an empty secret is a token")
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
		for caller := range callers {
			running.Go(func() {
				var v engine.Result
				user := descriptor(1, "user="+string(rune('a'+caller%4)))
				for i := range requests {
					if caller == 0 && i%5 == 0 {
						e.SetRules(parse(t, yaml))
					}
					if err := e.Decide(t.Context(), "crowd", []engine.Descriptor{descriptor(1, "all=x"), user, descriptor(1, "trial=x")}, &v); err != nil {
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
		if passed.Load() != 1000 {
			t.Errorf("%d of %d passed, want 1000", passed.Load(), callers*requests)
		}
		for _, c := range e.RuleStats() {
			switch c.Rule {
			case "crowd/all":
				if a, d := c.Allowed(), c.Denied.Load(); a != 1000 || d == 0 {
					t.Errorf("all: %d allowed and %d denied were counted", a, d)
				}
			case "crowd/user":
				if a := c.Allowed(); a != 1000 {
					t.Errorf("user: %d allowed counted", a)
				}
			case "crowd/trial":
				if a, s := c.Allowed(), c.Shadowed.Load(); a != 10 || s != 990 {
					t.Errorf("trial: %d allowed and %d in shadow were counted", a, s)
				}
			}
		}
	})
}

func BenchmarkDecide(b *testing.B) {
	for _, n := range []int{1, 2, 3, 5} {
		b.Run(fmt.Sprintf("descriptors=%d", n), func(b *testing.B) { benchmarkDecide(b, n, nil) })
	}
	b.Run("with top keys", func(b *testing.B) { benchmarkDecide(b, 1, topkeys.New(nil)) })
}

// benchmarkDecide measures requests with the first n of five descriptors, which a proxy sends
// about a request: the user, the address, the route, the tenant and all of them together.
func benchmarkDecide(b *testing.B, n int, keys *topkeys.Tracker) {
	e := newEngine(b, penstock.NewMemory(nil), `
domain: api
descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 4000000000}}
  - {key: remote_address, limit: 1000000000/1s}
  - {key: route, rate_limit: {unit: minute, requests_per_unit: 4000000000}}
  - {key: tenant, limit: 1000000000/1s}
  - {key: generic_key, value: all, rate_limit: {unit: second, requests_per_unit: 4000000000}}
`, &engine.Options{TopKeys: keys})
	ds := []engine.Descriptor{
		descriptor(1, "user=ada"), descriptor(1, "remote_address=192.0.2.1"), descriptor(1, "route=checkout"),
		descriptor(1, "tenant=acme"), descriptor(1, "generic_key=all"),
	}[:n]
	var v engine.Result
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Decide(b.Context(), "api", ds, &v); err != nil || v.OverLimit {
			b.Fatal(v, err)
		}
	}
}
