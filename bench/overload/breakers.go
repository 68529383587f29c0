package main

import (
	"context"
	"errors"
	"fmt"
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
		name := newName()
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
	name := newName()
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

// traffic is what a service was sent in each second, and what went well of it.
type traffic struct{ sent, good []atomic.Int64 }

func sum(counts []atomic.Int64) (total int64) {
	for i := range counts {
		total += counts[i].Load()
	}
	return total
}

const callsEvery = 5 * time.Millisecond

// A serviceCall is how a service answers the call at a time.
type serviceCall func(at time.Duration) error

// send calls a service for as long as that, each call in a goroutine of its own.
func send(do breaker, length time.Duration, call serviceCall) traffic {
	seconds := int(length / time.Second)
	t := traffic{make([]atomic.Int64, seconds), make([]atomic.Int64, seconds)}
	begin := time.Now()
	var calls sync.WaitGroup
	for at := time.Duration(0); at < length; at += callsEvery {
		calls.Go(func() {
			err := do(func() error {
				t.sent[at/time.Second].Add(1)
				return call(at)
			})
			if err == nil {
				t.good[at/time.Second].Add(1)
			}
		})
		time.Sleep(time.Until(begin.Add(at + callsEvery)))
	}
	calls.Wait()
	return t
}

// services are one that is dead for a time and then well, one that hangs, and one that fails three
// calls in ten.
func services(long time.Duration) (lengths []time.Duration, calls []serviceCall) {
	dead := func(at time.Duration) error {
		if at < long {
			return errService
		}
		return nil
	}
	hung := func(at time.Duration) error {
		time.Sleep(long - at)
		return nil
	}
	random, mu := newRandom(1), sync.Mutex{}
	flaky := func(time.Duration) error {
		mu.Lock()
		defer mu.Unlock()
		if random.IntN(10) < 3 {
			return errService
		}
		return nil
	}
	return []time.Duration{2 * long, long, long}, []serviceCall{dead, hung, flaky}
}

// breakers are services that are dead or hung for 30 s, or fail three calls in ten.
func (b *bench) breakers() {
	long := harness.Scale(b.Run, 30*time.Second, 3*time.Second)
	t := b.Table("Breakers, 200 calls a second",
		"breaker", "dead 30 s: sent in the first second, later", "hung 30 s: sent of 6,000", "30 % fail: went well", "back at 95 % after a dead service recovers")
	for _, l := range breakerLibraries {
		if l.realTime && b.Quick {
			continue
		}
		all, seconds := b.measureBreaker(l, long), int(long/time.Second)
		dead, hung := all[0], sum(all[1].sent)
		early, later := dead.sent[0].Load(), sum(dead.sent[1:seconds])
		share := float64(sum(all[2].good)) / float64(long/callsEvery)
		back := len(dead.good) // or never
		for i := len(dead.good) - 1; i >= seconds && dead.good[i].Load() >= 190; i-- {
			back = i - seconds
		}
		t.Row(l.name, fmt.Sprintf("%d, %d", early, later), hung, fmt.Sprintf("%.1f %%", 100*share), fmt.Sprintf("%d s", back))
		if l.name == ours {
			b.Find("breaker, dead for 30 s", "≤ 12 sent in the first second, ≤ 5 later", early <= 12 && later <= 5, "%d, %d", early, later)
			b.Find("breaker, hung for 30 s", "≤ 250 sent", hung <= 250, "%d", hung)
			b.Find("breaker, 30 % fail", "70 % served", share >= 0.695, "%.1f %%", 100*share)
			b.Find("breaker, back at full rate", "≤ 8 s after recovery", back <= 8, "%d s", back)
		}
	}
}

// measureBreaker runs the three services, in virtual time if possible.
func (b *bench) measureBreaker(l breakerLibrary, long time.Duration) (all [3]traffic) {
	lengths, calls := services(long)
	if l.realTime {
		_, _ = harness.Concurrently(len(calls), func(i int) error {
			all[i] = send(l.make(), lengths[i], calls[i])
			return nil
		})
		return all
	}
	for i, call := range calls {
		b.simulate(func() { all[i] = send(l.make(), lengths[i], call) })
	}
	return all
}
