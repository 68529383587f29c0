package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/afex/hystrix-go/hystrix"
	sentinel "github.com/alibaba/sentinel-golang/api"
	"github.com/alibaba/sentinel-golang/core/circuitbreaker"
	"github.com/alibaba/sentinel-golang/logging"
	failsafe "github.com/failsafe-go/failsafe-go/circuitbreaker"
	"github.com/go-kratos/aegis/circuitbreaker/sre"
	"github.com/sony/gobreaker/v2"
	zerobreaker "github.com/zeromicro/go-zero/core/breaker"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/overload"
)

// A breaker calls a service, or returns an error without a call.
type breaker func(call func() error) error

// A breakerLibrary makes breakers.
type breakerLibrary struct {
	name     string
	make     func() breaker
	realTime bool
}

var errService = errors.New("service failed")

var breakerLibraries = []breakerLibrary{
	{name: ours, make: func() breaker {
		b := overload.NewBreaker(nil)
		return func(call func() error) error {
			return b.Do(context.Background(), func(context.Context) error { return call() })
		}
	}},
	{name: "gobreaker", make: func() breaker { return newGobreaker(gobreaker.Settings{}) }},
	{name: "gobreaker, half of 10 s", make: func() breaker {
		return newGobreaker(gobreaker.Settings{Interval: 10 * time.Second, Timeout: 5 * time.Second, ReadyToTrip: func(c gobreaker.Counts) bool {
			return c.Requests >= 20 && 2*c.TotalFailures >= c.Requests
		}})
	}},
	{name: "failsafe-go, half of 10 s", make: func() breaker {
		b := failsafe.NewBuilder[any]().WithFailureRateThreshold(0.5, 20, 10*time.Second).WithDelay(5 * time.Second).Build()
		allow := func() error {
			if !b.TryAcquirePermit() {
				return failsafe.ErrOpen
			}
			return nil
		}
		return marking(allow, b.RecordSuccess, func() { b.RecordError(errService) })
	}},
	{name: "Sentinel, half of 10 s", make: newSentinelBreaker},
	{name: "aegis", make: func() breaker {
		b := sre.NewBreaker()
		return marking(b.Allow, b.MarkSuccess, b.MarkFailed)
	}},
	{name: "go-zero", make: func() breaker { return zerobreaker.NewBreaker().Do }},
	{name: "hystrix-go", realTime: true, make: func() breaker {
		name := "bench" + strconv.FormatInt(sentinels.Add(1), 10)
		hystrix.ConfigureCommand(name, hystrix.CommandConfig{MaxConcurrentRequests: 1000})
		return func(call func() error) error { return hystrix.Do(name, call, nil) }
	}},
}

// marking returns a breaker that is asked before a call, and told how it went.
func marking(allow func() error, succeeded, failed func()) breaker {
	return func(call func() error) error {
		if err := allow(); err != nil {
			return err
		}
		err := call()
		if err != nil {
			failed()
		} else {
			succeeded()
		}
		return err
	}
}

func newGobreaker(s gobreaker.Settings) breaker {
	b := gobreaker.NewCircuitBreaker[any](s)
	return func(call func() error) error {
		_, err := b.Execute(func() (any, error) { return nil, call() })
		return err
	}
}

func newSentinelBreaker() breaker {
	logging.ResetGlobalLoggerLevel(logging.ErrorLevel)
	name := "bench" + strconv.FormatInt(sentinels.Add(1), 10)
	harness.Must(circuitbreaker.LoadRules([]*circuitbreaker.Rule{{
		Resource: name, Strategy: circuitbreaker.ErrorRatio, Threshold: 0.5, MinRequestAmount: 20,
		StatIntervalMs: 10_000, StatSlidingWindowBucketCount: 10, RetryTimeoutMs: 5000,
	}}))
	return func(call func() error) error {
		entry, blocked := sentinel.Entry(name)
		if blocked != nil {
			return blocked
		}
		err := call()
		if err != nil {
			sentinel.TraceError(entry, err)
		}
		entry.Exit()
		return err
	}
}

// A service is what a breaker protects, at 200 calls a second.
type service struct {
	begin time.Time
	sent  atomic.Int64
	early atomic.Int64 // sent in the first second
	calls sync.WaitGroup
}

const callsEvery = 5 * time.Millisecond

