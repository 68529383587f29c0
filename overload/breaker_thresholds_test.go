package overload_test

import (
	"testing"
	"time"

	"github.com/penstock-io/penstock/overload"
)

// A step is calls of one kind, each of which takes a while, and whether the breaker is open then.
type thresholdStep struct {
	calls   int
	take    time.Duration
	outcome overload.Outcome
	open    bool
}

func TestBreakerThresholds(t *testing.T) {
	const s, f, c = overload.Success, overload.Failure, overload.Canceled
	const ms, slow = time.Millisecond, 150 * time.Millisecond
	for _, test := range []struct {
		name    string
		options overload.BreakerOptions
		steps   []thresholdStep
	}{
		{"error ratio", overload.BreakerOptions{ErrorRatio: 0.5}, []thresholdStep{{5, ms, s, false}, {4, ms, f, false}, {1, ms, f, true}}},
		{"too few calls", overload.BreakerOptions{ErrorRatio: 0.5, MinRequests: 20}, []thresholdStep{{19, ms, f, false}, {1, ms, f, true}}},
		{"a small ratio", overload.BreakerOptions{ErrorRatio: 0.01}, []thresholdStep{{300, ms, s, false}, {3, ms, f, false}, {1, ms, f, true}}},
		{"error count", overload.BreakerOptions{ErrorCount: 3}, []thresholdStep{{100, ms, s, false}, {2, ms, f, false}, {50, ms, s, false}, {1, ms, f, true}}},
		{"canceled calls", overload.BreakerOptions{ErrorRatio: 0.5}, []thresholdStep{{20, ms, c, false}, {9, ms, f, false}, {1, ms, f, true}}},
		{"slow ratio", overload.BreakerOptions{SlowRatio: 0.5}, []thresholdStep{{20, ms, f, false}, {19, slow, s, false}, {1, slow, s, true}}},
		{"slow calls are failures without it", overload.BreakerOptions{ErrorRatio: 0.5}, []thresholdStep{{9, slow, s, false}, {1, slow, s, true}}},
		{"the window ends", overload.BreakerOptions{ErrorCount: 10, Window: time.Second}, []thresholdStep{{9, ms, f, false}, {1, 99 * 10 * ms, c, false}, {9, ms, f, false}, {1, ms, f, true}}},
		{"the window slides", overload.BreakerOptions{ErrorCount: 10, Window: time.Second}, []thresholdStep{{9, 90 * ms, f, false}, {1, 90 * ms, f, true}}},
		{"none: as ever", overload.BreakerOptions{Window: time.Second, MinRequests: 1}, []thresholdStep{{8, ms, f, false}, {1, ms, f, true}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			now := time.Unix(1_000_000, 0)
			test.options.Slow, test.options.Now = 100*ms, func() time.Time { return now }
			b := overload.NewBreaker(&test.options)
			for i, step := range test.steps {
				for range step.calls {
					call, err := b.Allow()
					if err != nil {
						t.Fatalf("step %d: %v", i, err)
					}
					now = now.Add(step.take)
					call.Done(step.outcome)
				}
				if b.IsOpen() != step.open {
					t.Errorf("after step %d: open is %v, want %v", i, b.IsOpen(), step.open)
				}
			}
		})
	}
}

// Calls that hang are counted when they have been in flight for too long. After recovery the count begins anew, and calls that
// were sent before the breaker opened are not in it.
func TestBreakerThresholdsCountHangingCalls(t *testing.T) {
	for name, o := range map[string]overload.BreakerOptions{
		"slow":   {SlowRatio: 1, MinRequests: 20},
		"failed": {ErrorRatio: 1, MinRequests: 20},
	} {
		now := time.Unix(1_000_000, 0)
		o.Now, o.Slow = func() time.Time { return now }, time.Second
		b := overload.NewBreaker(&o)
		var hanging []overload.Call
		for range 20 {
			call, err := b.Allow()
			if err != nil {
				t.Fatal(err)
			}
			hanging = append(hanging, call)
		}
		now = now.Add(3 * time.Second)
		if _, err := b.Allow(); err == nil || !b.IsOpen() {
			t.Errorf("%s: 20 calls hang, and the next is admitted", name)
		}
		now = now.Add(10 * time.Second)
		probe, err := b.Allow()
		if err != nil {
			t.Fatal(err)
		}
		probe.Done(overload.Success)
		now = now.Add(3 * time.Second)
		for _, call := range hanging {
			call.Done(overload.Failure)
		}
		if _, err := b.Allow(); err != nil || b.IsOpen() {
			t.Errorf("%s: calls from before count after the recovery: %v", name, err)
		}
	}
}
