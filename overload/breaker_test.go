package overload_test

import (
	"container/heap"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/penstock-io/penstock/overload"
)

// A timeline runs events in virtual time.
type timeline struct {
	now    time.Time
	events eventHeap
}

type event struct {
	at time.Time
	do func()
}

type eventHeap []event

func (h eventHeap) Len() int           { return len(h) }
func (h eventHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h eventHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *eventHeap) Push(e any)        { *h = append(*h, e.(event)) }
func (h *eventHeap) Pop() any {
	e := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return e
}

func newTimeline() *timeline { return &timeline{now: time.Unix(1_000_000, 0)} }

func (l *timeline) after(d time.Duration, do func()) { heap.Push(&l.events, event{l.now.Add(d), do}) }

// run runs the events up to a time from now.
func (l *timeline) run(d time.Duration) {
	end := l.now.Add(d)
	for len(l.events) > 0 && !l.events[0].at.After(end) {
		e := heap.Pop(&l.events).(event)
		l.now = e.at
		e.do()
	}
	l.now = end
}

// A service answers calls after a while, with an outcome. A negative while is never.
type service func() (time.Duration, overload.Outcome)

// A client calls a service through a breaker at a steady rate.
type client struct {
	*timeline
	breaker         *overload.Breaker
	service         service
	sent, succeeded int
}

func newClient(o overload.BreakerOptions, perSecond int) *client {
	c := &client{timeline: newTimeline()}
	o.Now = func() time.Time { return c.now }
	c.breaker = overload.NewBreaker(&o)
	c.service = healthy
	var tick func()
	tick = func() {
		c.call()
		c.after(time.Second/time.Duration(perSecond), tick)
	}
	c.after(0, tick)
	return c
}

func (c *client) call() {
	call, err := c.breaker.Allow()
	if err != nil {
		return
	}
	c.sent++
	took, outcome := c.service()
	if took < 0 {
		return
	}
	c.after(took, func() {
		if outcome == overload.Success {
			c.succeeded++
		}
		call.Done(outcome)
	})
}

// count returns how many calls were sent within a time from now, and succeeded.
func (c *client) count(d time.Duration) (sent, succeeded int) {
	s, ok := c.sent, c.succeeded
	c.run(d)
	return c.sent - s, c.succeeded - ok
}

func healthy() (time.Duration, overload.Outcome) { return 10 * time.Millisecond, overload.Success }
func dead() (time.Duration, overload.Outcome)    { return 5 * time.Millisecond, overload.Failure }
func hung() (time.Duration, overload.Outcome)    { return -1, overload.Success }

func failing(rate float64, seed uint64) service {
	rng := rand.New(rand.NewPCG(seed, 1))
	return func() (time.Duration, overload.Outcome) {
		if rng.Float64() < rate {
			return 10 * time.Millisecond, overload.Failure
		}
		return 10 * time.Millisecond, overload.Success
	}
}

func TestBreakerSendsHardlyAnyCallsToADeadService(t *testing.T) {
	c := newClient(overload.BreakerOptions{}, 200)
	c.run(10 * time.Second)
	c.service = dead
	if sent, _ := c.count(time.Second); sent < 9 || sent > 12 {
		t.Errorf("%d calls in the first second, want 9 to 12", sent)
	}
	if sent, _ := c.count(29 * time.Second); sent < 1 || sent > 5 {
		t.Errorf("%d calls in the other 29 seconds, want 1 to 5", sent)
	}
	c.service = healthy
	c.run(8 * time.Second)
	if _, ok := c.count(time.Second); ok < 199 {
		t.Errorf("%d of 200 calls a second succeed 8 seconds after the recovery", ok)
	}
}