// send calls the service for as long as that, each call in a goroutine of its own, and
// returns how many went well in each second.
func (s *service) send(do breaker, length time.Duration, call func(at time.Duration) error) []int64 {
	s.begin = time.Now()
	good := make([]atomic.Int64, int(length/time.Second))
	for at := time.Duration(0); at < length; at += callsEvery {
		s.calls.Go(func() {
			err := do(func() error {
				s.sent.Add(1)
				if at < time.Second {
					s.early.Add(1)
				}
				return call(at)
			})
			if err == nil {
				good[at/time.Second].Add(1)
			}
		})
		time.Sleep(time.Until(s.begin.Add(at + callsEvery)))
	}
	counts := make([]int64, len(good))
	for i := range good {
		counts[i] = good[i].Load()
	}
	return counts
}

// A breakerResult is what a service was sent, and what went well.
type breakerResult struct {
	early, later, hung int64
	share              float64 // of the calls that went well, of a service that fails 30 %
	back               int     // seconds until 95 % go well after 30 s of failures
}

// breakers are a service that is dead for 30 s, hung for 30 s, or fails three calls in ten.
func (b *bench) breakers() {
	long := 30 * time.Second
	if b.Quick {
		long = 3 * time.Second
	}
	t := b.Table("Breakers, 200 calls a second",
		"breaker", "dead 30 s: sent in the first second, later", "hung 30 s: sent of 6,000", "30 % fail: went well", "back at 95 % after a dead service recovers")
	for _, l := range breakerLibraries {
		if l.realTime && b.Quick {
			continue
		}
		r := b.measureBreaker(l, long)
		t.Row(l.name, fmt.Sprintf("%d, %d", r.early, r.later), r.hung, fmt.Sprintf("%.1f %%", 100*r.share), fmt.Sprintf("%d s", r.back))
		if l.name == ours {
			b.findUnlessQuick("breaker, dead for 30 s", "≤ 12 sent in the first second, ≤ 5 later", r.early <= 12 && r.later <= 5, "%d, %d", r.early, r.later)
			b.findUnlessQuick("breaker, hung for 30 s", "≤ 250 sent", r.hung <= 250, "%d", r.hung)
			b.findUnlessQuick("breaker, 30 % fail", "70 % served", r.share >= 0.695, "%.1f %%", 100*r.share)
			b.findUnlessQuick("breaker, back at full rate", "≤ 8 s after recovery", r.back <= 8, "%d s", r.back)
		}
	}
}

// measureBreaker runs the three services, in virtual time if possible.
func (b *bench) measureBreaker(l breakerLibrary, long time.Duration) (r breakerResult) {
	services := []func(){func() { r.dead(l, long) }, func() { r.hang(l, long) }, func() { r.flaky(l, long) }}
	if l.realTime {
		_, _ = harness.Concurrently(len(services), func(i int) error {
			services[i]()
			return nil
		})
		return r
	}
	for _, run := range services {
		b.simulate(run)
	}
	return r
}

// dead fails all calls for a time, and none later.
func (r *breakerResult) dead(c breakerLibrary, long time.Duration) {
	s := &service{}
	var whileDead atomic.Int64
	good := s.send(c.make(), 2*long, func(at time.Duration) error {
		if at < long {
			whileDead.Add(1)
			return errService
		}
		return nil
	})
	s.calls.Wait()
	r.early = s.early.Load()
	r.later = whileDead.Load() - r.early
	r.back = len(good) // or never
	for i := len(good) - 1; i >= int(long/time.Second) && good[i] >= 190; i-- {
		r.back = i - int(long/time.Second)
	}
}

func (r *breakerResult) hang(c breakerLibrary, long time.Duration) {
	s, release := &service{}, make(chan struct{})
	s.send(c.make(), long, func(time.Duration) error {
		<-release
		return nil
	})
	r.hung = s.sent.Load()
	close(release)
	s.calls.Wait()
}

func (r *breakerResult) flaky(c breakerLibrary, long time.Duration) {
	s := &service{}
	random := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // repeatable on purpose
	var mu sync.Mutex
	good := s.send(c.make(), long, func(time.Duration) error {
		mu.Lock()
		defer mu.Unlock()
		if random.IntN(10) < 3 {
			return errService
		}
		return nil
	})
	s.calls.Wait()
	sum := int64(0)
	for _, n := range good {
		sum += n
	}
	r.share = float64(sum) / float64(long/callsEvery)
}
