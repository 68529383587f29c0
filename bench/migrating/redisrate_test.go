package migrating

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/redisstore/goredis"
)

func redisRateBefore(ctx context.Context, addr string) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	lim := redis_rate.NewLimiter(client)
	res, err := lim.Allow(ctx, "user:42", redis_rate.PerMinute(30))
	if err != nil {
		return err
	}
	if res.Allowed == 0 {
		return errTooMany // come back in res.RetryAfter
	}
	return nil
}

func redisRateAfter(ctx context.Context, addr string) error {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	adapted, err := goredis.New(client)
	if err != nil {
		return err
	}
	store, err := redisstore.New(adapted, nil)
	if err != nil {
		return err
	}
	lim, err := penstock.New(store, penstock.PerMinute(30))
	if err != nil {
		return err
	}
	d, err := lim.Allow(ctx, "user:42")
	if err != nil {
		return err
	}
	if !d.Allowed {
		return errTooMany // come back in d.RetryAfter
	}
	return nil
}

// redisRateVarying takes under a limit that varies from call to call.
func redisRateVarying(ctx context.Context, addr string, perMinute int64) (bool, error) {
	store, err := redisstore.Open(ctx, "redis://"+addr, nil)
	if err != nil {
		return false, err
	}
	defer store.Close()
	d, err := store.Take(ctx, penstock.Request{
		Key:   "user:42",
		Limit: penstock.PerMinute(perMinute).WithName("api"),
		Cost:  1,
	})
	return d.Allowed, err
}

func redisRate(t *testing.T, addr string) *redis_rate.Limiter {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, ReadTimeout: time.Minute}) // or it would repeat a slow call
	t.Cleanup(func() { _ = client.Close() })
	return redis_rate.NewLimiter(client)
}

func TestRedisRateExampleRuns(t *testing.T) {
	c, addr, _ := startRedis(t)
	if err := redisRateBefore(t.Context(), addr); err != nil {
		t.Error(err)
	}
	if err := c.whileBusy(func() error { return redisRateAfter(t.Context(), addr) }); err != nil {
		t.Error(err)
	}
	if err := c.whileBusy(func() error {
		for _, test := range []struct {
			perMinute int64
			want      bool
		}{{0, false}, {5, true}} {
			got, err := redisRateVarying(t.Context(), addr, test.perMinute)
			if err != nil {
				return err
			}
			if got != test.want {
				t.Errorf("under %d a minute: allowed is %v, want %v", test.perMinute, got, test.want)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}

// whileBusy repeats a call that the default timeout of 50 ms ended, as on a busy machine. The call may
// have been charged, so it is repeated a minute later by the clock, when its units have come back.
func (c *clock) whileBusy(call func() error) error {
	err := call()
	for deadline := time.Now().Add(time.Minute); errors.Is(err, penstock.ErrUnavailable) && time.Now().Before(deadline); {
		c.advance(time.Minute)
		err = call()
	}
	return err
}

func TestRedisRateAgrees(t *testing.T) {
	c, addr, store := startRedis(t)
	theirs, limit := redisRate(t, addr), redis_rate.Limit{Rate: 8, Burst: 16, Period: time.Second}
	c.compare(t, trace(2000, 125*time.Millisecond, 500*time.Millisecond, 10), limiter(t, store, penstock.PerSecond(8).WithBurst(16)),
		func(n int) bool {
			res, err := theirs.AllowN(t.Context(), "k", limit, n)
			if err != nil {
				t.Fatal(err)
			}
			return res.Allowed == n
		})
}

// A call that was charged and then ended leaves units for those that repeat it.
func TestWhileBusyWaitsForUnits(t *testing.T) {
	c := newClock()
	lim, calls := limiter(t, c.memory(), penstock.PerMinute(5)), 0
	err := c.whileBusy(func() error {
		d, err := lim.Allow(t.Context(), "k")
		if calls++; err == nil && d.Allowed && calls <= 20 {
			err = penstock.ErrUnavailable // on the way back
		}
		if err == nil && !d.Allowed {
			err = errTooMany
		}
		return err
	})
	if err != nil || calls != 21 {
		t.Errorf("after %d calls: %v", calls, err)
	}
}

// It counts in seconds since 2017, and a float of that has steps of 60 ns: at a
// million a second each call is charged more than it costs.
func TestRedisRateIsTooSlow(t *testing.T) {
	_, addr, store := startRedis(t)
	theirs, limit := redisRate(t, addr), redis_rate.Limit{Rate: 1_000_000, Burst: 1000, Period: time.Second}
	allowed := 0
	for range 1100 {
		res, err := theirs.Allow(t.Context(), "k", limit)
		if err != nil {
			t.Fatal(err)
		}
		allowed += res.Allowed
	}
	if allowed >= 1000 {
		t.Errorf("redis_rate admitted %d of a burst of 1000: it is no longer too slow", allowed)
	}
	if got := admitted(t, limiter(t, store, penstock.PerSecond(1_000_000).WithBurst(1000)), 1100); got != 1000 {
		t.Errorf("penstock admitted %d of a burst of 1000", got)
	}
}

// For a cost that is never possible it returns a RetryAfter, again and again.
func TestRedisRateRetriesImpossibleCost(t *testing.T) {
	c, addr, store := startRedis(t)
	theirs, limit := redisRate(t, addr), redis_rate.PerSecond(20)
	for range 3 {
		res, err := theirs.AllowN(t.Context(), "k", limit, 200)
		if err != nil {
			t.Fatal(err)
		}
		if res.Allowed != 0 || res.RetryAfter <= 0 {
			t.Errorf("200 of 20: %+v", res)
		}
		c.advance(res.RetryAfter.Round(time.Millisecond) + time.Millisecond)
	}
	d, err := limiter(t, store, penstock.PerSecond(20)).AllowN(t.Context(), "k", 200)
	if err != nil || d.Allowed || d.RetryAfter != penstock.Never {
		t.Errorf("200 of 20: %v, %v", d, err)
	}
}