// The service never answers, so only the time in flight shows that it fails.
func TestBreakerNoticesCallsThatHang(t *testing.T) {
	c := newClient(overload.BreakerOptions{Slow: time.Second}, 200)
	c.run(10 * time.Second)
	c.service = hung
	if sent, _ := c.count(30 * time.Second); sent < 200 || sent > 250 {
		t.Errorf("%d calls sent, want 200 to 250", sent)
	}
	c.service = healthy
	c.run(8 * time.Second)
	if _, ok := c.count(time.Second); ok < 199 {
		t.Errorf("%d of 200 calls a second succeed 8 seconds after the recovery", ok)
	}
}

// Calls that hang for longer than the outage return when all is well again.
func TestBreakerIgnoresLateResults(t *testing.T) {
	c := newClient(overload.BreakerOptions{Slow: time.Second}, 200)
	c.run(time.Second)
	c.service = func() (time.Duration, overload.Outcome) { return 20 * time.Second, overload.Failure }
	c.run(5 * time.Second)
	if !c.breaker.IsOpen() {
		t.Fatal("not open")
	}
	c.service = healthy
	c.run(9 * time.Second)
	if _, ok := c.count(20 * time.Second); ok < 20*199 {
		t.Errorf("%d of 4000 calls succeeded: late failures had an effect", ok)
	}
}

func TestBreakerNeverOpensAtThirtyPercentFailures(t *testing.T) {
	calls := 200_000
	if testing.Short() {
		calls = 20_000
	}
	for _, perSecond := range []int{2, 200, 5000} {
		c := newClient(overload.BreakerOptions{}, perSecond)
		c.service = failing(0.3, uint64(perSecond))
		sent, ok := c.count(time.Duration(calls/perSecond) * time.Second)
		if sent < calls || ok < calls*69/100 {
			t.Errorf("%d calls a second: %d of %d sent, %d succeeded", perSecond, sent, calls, ok)
		}
	}
}

func TestBreakerOpensWhenMostCallsFail(t *testing.T) {
	c := newClient(overload.BreakerOptions{}, 200)
	c.service = failing(0.7, 1)
	if sent, _ := c.count(30 * time.Second); sent > 600 {
		t.Errorf("%d of 6000 calls were sent to a service that fails 70 %% of them", sent)
	}
}

// After a partial failure, the breaker still notices that the service dies.
func TestBreakerOpensAfterAPartialFailure(t *testing.T) {
	c := newClient(overload.BreakerOptions{}, 200)
	c.service = failing(0.3, 1)
	c.run(time.Minute)
	c.service = dead
	if sent, _ := c.count(time.Second); sent > 120 || !c.breaker.IsOpen() {
		t.Errorf("%d calls sent, open is %v", sent, c.breaker.IsOpen())
	}
}

func TestBreakerNineFailuresInARowOpenIt(t *testing.T) {
	for _, pause := range []time.Duration{0, time.Millisecond, time.Minute} {
		l := newTimeline()
		b := overload.NewBreaker(&overload.BreakerOptions{Now: func() time.Time { return l.now }})
		for i := range 9 {
			if b.IsOpen() {
				t.Fatalf("pause %v: open after %d failures", pause, i)
			}
			call, err := b.Allow()
			if err != nil {
				t.Fatal(err)
			}
			call.Done(overload.Failure)
			l.run(pause)
		}
		if !b.IsOpen() {
			t.Errorf("pause %v: closed after nine failures", pause)
		}
	}
}

func TestBreakerOpenErrorSaysWhenToRetry(t *testing.T) {
	l := newTimeline()
	b := overload.NewBreaker(&overload.BreakerOptions{Now: func() time.Time { return l.now }})
	failAll(b, 9)
	_, err := b.Allow()
	var open *overload.OpenError
	if !errors.Is(err, overload.ErrOpen) || !errors.As(err, &open) {
		t.Fatalf("got %v, want an OpenError", err)
	}
	if open.RetryAfter < 2*time.Second || open.RetryAfter > 2400*time.Millisecond {
		t.Errorf("retry after %v, want 2 to 2.4 seconds", open.RetryAfter)
	}
	l.run(open.RetryAfter)
	if _, err := b.Allow(); err != nil {
		t.Errorf("the probe was denied after RetryAfter: %v", err)
	}
	if _, err := b.Allow(); err == nil {
		t.Error("two probes at a time")
	}
}

