package breaker

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// A breakerFixture is a breaker with a clock that the test advances.
type breakerFixture struct {
	*testing.T
	Breaker
	now int64
}

const (
	maxConsecutive = 5
	retryTime      = 500 * time.Millisecond
)

// The rules of a fallback: consecutive failures, or half of the calls in a second.
const (
	failureRatio = 2
	minCalls     = 20
	window       = int64(time.Second)
)

var fallbackRules = Options{
	Trip: func(c Counts) bool {
		return c.Consecutive >= maxConsecutive || c.Calls >= minCalls && c.Failed*failureRatio >= c.Calls
	},
	Window: time.Duration(window),
	Wait:   retryTime, MaxWait: retryTime,
}

func newFixture(t *testing.T) *breakerFixture { return newFixtureWith(t, &fallbackRules) }

func newFixtureWith(t *testing.T, o *Options) *breakerFixture {
	return &breakerFixture{T: t, Breaker: Breaker{Options: o}, now: 1}
}

func (f *breakerFixture) advance(d time.Duration) { f.now += int64(d) }

// send sends a call, which must be admitted.
func (f *breakerFixture) send() Ticket {
	f.Helper()
	t, ok := f.Admit(f.now)
	if !ok {
		f.Fatal("a closed breaker did not admit a call")
	}
	return t
}

// finish reports the result of a call.
func (f *breakerFixture) finish(t Ticket, ok bool) (opened bool) {
	if !ok {
		return f.Fail(t, f.now)
	}
	if f.IsCounting() {
		f.Succeed(t, f.now)
	}
	return false
}

// calls makes one call after the other.
func (f *breakerFixture) calls(results ...bool) {
	f.Helper()
	for _, ok := range results {
		f.finish(f.send(), ok)
	}
}

func (f *breakerFixture) wantOpen(open bool, when string) {
	f.Helper()
	if f.IsOpen() != open {
		f.Errorf("%s: open is %v, want %v", when, f.IsOpen(), open)
	}
}

func TestBreakerOpensOnConsecutiveFailures(t *testing.T) {
	f := newFixture(t)
	f.calls(false, false, false, false, true, false, false, false, false)
	f.wantOpen(false, "four consecutive failures, twice")
	f.calls(false)
	f.wantOpen(true, "five consecutive failures")
	if _, ok := f.Admit(f.now); ok {
		t.Error("an open breaker admitted a call")
	}
}

// No more than two consecutive calls fail here; what counts is the ratio.
func TestBreakerOpensOnFailureRatio(t *testing.T) {
	for _, c := range []struct {
		results []bool // repeated
		open    bool
	}{
		{[]bool{false, false, true}, true},
		{[]bool{false, true}, true},
		{[]bool{false, true, true}, false},
		{[]bool{false, true, true, false, true}, false},
	} {
		f := newFixture(t)
		for range 30 {
			for _, ok := range c.results {
				if f.IsOpen() {
					break
				}
				f.advance(5 * time.Millisecond)
				f.calls(ok)
			}
		}
		f.wantOpen(c.open, "some calls fail")
	}
}

func TestBreakerRatioNeedsMinCalls(t *testing.T) {
	f := newFixture(t)
	for range 9 { // 18 calls
		f.calls(false, true)
	}
	f.wantOpen(false, "half of 18 calls failed")
	f.calls(false, true, false)
	f.wantOpen(true, "half of 20 calls failed")
}

// Half of the calls fail, but no second has twenty calls.
func TestBreakerForgetsFailuresAfterTheWindow(t *testing.T) {
	f := newFixture(t)
	for range 200 {
		f.advance(60 * time.Millisecond)
		f.calls(false)
		f.advance(60 * time.Millisecond)
		f.calls(true)
	}
	f.wantOpen(false, "half of eight calls a second failed")
}

// Calls count when they are sent, so calls in flight do not count as failures.
func TestBreakerCallsInFlightAreNotFailures(t *testing.T) {
	f := newFixture(t)
	f.calls(false) // begins a window
	var inFlight []Ticket
	for range 60 {
		inFlight = append(inFlight, f.send())
	}
	for _, ok := range []bool{false, false, true, false, false, true, false, false, true} {
		f.finish(inFlight[0], ok)
		inFlight = inFlight[1:]
	}
	f.wantOpen(false, "seven of 61 calls failed, and most are in flight")
}

// Calls that were in flight when the first of them failed count as well, whether
// they succeed or fail.
func TestBreakerCountsCallsSentBeforeTheWindow(t *testing.T) {
	for _, c := range []struct {
		results []bool
		open    bool
	}{
		{[]bool{false, false, true}, true},
		{[]bool{false, true, true}, false},
	} {
		f := newFixture(t)
		var inFlight []Ticket
		for range 60 {
			inFlight = append(inFlight, f.send())
		}
		for i, ticket := range inFlight {
			f.finish(ticket, c.results[i%len(c.results)])
		}
		f.wantOpen(c.open, "some of 60 calls in flight failed")
	}
}

