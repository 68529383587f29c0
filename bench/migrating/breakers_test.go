package migrating

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/afex/hystrix-go/hystrix"
	"github.com/sony/gobreaker/v2"

	"github.com/penstock-io/penstock/overload"
)

var errDown = errors.New("connection refused")

// A service answers 200 calls a second, and counts them.
type service struct {
	calls int
	fails func(n int) bool // whether the n-th call fails
}

func (s *service) call() error {
	s.calls++
	if s.fails(s.calls) {
		return errDown
	}
	return nil
}

// send calls a service through a breaker for as long as that, and returns how many calls went
// well.
func send(call func(func() error) error, s *service, d time.Duration) (good int) {
	const pause = 5 * time.Millisecond
	for range d / pause {
		if call(s.call) == nil {
			good++
		}
		time.Sleep(pause)
	}
	return good
}

func gobreakerBefore() func(func() error) error {
	cb := gobreaker.NewCircuitBreaker[any](gobreaker.Settings{Name: "payments", Timeout: 2 * time.Second})
	return func(call func() error) error {
		_, err := cb.Execute(func() (any, error) { return nil, call() })
		return err
	}
}

func gobreakerAfter() func(func() error) error {
	b := overload.NewBreaker(nil)
	return func(call func() error) error {
		return b.Do(context.Background(), func(context.Context) error { return call() })
	}
}

func alwaysFails(int) bool { return true }

// A dead service gets a handful of calls, and then probes, from both.
func TestGobreakerDeadServiceAgrees(t *testing.T) {
	for name, breaker := range map[string]func() func(func() error) error{"gobreaker": gobreakerBefore, "penstock": gobreakerAfter} {
		synctest.Test(t, func(t *testing.T) {
			s := &service{fails: alwaysFails}
			if good := send(breaker(), s, 30*time.Second); good != 0 || s.calls < 8 || s.calls > 24 {
				t.Errorf("%s: %d calls of 6000 sent, %d went well", name, s.calls, good)
			}
		})
	}
}

// A service that fails three calls in ten, in runs of six now and then, loses more than
// those three with gobreaker, which opens after six in a row.
func TestGobreakerOpensByRunsOfFailures(t *testing.T) {
	runs := func(n int) bool { return n%20 < 6 }
	good := map[string]int{}
	for name, breaker := range map[string]func() func(func() error) error{"gobreaker": gobreakerBefore, "penstock": gobreakerAfter} {
		synctest.Test(t, func(t *testing.T) { good[name] = send(breaker(), &service{fails: runs}, 30*time.Second) })
	}
	if good["penstock"] != 4200 || good["gobreaker"] > 1000 {
		t.Errorf("%v of 6000 went well, want 4200 with penstock and far fewer with gobreaker", good)
	}
}

// A service that hangs opens only the breaker that counts calls in flight.
func TestGobreakerDoesNotNoticeHungCalls(t *testing.T) {
	sent := map[string]int{}
	for name, breaker := range map[string]func() func(func() error) error{"gobreaker": gobreakerBefore, "penstock": gobreakerAfter} {
		synctest.Test(t, func(t *testing.T) {
			call, release := breaker(), make(chan struct{})
			hang := func() error {
				sent[name]++
				<-release
				return nil
			}
			for range 1000 { // for five seconds
				go func() { _ = call(hang) }()
				time.Sleep(5 * time.Millisecond)
			}
			close(release)
			synctest.Wait()
		})
	}
	if sent["gobreaker"] != 1000 || sent["penstock"] > 250 {
		t.Errorf("%v of 1000 calls sent, want all with gobreaker and at most 250 with penstock", sent)
	}
}

func hystrixBefore(name string, call func() error) error {
	hystrix.ConfigureCommand(name, hystrix.CommandConfig{Timeout: 10, MaxConcurrentRequests: 10})
	return hystrix.Do(name, call, nil)
}

func hystrixAfter(g *overload.Gate, b *overload.Breaker, call func() error) error {
	return b.Do(context.Background(), func(ctx context.Context) error {
		return g.Do(ctx, overload.Normal, func(context.Context) error { return call() })
	})
}

// hystrix-go returns a ticket when a call times out, though the call goes on: far more than
// ten are in flight. A gate counts them until they end.
func TestHystrixTimeoutLeavesCallsInFlight(t *testing.T) {
	const limit = 10
	hystrix.Flush() // or its circuit would still be open if the test is repeated
	g := overload.NewGate(&overload.GateOptions{Limit: limit, MaxWait: -1})
	b := overload.NewBreaker(&overload.BreakerOptions{Slow: time.Hour}) // or a stalled machine would open it
	for name, before := range map[string]bool{"hystrix-go": true, "penstock": false} {
		release, inFlight := make(chan struct{}), make(chan struct{}, 1000)
		hang := func() error {
			inFlight <- struct{}{}
			<-release
			return nil
		}
		for range 3 * limit {
			done := make(chan struct{})
			go func() {
				defer close(done)
				if before {
					_ = hystrixBefore(t.Name(), hang)
				} else {
					_ = hystrixAfter(g, b, hang)
				}
			}()
			if before {
				<-done // it returns at its timeout
			}
		}
		if before {
			timeout := time.After(time.Minute)
			for n := range limit + 1 {
				select {
				case <-inFlight: // it may begin after its timeout
				case <-timeout:
					t.Fatalf("%s: %d in flight, want more than %d", name, n, limit)
				}
			}
		} else {
			for range limit {
				<-inFlight
			}
			if stats := g.Stats(); stats.InFlight != limit {
				t.Errorf("%s: %s", name, fmt.Sprintf("%+v, want %d in flight", stats, limit))
			}
		}
		close(release)
	}
}