func failAll(b *overload.Breaker, n int) {
	for range n {
		if call, err := b.Allow(); err == nil {
			call.Done(overload.Failure)
		}
	}
}

func TestBreakerRepeatsAProbeThatIsLost(t *testing.T) {
	l := newTimeline()
	b := overload.NewBreaker(&overload.BreakerOptions{Slow: time.Second, Now: func() time.Time { return l.now }})
	failAll(b, 9)
	l.run(3 * time.Second)
	lost, err := b.Allow()
	if err != nil {
		t.Fatal(err)
	}
	l.run(3 * time.Second)
	probe, err := b.Allow()
	if err != nil {
		t.Fatalf("no second probe: %v", err)
	}
	lost.Done(overload.Success) // of the first probe, which counted as failed
	if !b.IsOpen() {
		t.Error("closed by a probe that had timed out")
	}
	probe.Done(overload.Success)
	if b.IsOpen() {
		t.Error("open after a successful probe")
	}
}

func TestBreakerCanceledProbeIsNeutral(t *testing.T) {
	l := newTimeline()
	b := overload.NewBreaker(&overload.BreakerOptions{Now: func() time.Time { return l.now }})
	failAll(b, 9)
	for range 5 { // the wait does not grow
		l.run(2400 * time.Millisecond)
		probe, err := b.Allow()
		if err != nil {
			t.Fatalf("no probe: %v", err)
		}
		probe.Done(overload.Canceled)
		if !b.IsOpen() {
			t.Fatal("closed by a probe without a result")
		}
	}
}

// The ramp admits a share of the calls that grows from a tenth to all.
func TestBreakerRampGrowsEvenly(t *testing.T) {
	c := newClient(overload.BreakerOptions{Wait: time.Second, Ramp: 10 * time.Second}, 1000)
	c.service = dead
	c.run(100 * time.Millisecond)
	c.service = healthy
	for c.breaker.IsOpen() {
		c.run(time.Millisecond)
	}
	for i := range 10 {
		sent, _ := c.count(time.Second)
		if want := 100 + 90*i + 45; sent < want-10 || sent > want+10 {
			t.Errorf("%d calls in second %d of the ramp, want about %d", sent, i, want)
		}
	}
	if sent, _ := c.count(time.Second); sent < 999 {
		t.Errorf("%d calls in the second after the ramp, want 1000", sent)
	}
}

func TestBreakerRelapseDoublesTheWait(t *testing.T) {
	l := newTimeline()
	o := overload.BreakerOptions{Wait: time.Second, MaxWait: time.Minute, Now: func() time.Time { return l.now }}
	b := overload.NewBreaker(&o)
	for want := time.Second; want <= 8*time.Second; want *= 2 {
		for !b.IsOpen() {
			failAll(b, 100) // in the ramp only some calls are admitted
		}
		_, err := b.Allow()
		var open *overload.OpenError
		if !errors.As(err, &open) || open.RetryAfter < want || open.RetryAfter > want*6/5 {
			t.Fatalf("got %v, want a wait of %v", err, want)
		}
		l.run(open.RetryAfter)
		probe, err := b.Allow()
		if err != nil {
			t.Fatal(err)
		}
		probe.Done(overload.Success)
	}
}

func TestBreakerDoClassifiesErrors(t *testing.T) {
	notFound := errors.New("not found")
	b := overload.NewBreaker(&overload.BreakerOptions{
		IsFailure: func(err error) bool { return !errors.Is(err, notFound) },
	})
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		_ = b.Do(t.Context(), func(context.Context) error { return notFound })
		_ = b.Do(canceled, func(ctx context.Context) error { return ctx.Err() })
	}
	if b.IsOpen() {
		t.Fatal("opened by errors that are no failures")
	}
	timedOut, cancel := context.WithDeadline(t.Context(), time.Now())
	defer cancel()
	for range 200 {
		_ = b.Do(timedOut, func(ctx context.Context) error { return ctx.Err() })
	}
	if err := b.Do(t.Context(), func(context.Context) error { return nil }); !errors.Is(err, overload.ErrOpen) {
		t.Errorf("got %v, want ErrOpen: deadlines passed", err)
	}
}

