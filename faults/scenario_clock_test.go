package faults

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

// Faults of clocks. The run sets the server's clock, which then advances; callers use
// the machine's.

// A clock is that of a server.
type clock struct {
	mu     sync.Mutex
	server *redistest.Server
	ahead  time.Duration // of the machine's
}

func (c *clock) set() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.server.Clock.Set(time.Now().Add(c.ahead))
}

func (c *clock) step(ahead time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead = ahead
	c.server.Clock.Set(time.Now().Add(c.ahead))
}

// redisWithClock starts a server whose clock is wrong.
func (r *run) redisWithClock(ahead time.Duration) (*redistest.Server, *clock) {
	r.Helper()
	server := redistest.StartForTest(r, redistest.Options{FakeClock: true})
	r.servers = append(r.servers, server)
	c := &clock{server: server, ahead: ahead}
	c.set()
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
				c.set()
			}
		}
	})
	r.Cleanup(func() {
		close(stop)
		wg.Wait()
	})
	return server, c
}

// clockOffset returns how far a server's clock is ahead of the machine's, in seconds.
func (r *run) clockOffset(server *redistest.Server) int {
	r.Helper()
	text, _, _ := strings.Cut(redistest.MustCommand(r, server, "TIME"), "\n")
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		r.Fatal(err)
	}
	return int(seconds - time.Now().Unix())
}

// callersHourBehind and callersHourAhead are F14: the callers' clock is wrong by an
// hour, and Redis's clock decides.
func callersHourBehind(r *run) { r.skewClock(time.Hour) }
func callersHourAhead(r *run)  { r.skewClock(-time.Hour) }

func (r *run) skewClock(ahead time.Duration) {
	server, _ := r.redisWithClock(ahead)
	l := r.start("redis://" + server.Addr)
	l.awaitAnswers(r.scale(2000))
	sign := int(ahead / ahead.Abs())
	r.prove("seconds between the clocks, beyond fifty minutes", sign*r.clockOffset(server)-3000)
}

// clockStep is longer than any of the limits takes to refill.
const clockStep = 400 * 24 * time.Hour

// stepForward is F15, and stepBack is F16.
func stepForward(r *run) { r.stepClock(clockStep) }
func stepBack(r *run)    { r.stepClock(-clockStep) }

func (r *run) stepClock(by time.Duration) {
	sign := int(by / by.Abs())
	server, clock := r.redisWithClock(0)
	l := r.start("redis://" + server.Addr)
	l.awaitAnswers(r.scale(1500))
	if by < 0 { // only what the script writes that runs at this moment expires
		r.history.keptUntil = time.Since(r.history.start)
	}
	clock.step(by)
	r.history.recordLoss()
	redistest.WaitFor(r, "the clock steps", func() bool { return sign*r.clockOffset(server) > 86400 })
	l.awaitAnswers(r.scale(1000))
	r.prove("days that the clock has stepped, beyond a year", sign*r.clockOffset(server)/86400-366)
}
