package faults

import (
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

// These faults befall clocks. A server's is set by the run, and goes on as clocks
// do; that of the callers is the machine's.

// A clock is how far a server's time is ahead of everybody else's.
type clock struct{ ahead atomic.Int64 }

// redisOn starts a server whose clock is wrong.
func (r *run) redisOn(ahead time.Duration) (*redistest.Server, *clock) {
	r.Helper()
	server := redistest.StartForTest(r, redistest.Options{FakeClock: true})
	r.servers = append(r.servers, server)
	c := &clock{}
	c.ahead.Store(int64(ahead))
	set := func() { server.Clock.Set(time.Now().Add(time.Duration(c.ahead.Load()))) }
	set()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				set()
			}
		}
	})
	r.Cleanup(func() {
		close(stop)
		wg.Wait()
	})
	return server, c
}

// aheadOf returns how far a server's clock is ahead of ours, in seconds.
func (r *run) aheadOf(server *redistest.Server) int {
	r.Helper()
	text, _, _ := strings.Cut(redistest.MustCommand(r, server, "TIME"), "\n")
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		r.Fatal(err)
	}
	return int(seconds - time.Now().Unix())
}

// behindAnHour and aheadAnHour are F14: the callers' clock is wrong by an hour, and
// Redis's decides.
func behindAnHour(r *run) { r.hourOff(time.Hour) }
func aheadAnHour(r *run)  { r.hourOff(-time.Hour) }

func (r *run) hourOff(ahead time.Duration) {
	server, _ := r.redisOn(ahead)
	l := r.start("redis://" + server.Addr)
	l.answers(r.few(2000))
	sign := int(ahead / ahead.Abs())
	r.happened("seconds between the clocks, beyond fifty minutes", sign*r.aheadOf(server)-3000)
}

// aStep is longer than it takes any of the limits to be as good as new.
const aStep = 400 * 24 * time.Hour

// stepForward is F15, and stepBack is F16.
func stepForward(r *run) { r.step(aStep) }
func stepBack(r *run)    { r.step(-aStep) }

func (r *run) step(by time.Duration) {
	server, clock := r.redisOn(0)
	l := r.start("redis://" + server.Addr)
	l.answers(r.few(1500))
	clock.ahead.Store(int64(by))
	redistest.WaitFor(r, "the clock steps", func() bool { return r.aheadOf(server) != 0 })
	r.history.loses()
	l.answers(r.few(1000))
	sign := int(by / by.Abs())
	r.happened("days that the clock has stepped, beyond a year", sign*r.aheadOf(server)/86400-366)
}
