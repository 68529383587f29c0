package migrating

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	sentinel "github.com/alibaba/sentinel-golang/api"
	"github.com/alibaba/sentinel-golang/core/circuitbreaker"
	"github.com/alibaba/sentinel-golang/core/flow"
	"github.com/alibaba/sentinel-golang/core/hotspot"
	"github.com/alibaba/sentinel-golang/core/isolation"
	"github.com/alibaba/sentinel-golang/logging"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/overload"
)

// inVirtualTime runs a test in a bubble whose time is later than that of the process, where
// the statistics of Sentinel begin, and of the bubbles before.
func inVirtualTime(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	logging.ResetGlobalLoggerLevel(logging.ErrorLevel)
	bubbles++
	begin := time.Now().Add(time.Duration(bubbles) * 24 * time.Hour).Truncate(time.Second)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(begin))
		test(t)
	})
}

var bubbles int

// A flow rule of ten a second and a window of ten a second on the clock decide every call of
// a trace alike.
func TestSentinelFlowRuleAgrees(t *testing.T) {
	_, err := flow.LoadRules([]*flow.Rule{{
		Resource: "orders", Threshold: 10, StatIntervalInMs: 1000,
		TokenCalculateStrategy: flow.Direct, ControlBehavior: flow.Reject,
	}})
	if err != nil {
		t.Fatal(err)
	}
	inVirtualTime(t, func(t *testing.T) {
		limit, err := penstock.ParseLimit("10/1s fixed-window align=clock")
		if err != nil {
			t.Fatal(err)
		}
		lim, err := penstock.New(penstock.NewMemory(nil), limit)
		if err != nil {
			t.Fatal(err)
		}
		allowed := 0
		for i := range 200 {
			entry, blocked := sentinel.Entry("orders")
			if blocked == nil {
				entry.Exit()
			}
			d, err := lim.Allow(t.Context(), "orders")
			if err != nil || d.Allowed != (blocked == nil) {
				t.Fatalf("call %d: Sentinel allowed it: %t, penstock: %v, %v", i, blocked == nil, d, err)
			}
			if d.Allowed {
				allowed++
			}
			time.Sleep(time.Duration(20+i%3*15) * time.Millisecond) // 29 a second
		}
		if allowed == 0 || allowed == 200 {
			t.Errorf("%d of 200 calls allowed: the trace shows nothing", allowed)
		}
	})
}

func warmUpBefore() error {
	_, err := flow.LoadRules([]*flow.Rule{{
		Resource: "backend", Threshold: 90, WarmUpPeriodSec: 30,
		TokenCalculateStrategy: flow.WarmUp, ControlBehavior: flow.Reject,
	}})
	if err != nil {
		return err
	}
	entry, blocked := sentinel.Entry("backend")
	if blocked != nil {
		return errTooMany
	}
	defer entry.Exit()
	return nil
}

func warmUpAfter(store penstock.Store) (*penstock.Limiter, error) {
	store = penstock.WithWarmUp(store, 30*time.Second)
	lim, err := penstock.New(store, penstock.PerSecond(90))
	return lim, err
}

func TestSentinelWarmUpBeginsWithAThird(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		if err := warmUpBefore(); err != nil {
			t.Error(err)
		}
		lim, err := warmUpAfter(penstock.NewMemory(nil))
		if err != nil {
			t.Fatal(err)
		}
		if d, err := lim.AllowAtMost(t.Context(), "backend", 90); err != nil || d.Granted != 30 {
			t.Errorf("%v, %v, want a third", d, err)
		}
	})
}

func hotspotBefore() error {
	_, err := hotspot.LoadRules([]*hotspot.Rule{{
		Resource: "items", MetricType: hotspot.QPS, ControlBehavior: hotspot.Reject,
		ParamIndex: 0, Threshold: 5, DurationInSec: 1, SpecificItems: map[any]int64{"hot": 50},
	}})
	return err
}

