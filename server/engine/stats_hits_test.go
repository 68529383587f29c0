package engine_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/hitcount"
	"github.com/penstock-io/penstock/server/engine"
)

// Hits are counted as envoyproxy/ratelimit does: a request that crosses the limit is over it by
// what is above, and near it by what is between the threshold and the limit.
func TestHitsOfARule(t *testing.T) {
	for _, shadow := range []bool{false, true} { // an engine each, as keys share slots of its cache by chance
		text := fmt.Sprintf("domain: a\ndescriptors: [{key: k, shadow_mode: %v, rate_limit: {unit: year, requests_per_unit: 10}}]", shadow)
		e := newEngine(t, newMemory(), text,
			&engine.Options{CompatEnvoy: true, CountHits: true, NearLimitRatio: 0.8, OverLimitKeys: 100, OverLimitAge: time.Hour})
		h := &e.RuleStats()[1].Hits
		for i, c := range []struct {
			cost int64
			want string
		}{
			{7, "total=7 over=0 near=0 within=7 cached=0"},
			{0, "total=7 over=0 near=0 within=7 cached=0"},
			{2, "total=9 over=0 near=1 within=9 cached=0"},
			{4, "total=13 over=3 near=2 within=9 cached=0"},
			{5, "total=18 over=8 near=2 within=9 cached=5"},
		} {
			decide(t, e, "a", descriptor(c.cost, "k=x"))
			got := fmt.Sprintf("total=%d over=%d near=%d within=%d cached=%d", h.Total.Load(), h.OverLimit.Load(), h.NearLimit.Load(), h.WithinLimit.Load(), h.OverLimitCached.Load())
			if got != c.want {
				t.Errorf("shadow mode %v, step %d: got %s, want %s", shadow, i, got, c.want)
			}
			if got := h.Shadow.Load(); shadow && got != h.OverLimit.Load() || !shadow && got != 0 {
				t.Errorf("shadow mode %v, step %d: %d hits in shadow mode", shadow, i, got)
			}
		}
	}
}

// Callers choose values, so only so many are told. Hits with others are not lost: they are those of
// the rule.
func TestHitsByValueAreBounded(t *testing.T) {
	var full []string
	e := newEngine(t, penstock.NewMemory(nil), "domain: a\ndescriptors: [{key: k, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 10}}]",
		&engine.Options{CountHits: true, NearLimitRatio: 0.8, OnMetricValues: func(rule string) { full = append(full, rule) }})
	const beyond = 7
	for i := range hitcount.MaxValues + beyond {
		decide(t, e, "a", descriptor(2, fmt.Sprintf("k=%d", i)))
	}
	decide(t, e, "a", descriptor(3, "k=5"))
	decide(t, e, "a", descriptor(1, "k="+strings.Repeat("x", 1000)))

	n := e.RuleStats()[1]
	byValue := n.HitsByValue.All()
	if len(byValue) != hitcount.MaxValues {
		t.Errorf("hits of %d values, want %d", len(byValue), hitcount.MaxValues)
	}
	if h := byValue["k_5"]; h == nil || h.Total.Load() != 5 {
		t.Errorf("hits of k_5: %+v, want 5", h)
	}
	if got := n.Hits.Total.Load(); got != 2*beyond+1 {
		t.Errorf("%d hits of the rule as a whole, want %d", got, 2*beyond+1)
	}
	if !slices.Equal(full, []string{"a/k"}) {
		t.Errorf("told of too many values of %q, want once a/k", full)
	}
}

// A cached denial of one descriptor counts no hit of another as over its limit.
func TestHitsBesideACachedDenial(t *testing.T) {
	e := newEngine(t, penstock.WithDenyCache(newMemory(), &penstock.DenyCacheOptions{MaxAge: time.Hour}), "domain: a\ndescriptors: [{key: free, limit: 10/1h}, {key: spent, limit: 0/1h}]",
		&engine.Options{CountHits: true, NearLimitRatio: 0.8})
	for range 3 {
		want(t, decide(t, e, "a", descriptor(1, "free=x"), descriptor(1, "spent=x")),
			"denied: granted=0 remaining=10 | granted=0 remaining=0 over denied")
	}
	for _, c := range e.RuleStats()[1:] {
		over, cached := c.Hits.OverLimit.Load(), c.Hits.OverLimitCached.Load()
		if c.Rule == "a/free" && over != 0 || c.Rule == "a/spent" && (over != 3 || cached != 2) {
			t.Errorf("%s: %d hits over the limit, %d of them cached", c.Rule, over, cached)
		}
	}
}
