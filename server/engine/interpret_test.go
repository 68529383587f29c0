package engine_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

const countedRules = `
domain: envoy
compat: envoy
descriptors: [{key: user, rate_limit: {unit: hour, requests_per_unit: 9}}]
`

// While Redis is unavailable, compat decides as on_store_failure says, by the node's share.
func TestDecideEnvoyCompatDuringOutage(t *testing.T) {
	down := penstock.StoreFunc(func(context.Context, penstock.Request) (penstock.Decision, error) {
		return penstock.Decision{}, errors.New("down")
	})
	for mode, steps := range map[penstock.FailureMode][]string{
		penstock.FailLocal:  {"allowed: granted=3 remaining=0", "allowed: granted=0 remaining=0", "denied: granted=1 remaining=0 over denied", "denied: granted=0 remaining=0 over denied"},
		penstock.FailOpen:   {"allowed: granted=3 remaining=6", "allowed: granted=0 remaining=6", "allowed: granted=1 remaining=5", "allowed: granted=0 remaining=5"},
		penstock.FailClosed: {"denied: granted=0 remaining=0 over denied", "denied: granted=0 remaining=0 over denied", "denied: granted=0 remaining=0 over denied", "denied: granted=0 remaining=0 over denied"},
	} {
		onFailure := func(penstock.Limit) (penstock.FailureMode, float64) { return mode, 1. / 3 }
		store := penstock.WithFallback(down, newMemory(), &penstock.FallbackOptions{OnFailure: onFailure})
		e := newEngine(t, store, countedRules, &engine.Options{OnFailure: onFailure})
		for i, cost := range []int64{3, 0, 1, 0} {
			want(t, decide(t, e, "envoy", descriptor(cost, "user=ada")), steps[i])
		}
	}
}

// A key over its limit costs no call of the store, for peeks and several descriptors too, and
// other limits on the same counter are asked for.
func TestDecideEnvoyCompatRemembersKeysOverLimit(t *testing.T) {
	var calls atomic.Int64
	memory := newMemory()
	store := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		calls.Add(1)
		return memory.Take(ctx, r)
	})
	e := newEngine(t, store, countedRules, &engine.Options{OverLimitKeys: 1000, OverLimitAge: time.Hour})
	called := func(ds ...engine.Descriptor) int64 {
		before := calls.Load()
		decide(t, e, "envoy", ds...)
		return calls.Load() - before
	}
	ada := descriptor(9, "user=ada")
	for i, c := range []struct {
		ds   []engine.Descriptor
		want int64
	}{
		{[]engine.Descriptor{ada}, 1},
		{[]engine.Descriptor{ada}, 1}, // now it is over
		{[]engine.Descriptor{ada}, 0},
		{[]engine.Descriptor{envoyPeek("user=ada"), ada, descriptor(1, "user=bob")}, 1},
		{[]engine.Descriptor{withOverride(ada, 50)}, 1},
		{[]engine.Descriptor{descriptor(-27, "user=ada")}, 1},
		{[]engine.Descriptor{ada}, 1},
	} {
		if got := called(c.ds...); got != c.want {
			t.Errorf("request %d: %d calls of the store, want %d", i, got, c.want)
		}
	}
	want(t, decide(t, e, "envoy", envoyPeek("user=ada")), "allowed: granted=0 remaining=0")
}

// An operator's peek shows what the rule has left, and changes nothing that was counted.
func TestTakeRuleKeepsCountsBeyondLimit(t *testing.T) {
	onBothStores(t, func(t *testing.T, store penstock.Store) {
		e := newEngine(t, store, countedRules, nil)
		rule := e.Rules().Rules()[0]
		take := func(cost int64) penstock.Decision {
			d, err := e.TakeRule(t.Context(), rule, "user=ada", cost)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		decide(t, e, "envoy", descriptor(20, "user=ada"))
		if d := take(0); d.Limit != 9 || d.Remaining != 0 || !d.Allowed {
			t.Errorf("peek: got %v", d)
		}
		if d := take(1); d.Allowed || d.Granted != 0 || d.RetryAfter <= 0 {
			t.Errorf("take: got %v", d)
		}
		want(t, decide(t, e, "envoy", withOverride(descriptor(0, "user=ada"), 30)), "allowed: granted=0 remaining=10")
		if d := take(-19); d.Remaining != 8 || d.Granted != -19 {
			t.Errorf("refund: got %v", d)
		}
		if d := take(penstock.Reset); d.Remaining != 9 {
			t.Errorf("reset: got %v", d)
		}
	})
}