func hotspotEntry(item string) error {
	entry, blocked := sentinel.Entry("items", sentinel.WithArgs(item))
	if blocked != nil {
		return errTooMany
	}
	entry.Exit()
	return nil
}

func hotspotAfter(ctx context.Context, store penstock.Store, item string) error {
	limit := penstock.PerSecond(5).WithName("items")
	if item == "hot" {
		limit = penstock.PerSecond(50).WithName("items")
	}
	lim, err := penstock.New(store, limit)
	if err != nil {
		return err
	}
	d, err := lim.Allow(ctx, item)
	if err != nil {
		return err
	}
	if !d.Allowed {
		return errTooMany
	}
	return nil
}

// A hotspot rule and a limit by key admit as many calls of each value.
func TestSentinelHotspotRuleAgrees(t *testing.T) {
	if err := hotspotBefore(); err != nil {
		t.Fatal(err)
	}
	inVirtualTime(t, func(t *testing.T) {
		store := penstock.NewMemory(nil)
		for item, want := range map[string]int{"hot": 50, "cold": 5} {
			before, after := 0, 0
			for range 100 {
				if hotspotEntry(item) == nil {
					before++
				}
				if hotspotAfter(t.Context(), store, item) == nil {
					after++
				}
			}
			if before != want || after != want {
				t.Errorf("%s: Sentinel admitted %d, penstock %d, want %d", item, before, after, want)
			}
		}
	})
}

// An isolation rule and a gate with a fixed limit admit the same calls one after the other.
func TestSentinelIsolationRuleAgrees(t *testing.T) {
	if _, err := isolation.LoadRules([]*isolation.Rule{{Resource: "reports", MetricType: isolation.Concurrency, Threshold: 10}}); err != nil {
		t.Fatal(err)
	}
	g := overload.NewGate(&overload.GateOptions{Limit: 10, MaxWait: -1})
	for i := range 15 {
		entry, blocked := sentinel.Entry("reports")
		if blocked == nil {
			defer entry.Exit()
		}
		pass, err := g.Enter(t.Context(), overload.Normal)
		if err == nil {
			defer pass.Leave(overload.Success)
		}
		if want := i < 10; (blocked == nil) != want || (err == nil) != want {
			t.Errorf("call %d in flight: Sentinel admitted it: %t, penstock: %t, want %t", i+1, blocked == nil, err == nil, want)
		}
	}
}

func sentinelBefore(t *testing.T, name string) func(func() error) error {
	t.Helper()
	_, err := circuitbreaker.LoadRules([]*circuitbreaker.Rule{{
		Resource: name, Strategy: circuitbreaker.ErrorRatio, Threshold: 0.5, MinRequestAmount: 10,
		StatIntervalMs: 10_000, StatSlidingWindowBucketCount: 10, RetryTimeoutMs: 2000,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return func(call func() error) error {
		entry, blocked := sentinel.Entry(name)
		if blocked != nil {
			return blocked
		}
		defer entry.Exit()
		err := call()
		if err != nil {
			sentinel.TraceError(entry, err)
		}
		return err
	}
}

func sentinelAfter() func(func() error) error {
	b := overload.NewBreaker(nil)
	return func(call func() error) error {
		return b.Do(context.Background(), func(context.Context) error { return call() })
	}
}

// A dead service gets a handful of calls, and then probes, from both.
func TestSentinelDeadServiceAgrees(t *testing.T) {
	for name, breaker := range map[string]func() func(func() error) error{
		"Sentinel": func() func(func() error) error { return sentinelBefore(t, t.Name()) }, "penstock": sentinelAfter,
	} {
		inVirtualTime(t, func(t *testing.T) {
			s := &service{fails: alwaysFails}
			if good := send(breaker(), s, 30*time.Second); good != 0 || s.calls < 8 || s.calls > 40 {
				t.Errorf("%s: %d calls of 6000 sent, %d went well", name, s.calls, good)
			}
		})
	}
}
