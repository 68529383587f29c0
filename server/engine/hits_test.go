package engine_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

// Hits are counted as envoyproxy/ratelimit does: a request that crosses the limit is over it by
// what is above, and near it by what is between the threshold and the limit.
func TestHitsOfARule(t *testing.T) {
	e := newEngine(t, penstock.NewMemory(nil), "domain: a\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 10}}, {key: s, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 10}}]",
		&engine.Options{CompatEnvoy: true, CountHits: true, NearLimitRatio: 0.8, OverLimitKeys: 100, OverLimitAge: time.Hour})
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
		decide(t, e, "a", descriptor(c.cost, "s=x"))
		for _, n := range e.RuleCounters()[1:] {
			h := &n.Hits
			got := fmt.Sprintf("total=%d over=%d near=%d within=%d cached=%d", h.Total.Load(), h.OverLimit.Load(), h.NearLimit.Load(), h.WithinLimit.Load(), h.OverLimitCached.Load())
			if got != c.want {
				t.Errorf("step %d, %s: got %s, want %s", i, n.Rule, got, c.want)
			}
			if shadow := h.Shadow.Load(); n.Rule == "a/s" && shadow != h.OverLimit.Load() || n.Rule == "a/k" && shadow != 0 {
				t.Errorf("step %d, %s: %d hits in shadow mode", i, n.Rule, shadow)
			}
		}
	}
}