// A call sent before the breaker opened says nothing about the store after it
// closed again.
func TestBreakerIgnoresResultsOfEarlierGenerations(t *testing.T) {
	f := newFixture(t)
	var late []Ticket
	for range 20 {
		late = append(late, f.send())
	}
	f.calls(false, false, false, false, false)
	f.advance(time.Second)
	f.endProbe(true)
	f.wantOpen(false, "after a successful probe")
	for _, ticket := range late {
		if f.finish(ticket, false) {
			t.Fatal("opened again by calls of an earlier generation")
		}
	}
	f.calls(false, false, false, false)
	for _, ticket := range late {
		f.finish(ticket, true) // does not end the run of failures, either
	}
	f.calls(false)
	f.wantOpen(true, "five consecutive failures after it had closed")
}

func TestBreakerProbesOneAtATime(t *testing.T) {
	f := newFixture(t)
	f.calls(false, false, false, false, false)
	if _, ok := f.StartProbe(f.now); ok {
		t.Error("probed at once")
	}
	if wait := f.RetryIn(f.now); wait < retryTime || wait > retryTime*6/5 {
		t.Errorf("next probe after %v, want about %v", wait, retryTime)
	}
	for range 3 {
		f.advance(f.RetryIn(f.now))
		var probes atomic.Int64
		var probe atomic.Pointer[Ticket]
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if p, ok := f.StartProbe(f.now); ok {
					probes.Add(1)
					probe.Store(&p)
				}
			})
		}
		wg.Wait()
		if probes.Load() != 1 {
			t.Fatalf("%d concurrent probes, want one", probes.Load())
		}
		f.advance(time.Hour)
		if _, ok := f.StartProbe(f.now); ok {
			t.Error("probed while a probe is in flight")
		}
		f.EndProbe(*probe.Load(), false, f.now)
		f.wantOpen(true, "after a failed probe")
	}
}

// endProbe sends the probe that is due, and reports its result.
func (f *breakerFixture) endProbe(answered bool) {
	f.Helper()
	probe, ok := f.StartProbe(f.now)
	if !ok {
		f.Fatal("no probe is due")
	}
	f.EndProbe(probe, answered, f.now)
}

func TestJitterIsAtMostAFifth(t *testing.T) {
	for _, wait := range []time.Duration{retryTime, 365 * 24 * time.Hour} {
		least, most := int64(1<<62), int64(0)
		for now := range int64(10_000) {
			d := jitter(now*1_000_003, wait)
			least, most = min(least, d), max(most, d)
		}
		if least < int64(wait) || most > int64(wait)/5*6 {
			t.Errorf("from %v to %v, want at most a fifth more than %v", time.Duration(least), time.Duration(most), wait)
		}
		if most-least < int64(wait)/100*15 {
			t.Errorf("from %v to %v: hardly any jitter", time.Duration(least), time.Duration(most))
		}
	}
}

// With calls in any order, the breaker never opens on fewer failures than it
// should, and never stays closed after five consecutive ones.
func TestBreakerOpensNeitherEarlyNorLate(t *testing.T) {
	opened := 0
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 2))
		f := newFixture(t)
		failureRate := rng.Float64()
		var inFlight []Ticket
		var failures []int64 // when
		consecutive := 0
		for range 400 {
			f.advance(time.Duration(rng.Int64N(int64(40 * time.Millisecond))))
			if len(inFlight) == 0 || rng.IntN(2) == 0 {
				inFlight = append(inFlight, f.send())
				continue
			}
			i := rng.IntN(len(inFlight))
			ok := rng.Float64() > failureRate
			if consecutive++; ok {
				consecutive = 0
			} else {
				failures = append(failures, f.now)
			}
			open := f.finish(inFlight[i], ok)
			inFlight = append(inFlight[:i], inFlight[i+1:]...)
			recent := 0
			for _, at := range failures {
				if at > f.now-window {
					recent++
				}
			}
			if open && consecutive < maxConsecutive && recent < minCalls/failureRatio {
				t.Fatalf("seed %d: opened after %d consecutive failures and %d in a second", seed, consecutive, recent)
			}
			if !open && consecutive >= maxConsecutive {
				t.Fatalf("seed %d: not opened after %d consecutive failures", seed, consecutive)
			}
			if open {
				opened++
				break
			}
		}
	}
	if opened < 50 || opened > 450 {
		t.Errorf("opened in %d of 500 runs: too few or too many for the test to mean anything", opened)
	}
}
