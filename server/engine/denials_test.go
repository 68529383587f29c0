package engine_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

// A cached denial is one that the store made before: the hit that takes the last unit tells nothing
// yet. The other descriptors of a request with a known denial are peeked at, and charged nothing.
func TestDecideRemembersWindowsWithNothingLeft(t *testing.T) {
	var calls atomic.Int64
	memory := newMemory()
	store := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		calls.Add(1)
		return memory.Take(ctx, r)
	})
	e := newEngine(t, store, apiRules, &engine.Options{OverLimitKeys: 1000, OverLimitAge: time.Hour, CacheDenials: true, CountHits: true, NearLimitRatio: 0.8})
	reset := func() {
		if _, err := e.TakeRule(t.Context(), e.Rules().Rules()[0], "user=ada", penstock.Reset); err != nil {
			t.Fatal(err)
		}
	}
	for i, c := range []struct {
		ds     []engine.Descriptor
		before func()
		calls  int64
		want   string
	}{
		{ds: []engine.Descriptor{descriptor(2, "user=ada")}, calls: 1, want: "allowed: granted=2 remaining=0"},
		{ds: []engine.Descriptor{descriptor(1, "user=ada")}, calls: 1, want: "denied: granted=0 remaining=0 over denied"},
		{ds: []engine.Descriptor{descriptor(1, "user=ada")}, calls: 0, want: "denied: granted=0 remaining=0 over denied"},
		{
			ds: []engine.Descriptor{descriptor(1, "path=/"), descriptor(1, "user=ada")}, calls: 1,
			want: "denied: granted=0 remaining=10 | granted=0 remaining=0 over denied",
		},
		{ds: []engine.Descriptor{descriptor(0, "user=ada")}, calls: 1, want: "allowed: granted=0 remaining=0"},

		// A denial tells nothing about a smaller cost while units are left.
		{ds: []engine.Descriptor{descriptor(3, "user=bob")}, calls: 1, want: "denied: granted=0 remaining=2 over denied"},
		{ds: []engine.Descriptor{descriptor(1, "user=bob")}, calls: 1, want: "allowed: granted=1 remaining=1"},

		{ds: []engine.Descriptor{descriptor(-1, "user=ada")}, calls: 1, want: "allowed: granted=-1 remaining=1"},
		{ds: []engine.Descriptor{descriptor(1, "user=ada")}, calls: 1, want: "allowed: granted=1 remaining=0"},
		{ds: []engine.Descriptor{descriptor(1, "user=ada")}, calls: 1, want: "denied: granted=0 remaining=0 over denied"},
		{ds: []engine.Descriptor{descriptor(1, "user=ada")}, before: reset, calls: 2, want: "allowed: granted=1 remaining=1"},
	} {
		before := calls.Load()
		if c.before != nil {
			c.before()
		}
		got := decide(t, e, "api", c.ds...)
		if n := calls.Load() - before; got != c.want || n != c.calls {
			t.Errorf("request %d: got %s after %d calls, want %s after %d", i, got, n, c.want, c.calls)
		}
	}
	hits, misses := e.Denials.CacheLookups()
	if got := fmt.Sprint(hits, " ", misses); got != "2 9" {
		t.Errorf("hits and misses of the cache: got %s, want 2 9", got)
	}
}

// Descriptors that were only peeked at, because another denies the request, count as envoyproxy/ratelimit
// counts them.
func TestHitsBesideAKnownDenial(t *testing.T) {
	e := newEngine(t, newMemory(), "domain: a\ndescriptors: [{key: free, rate_limit: {unit: hour, requests_per_unit: 10}}, {key: spent, rate_limit: {unit: hour, requests_per_unit: 1}}]",
		&engine.Options{CountHits: true, NearLimitRatio: 0.8, OverLimitKeys: 1000, OverLimitAge: time.Hour, CacheDenials: true})
	decide(t, e, "a", descriptor(1, "spent=x"))
	for range 3 {
		want(t, decide(t, e, "a", descriptor(1, "free=x"), descriptor(1, "spent=x")),
			"denied: granted=0 remaining=10 | granted=0 remaining=0 over denied")
	}
	for _, c := range e.RuleStats()[1:] {
		got := fmt.Sprintf("total=%d over=%d within=%d cached=%d", c.Hits.Total.Load(), c.Hits.OverLimit.Load(), c.Hits.WithinLimit.Load(), c.Hits.OverLimitCached.Load())
		if want := map[string]string{"a/free": "total=3 over=0 within=3 cached=0", "a/spent": "total=4 over=3 within=1 cached=2"}[c.Rule]; got != want {
			t.Errorf("%s: got %s, want %s", c.Rule, got, want)
		}
	}
}

// A settlement may return units, so that a window that had none left is asked for.
func TestSettleForgetsAKnownDenial(t *testing.T) {
	e := newSettleEngine(t, newMemory(), "fixed-window", &engine.Options{OverLimitKeys: 1000, OverLimitAge: time.Hour, CacheDenials: true})
	takeWithID(t, e, "x", descriptor(100, "minute=7"))
	for range 2 {
		want(t, decide(t, e, "llm", descriptor(1, "minute=7")), "denied: granted=0 remaining=0 over denied")
	}
	settle(t, e, "x", descriptor(10, "minute=7"))
	want(t, decide(t, e, "llm", descriptor(1, "minute=7")), "allowed: granted=1 remaining=89")
}

func BenchmarkDecideCachesDenials(b *testing.B) {
	b.Run("spent", func(b *testing.B) { benchmarkCachedDenials(b, descriptor(1, "user=spent"), true) })
	b.Run("free", func(b *testing.B) { benchmarkCachedDenials(b, descriptor(1, "user=free"), false) })
}

func benchmarkCachedDenials(b *testing.B, d engine.Descriptor, denied bool) {
	store := penstock.StoreFunc(func(_ context.Context, r penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{Allowed: r.Key != "user=spent", Limit: 2, ResetAfter: time.Hour}, nil
	})
	e := newEngine(b, store, apiRules, &engine.Options{OverLimitKeys: 1000, OverLimitAge: time.Hour, CacheDenials: true})
	var v engine.Result
	b.ReportAllocs()
	for b.Loop() {
		if err := e.Decide(b.Context(), "api", []engine.Descriptor{d}, &v); err != nil || v.OverLimit != denied {
			b.Fatal(v, err)
		}
	}
}
