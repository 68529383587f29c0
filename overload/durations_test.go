package overload_test

import (
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock/overload"
)

// longTime is shorter than a time that means for ever.
const longTime = 360 * 24 * time.Hour

// broken returns a breaker that has opened, and its clock.
func broken(t *testing.T, o overload.BreakerOptions) (b *overload.Breaker, now *time.Time) {
	t.Helper()
	now = new(time.Unix(1_800_000_000, 0))
	o.Now = func() time.Time { return *now }
	b = overload.NewBreaker(&o)
	for range 30 {
		if call, err := b.Allow(); err == nil {
			call.Done(overload.Failure)
		}
	}
	if !b.IsOpen() {
		t.Fatal("30 failures do not open the breaker")
	}
	return b, now
}

func admits(b *overload.Breaker) bool {
	call, err := b.Allow()
	if err == nil {
		call.Done(overload.Success)
	}
	return err == nil
}

// A time that is as long as can be is meant to be endless. One below zero means the default.
func TestBreakerBearsEndlessAndNegativeTimes(t *testing.T) {
	const endless, negative = math.MaxInt64, math.MinInt64
	for name, c := range map[string]struct {
		o        overload.BreakerOptions
		probes   bool // after the default time, or else not for long
		recovers bool // all calls are admitted 10 s after the probe, or else some
	}{
		"defaults":         {overload.BreakerOptions{}, true, true},
		"Wait":             {overload.BreakerOptions{Wait: endless}, false, false},
		"Wait and MaxWait": {overload.BreakerOptions{Wait: endless, MaxWait: endless}, false, false},
		"MaxWait":          {overload.BreakerOptions{MaxWait: endless}, true, true},
		"Slow":             {overload.BreakerOptions{Slow: endless}, true, true},
		"Ramp":             {overload.BreakerOptions{Ramp: endless}, true, false},
		"Window":           {overload.BreakerOptions{Window: endless, ErrorCount: 12}, true, true},
		"all below zero":   {overload.BreakerOptions{Wait: negative, MaxWait: negative, Slow: negative, Ramp: negative, Window: negative}, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			b, now := broken(t, c.o)
			if admits(b) {
				t.Error("a call is admitted at once")
			}
			*now = now.Add(3 * time.Second)
			if admits(b) != c.probes {
				t.Fatalf("a call is admitted after 3 s: got %t", !c.probes)
			}
			if !c.probes {
				if *now = now.Add(longTime); admits(b) {
					t.Errorf("a call is admitted after %v", longTime)
				}
				return
			}
			*now = now.Add(10 * time.Second)
			admitted := 0
			for range 20 {
				if admits(b) {
					admitted++
				}
			}
			if admitted == 0 || (admitted == 20) != c.recovers {
				t.Errorf("%d of 20 calls are admitted 10 s after the probe, want all: %t", admitted, c.recovers)
			}
		})
	}
}

// A call may be in flight for as long as Slow says, and calls count for as long as Window says.
func TestBreakerWithEndlessSlowOrWindowCounts(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	clock := func() time.Time { return now }
	slow := overload.NewBreaker(&overload.BreakerOptions{Slow: math.MaxInt64, Now: clock})
	window := overload.NewBreaker(&overload.BreakerOptions{Window: math.MaxInt64, ErrorCount: 10, MinRequests: 1, Now: clock})
	for range 30 {
		call, err := slow.Allow()
		if err != nil {
			t.Fatal("a call is refused though none has failed")
		}
		now = now.Add(24 * time.Hour)
		call.Done(overload.Success)
		if call, err := window.Allow(); err == nil {
			call.Done(overload.Failure)
		}
	}
	if slow.IsOpen() || !window.IsOpen() {
		t.Errorf("open: got %v, %v, want only that of 10 failures", slow.IsOpen(), window.IsOpen())
	}
}

func TestGateBearsEndlessAndNegativeWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for wait, want := range map[time.Duration]error{math.MaxInt64: nil, math.MinInt64: overload.ErrFull} {
			g := overload.NewGate(&overload.GateOptions{Limit: 1, MaxWait: wait, Now: time.Now})
			pass := enter(t, g)
			go func() {
				time.Sleep(longTime)
				pass.Leave(overload.Success)
			}()
			if _, err := g.Enter(t.Context(), overload.Normal); !errors.Is(err, want) {
				t.Errorf("MaxWait %v: got %v, want %v", wait, err, want)
			}
			time.Sleep(2 * longTime)
		}
	})
}
