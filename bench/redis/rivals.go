package main

import (
	"context"
	"sync"
	"time"

	"github.com/go-redis/redis_rate/v10"
	goredis "github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	throttledredis "github.com/throttled/throttled/v2/store/goredisstore.v9"
	ulule "github.com/ulule/limiter/v3"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
	"github.com/zeromicro/go-zero/core/limit"
	"github.com/zeromicro/go-zero/core/logx"
	zeroredis "github.com/zeromicro/go-zero/core/stores/redis"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// rivals are the limiters on Redis that Go programs use today, opened as their
// documentation says.
var rivals = []library{
	redisRate,
	{"throttled, GCRA", "github.com/throttled/throttled/v2", 1, openThrottled},
	{"ulule/limiter", "github.com/ulule/limiter/v3", 1, openUlule},
	{"go-zero PeriodLimit", "github.com/zeromicro/go-zero", 1, openPeriodLimit},
	{"go-zero TokenLimiter", "", 2, openTokenLimiter},
}

var redisRate = library{"redis_rate", "github.com/go-redis/redis_rate/v10", 1, openRedisRate}

// goRedis returns a client with penstock's deadline.
func goRedis(addr string) *goredis.Client {
	return goredis.NewClient(&goredis.Options{
		Addr: addr, DialTimeout: callTimeout, ReadTimeout: callTimeout, WriteTimeout: callTimeout, PoolTimeout: callTimeout,
	})
}

// limiterOf returns a limiter of a client that is closed with it.
func limiterOf(client *goredis.Client, take func(ctx context.Context, key string) (bool, error)) limiter {
	return limiter{take, func() { _ = client.Close() }}
}

func openRedisRate(addr string, p benchLimit) limiter {
	client := goRedis(addr)
	lim, limit := redis_rate.NewLimiter(client), redis_rate.Limit{Rate: 1, Period: p.every, Burst: int(p.burst)}
	return limiterOf(client, func(ctx context.Context, key string) (bool, error) {
		result, err := lim.Allow(ctx, key, limit)
		return err == nil && result.Allowed == 1, err
	})
}

func openThrottled(addr string, p benchLimit) limiter {
	client := goRedis(addr)
	store := harness.Must(throttledredis.NewCtx(client, ""))
	quota := throttled.RateQuota{MaxRate: throttled.PerDuration(1, p.every), MaxBurst: int(p.burst) - 1}
	lim := harness.Must(throttled.NewGCRARateLimiterCtx(store, quota))
	return limiterOf(client, func(ctx context.Context, key string) (bool, error) {
		limited, _, err := lim.RateLimitCtx(ctx, "thr:"+key, 1)
		return err == nil && !limited, err
	})
}

func openUlule(addr string, p benchLimit) limiter {
	client := goRedis(addr)
	lim := ulule.New(harness.Must(ululeredis.NewStore(client)), ulule.Rate{Period: p.window(), Limit: p.burst})
	return limiterOf(client, func(ctx context.Context, key string) (bool, error) {
		c, err := lim.Get(ctx, key)
		return err == nil && !c.Reached, err
	})
}

// quietGoZero disables go-zero's log of statistics, which is on by default as soon as it
// is linked in.
func quietGoZero() {
	logx.Disable()
	logx.DisableStat()
}

func openZero(addr string) *zeroredis.Redis {
	return harness.Must(zeroredis.NewRedis(zeroredis.RedisConf{Host: addr, Type: zeroredis.NodeType, PingTimeout: callTimeout}))
}

func openPeriodLimit(addr string, p benchLimit) limiter {
	lim := limit.NewPeriodLimit(int(p.window()/time.Second), int(p.burst), openZero(addr), "per:")
	return limiter{func(ctx context.Context, key string) (bool, error) {
		state, err := lim.TakeCtx(ctx, key)
		return err == nil && (state == limit.Allowed || state == limit.HitQuota), err
	}, func() {}}
}

// openTokenLimiter holds go-zero's limiters, one for each key, with one unit a second, the lowest rate
// that it supports.
func openTokenLimiter(addr string, p benchLimit) limiter {
	store := openZero(addr)
	var keys sync.Map
	return limiter{func(ctx context.Context, key string) (bool, error) {
		l, ok := keys.Load(key)
		if !ok {
			l, _ = keys.LoadOrStore(key, limit.NewTokenLimiter(1, int(p.burst), store, key))
		}
		return l.(*limit.TokenLimiter).AllowCtx(ctx), nil
	}, func() {}}
}