func TestBreakerDoCountsPanicsAsFailures(t *testing.T) {
	b := overload.NewBreaker(nil)
	for range 9 {
		func() {
			defer func() { _ = recover() }()
			_ = b.Do(t.Context(), func(context.Context) error { panic("broken") })
		}()
	}
	if !b.IsOpen() {
		t.Error("closed after nine panics")
	}
}

// Every call ends, so no matter in which order they do, none stays pending: a
// breaker that is idle for a long time does not open.
func TestBreakerConcurrentCallsLeaveNothingPending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := overload.NewBreaker(&overload.BreakerOptions{Slow: 50 * time.Millisecond})
		var wg sync.WaitGroup
		for i := range 64 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(uint64(i), 3))
				for range 200 {
					call, err := b.Allow()
					if err != nil {
						t.Error(err)
						return
					}
					time.Sleep(time.Duration(rng.IntN(40)) * time.Millisecond)
					call.Done(overload.Success)
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Hour)
		for range 100 {
			call, err := b.Allow()
			if err != nil {
				t.Fatal(err)
			}
			call.Done(overload.Success)
		}
	})
}

func TestBreakerAllowAndDoneDoNotAllocate(t *testing.T) {
	b := overload.NewBreaker(nil)
	if n := testing.AllocsPerRun(100, func() {
		call, _ := b.Allow()
		call.Done(overload.Success)
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// Structs of up to four words are passed in registers. A longer Call made entry and exit
// a third slower.
func TestCallFitsRegisters(t *testing.T) {
	if size := unsafe.Sizeof(overload.Call{}); size > 32 {
		t.Errorf("a Call has %d bytes, want at most 32", size)
	}
}

func TestBreakerReportsChangesInOrder(t *testing.T) {
	var changes []string
	var c *client
	c = newClient(overload.BreakerOptions{OnChange: func(_ string, from, to overload.BreakerState) {
		changes = append(changes, from.String()+" to "+to.String())
		if got := c.breaker.State(); got != to {
			t.Errorf("state in OnChange: got %v, want %v", got, to)
		}
		_, _ = c.breaker.Allow() // OnChange may use the breaker
	}}, 200)
	c.run(time.Second)
	c.service = dead
	c.run(10 * time.Second)
	c.service = healthy
	c.run(20 * time.Second)
	want := []string{"closed to open", "open to recovering", "recovering to closed"}
	if !slices.Equal(changes, want) {
		t.Errorf("changes: got %q, want %q", changes, want)
	}
}

// Each change is reported once, and each begins where the one before it ended, also if several calls
// find it at the same time.
func TestBreakerGroupReportsEachChangeOnce(t *testing.T) {
	var mu sync.Mutex
	last, changes := map[string]overload.BreakerState{}, 0
	o := overload.BreakerGroupOptions{BreakerOptions: overload.BreakerOptions{
		Wait: time.Microsecond, MaxWait: time.Microsecond, Ramp: time.Microsecond,
		OnChange: func(key string, from, to overload.BreakerState) {
			mu.Lock()
			defer mu.Unlock()
			if from != last[key] || from == to {
				t.Errorf("%s: from %v to %v after %v", key, from, to, last[key])
			}
			last[key] = to
			changes++
		},
	}}
	g := overload.NewBreakerGroup(&o)
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for n := range 2000 {
				key := string(rune('a' + (i+n)%2))
				_ = g.Do(t.Context(), key, func(context.Context) error {
					if n/20%2 == 0 {
						return errBroken
					}
					return nil
				})
			}
		})
	}
	group.Wait()
	if changes == 0 {
		t.Error("no change was reported")
	}
}
