// Package migrating tests docs/migrating.md: the code on that page is the code in these
// files, and the other limiters run on the same traces as penstock.
package migrating

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/zeromicro/go-zero/core/logx"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// errTooMany is what the code on the page returns for a denial.
var errTooMany = errors.New("too many requests")

func TestMain(m *testing.M) {
	logx.Disable() // go-zero logs statistics as soon as it is linked in
	logx.DisableStat()
	goredis.SetLogger(noLog{})
	os.Exit(m.Run())
}

// noLog drops the log of go-redis about stopped servers, from clients that go-zero does
// not close.
type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

// A clock is a fake clock, of this process and of a Redis server if there is one.
type clock struct {
	now   time.Time
	redis *redistest.Clock
}

func newClock() *clock { return &clock{now: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clock) advance(d time.Duration) {
	c.now = c.now.Add(d)
	if c.redis != nil {
		c.redis.Set(c.now)
	}
}

// memory returns a memory store on the clock.
func (c *clock) memory() penstock.Store {
	return penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return c.now }})
}

// startRedis starts a server on a fake clock, and returns a store on it.
func startRedis(t *testing.T) (c *clock, addr string, store penstock.Store) {
	t.Helper()
	server, err := redistest.Start(redistest.Options{FakeClock: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	c = newClock()
	c.redis = server.Clock
	c.advance(0)
	s, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return c, server.Addr, s
}

func limiter(t *testing.T, s penstock.Store, l penstock.Limit) *penstock.Limiter {
	t.Helper()
	lim, err := penstock.New(s, l)
	if err != nil {
		t.Fatal(err)
	}
	return lim
}

// A step of a trace is the cost of a request, and the time since the one before.
type step struct {
	after time.Duration
	cost  int
}

// trace returns random steps: pauses of whole units up to the longest, and costs.
func trace(n int, unit, longest time.Duration, dearest int) []step {
	random := rand.New(rand.NewPCG(20261101, uint64(n)))
	steps := make([]step, n)
	for i := range steps {
		steps[i].cost = 1 + random.IntN(dearest)
		if random.IntN(3) > 0 { // often at the same time
			steps[i].after = unit * time.Duration(random.Int64N(int64(longest/unit)+1))
		}
	}
	return steps
}

// compare runs a trace on both limiters and fails where they differ. A trace that
// is all allowed, or all denied, compares nothing.
func (c *clock) compare(t *testing.T, steps []step, ours *penstock.Limiter, theirs func(n int) bool) {
	t.Helper()
	allowed := 0
	for i, s := range steps {
		c.advance(s.after)
		d, err := ours.AllowN(context.Background(), "k", int64(s.cost))
		if err != nil {
			t.Fatal(err)
		}
		if got := theirs(s.cost); got != d.Allowed {
			t.Fatalf("step %d, %v after the one before, cost %d: theirs %v, ours %v", i, s.after, s.cost, got, d)
		}
		if d.Allowed {
			allowed++
		}
	}
	if allowed < len(steps)/10 || allowed > len(steps)*9/10 {
		t.Errorf("%d of %d steps were allowed, want a mix", allowed, len(steps))
	}
}

// admitted returns how many of n takes of one unit penstock allows.
func admitted(t *testing.T, lim *penstock.Limiter, n int) (allowed int) {
	t.Helper()
	for range n {
		d, err := lim.Allow(context.Background(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			allowed++
		}
	}
	return allowed
}
