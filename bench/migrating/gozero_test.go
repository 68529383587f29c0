package migrating

import (
	"context"
	"testing"
	"time"

	"github.com/zeromicro/go-zero/core/limit"
	"github.com/zeromicro/go-zero/core/stores/redis"

	"github.com/penstock-io/penstock"
)

func periodBefore(store *redis.Redis) error {
	lim := limit.NewPeriodLimit(60, 5, store, "sms:")
	state, err := lim.Take("13800000000")
	if err != nil {
		return err
	}
	switch state {
	case limit.OverQuota:
		return errTooMany
	case limit.HitQuota: // that was the last one
	}
	return nil
}

func periodAfter(ctx context.Context, store penstock.Store) error {
	lim, err := penstock.New(store, penstock.PerMinute(5).WithAlgorithm(penstock.FixedWindow).WithName("sms"))
	if err != nil {
		return err
	}
	d, err := lim.Allow(ctx, "13800000000")
	if err != nil {
		return err
	}
	switch {
	case !d.Allowed:
		return errTooMany
	case d.Remaining == 0: // that was the last one
	}
	return nil
}

func tokenBefore(ctx context.Context, store *redis.Redis) error {
	lim := limit.NewTokenLimiter(10, 20, store, "api")
	if !lim.AllowCtx(ctx) {
		return errTooMany
	}
	return nil
}

func goZero(t *testing.T, addr string) *redis.Redis {
	t.Helper()
	store, err := redis.NewRedis(redis.RedisConf{Host: addr, Type: redis.NodeType, NonBlock: true, PingTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func TestGoZeroExampleRuns(t *testing.T) {
	_, addr, store := startRedis(t)
	for name, err := range map[string]error{
		"PeriodLimit":  periodBefore(goZero(t, addr)),
		"ours":         periodAfter(t.Context(), store),
		"TokenLimiter": tokenBefore(t.Context(), goZero(t, addr)),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Its three states agree with penstock's decisions: allowed, the last one, denied.
func TestGoZeroPeriodLimitAgrees(t *testing.T) {
	c, addr, store := startRedis(t)
	theirs := limit.NewPeriodLimit(10, 5, goZero(t, addr), "p:")
	ours := limiter(t, store, penstock.Per(5, 10*time.Second).WithAlgorithm(penstock.FixedWindow))
	seen := map[int]int{}
	// In steps of seven milliseconds no request is exactly at the end of a window,
	// when a key still exists in Redis and penstock's window is over.
	for i, s := range trace(1000, 7*time.Millisecond, 5*time.Second, 1) {
		c.advance(s.after)
		state, err := theirs.Take("k")
		if err != nil {
			t.Fatal(err)
		}
		d, err := ours.Allow(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		want := limit.OverQuota
		switch {
		case d.Allowed && d.Remaining == 0:
			want = limit.HitQuota
		case d.Allowed:
			want = limit.Allowed
		}
		if state != want {
			t.Fatalf("step %d: theirs %d, ours %v", i, state, d)
		}
		seen[state]++
	}
	if len(seen) != 3 {
		t.Errorf("want all three states, got %v", seen)
	}
}

// On whole seconds its token bucket agrees with penstock's.
func TestGoZeroTokenLimiterAgrees(t *testing.T) {
	c, addr, store := startRedis(t)
	theirs := limit.NewTokenLimiter(10, 20, goZero(t, addr), "k")
	c.compare(t, trace(1000, time.Second, 2*time.Second, 20), limiter(t, store, penstock.PerSecond(10).WithBurst(20)),
		func(n int) bool { return theirs.AllowN(c.now, n) })
}

// Within a second nothing refills, and then all of it at once.
func TestGoZeroTokenLimiterRefillsOncePerSecond(t *testing.T) {
	c, addr, store := startRedis(t)
	theirs := limit.NewTokenLimiter(10, 20, goZero(t, addr), "k")
	ours := limiter(t, store, penstock.PerSecond(10).WithBurst(20))
	for theirs.AllowN(c.now, 1) {
	}
	admitted(t, ours, 100)
	c.advance(900 * time.Millisecond)
	if theirs.AllowN(c.now, 1) {
		t.Error("go-zero's token bucket now refills within a second")
	}
	if got := admitted(t, ours, 100); got != 9 {
		t.Errorf("after nine tenths of a second penstock admitted %d, want 9", got)
	}
}

// Clients send the time. A client whose clock is ten seconds behind sets it back for all
// of them, and the same time is granted again.
func TestGoZeroTokenLimiterTrustsClientClocks(t *testing.T) {
	c, addr, store := startRedis(t)
	theirs := limit.NewTokenLimiter(10, 100, goZero(t, addr), "k")
	late, allowed := c.now.Add(-10*time.Second), 0
	for range 50 {
		for theirs.AllowN(c.now, 1) {
			allowed++
		}
		theirs.AllowN(late, 1)
	}
	if allowed < 1000 {
		t.Errorf("go-zero admitted %d of a burst of 100 at once: it no longer trusts client clocks", allowed)
	}
	if got := admitted(t, limiter(t, store, penstock.PerSecond(10).WithBurst(100)), 1000); got != 100 {
		t.Errorf("penstock admitted %d of a burst of 100 at once", got)
	}
}

// A burst of less than half the rate gives its keys a TTL of 0. Redis rejects that, and
// each process falls back to its own limiter.
func TestGoZeroTokenLimiterSmallBurstFails(t *testing.T) {
	c, addr, store := startRedis(t)
	allowed := 0
	for range 4 { // processes
		theirs := limit.NewTokenLimiter(100, 10, goZero(t, addr), "k")
		for range 50 {
			if theirs.AllowN(c.now, 1) {
				allowed++
			}
		}
	}
	if allowed <= 10 {
		t.Errorf("go-zero admitted %d of a burst of 10: it no longer falls back", allowed)
	}
	if got := admitted(t, limiter(t, store, penstock.PerSecond(100).WithBurst(10)), 200); got != 10 {
		t.Errorf("penstock admitted %d of a burst of 10", got)
	}
}
