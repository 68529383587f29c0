package main

import (
	"context"
	"io"
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

type rateLimiter struct {
	client *goredis.Client
	lim    *redis_rate.Limiter
	limit  redis_rate.Limit
}

func openRedisRate(addr string, p benchLimit) (limiter, error) {
	client := goRedis(addr)
	limit := redis_rate.Limit{Rate: 1, Period: p.every, Burst: int(p.burst)}
	return &rateLimiter{client, redis_rate.NewLimiter(client), limit}, nil
}

func (r *rateLimiter) take(ctx context.Context, key string) (bool, error) {
	result, err := r.lim.Allow(ctx, key, r.limit)
	return err == nil && result.Allowed == 1, err
}

func (r *rateLimiter) close() { _ = r.client.Close() }

type throttledLimiter struct {
	io.Closer
	lim *throttled.GCRARateLimiterCtx
}

func openThrottled(addr string, p benchLimit) (limiter, error) {
	client := goRedis(addr)
	store, err := throttledredis.NewCtx(client, "")
	if err != nil {
		return nil, err
	}
	quota := throttled.RateQuota{MaxRate: throttled.PerDuration(1, p.every), MaxBurst: int(p.burst) - 1}
	lim, err := throttled.NewGCRARateLimiterCtx(store, quota)
	return &throttledLimiter{client, lim}, err
}

func (t *throttledLimiter) take(ctx context.Context, key string) (bool, error) {
	limited, _, err := t.lim.RateLimitCtx(ctx, "thr:"+key, 1)
	return err == nil && !limited, err
}

func (t *throttledLimiter) close() { _ = t.Close() }

type ululeLimiter struct {
	io.Closer
	lim *ulule.Limiter
}

func openUlule(addr string, p benchLimit) (limiter, error) {
	client := goRedis(addr)
	store, err := ululeredis.NewStore(client)
	if err != nil {
		return nil, err
	}
	return &ululeLimiter{client, ulule.New(store, ulule.Rate{Period: p.window(), Limit: p.burst})}, nil
}

func (u *ululeLimiter) take(ctx context.Context, key string) (bool, error) {
	c, err := u.lim.Get(ctx, key)
	return err == nil && !c.Reached, err
}

func (u *ululeLimiter) close() { _ = u.Close() }

// quietGoZero disables go-zero's log of statistics, which is on by default as soon as it
// is linked in.
func quietGoZero() {
	logx.Disable()
	logx.DisableStat()
}

func openZero(addr string) (*zeroredis.Redis, error) {
	return zeroredis.NewRedis(zeroredis.RedisConf{Host: addr, Type: zeroredis.NodeType, PingTimeout: callTimeout})
}

type periodLimiter struct{ lim *limit.PeriodLimit }

func openPeriodLimit(addr string, p benchLimit) (limiter, error) {
	store, err := openZero(addr)
	if err != nil {
		return nil, err
	}
	return &periodLimiter{limit.NewPeriodLimit(int(p.window()/time.Second), int(p.burst), store, "per:")}, nil
}

func (z *periodLimiter) take(ctx context.Context, key string) (bool, error) {
	state, err := z.lim.TakeCtx(ctx, key)
	return err == nil && (state == limit.Allowed || state == limit.HitQuota), err
}

func (z *periodLimiter) close() {}

// A tokenLimiter holds go-zero's limiters, one for each key.
type tokenLimiter struct {
	store *zeroredis.Redis
	burst int
	keys  sync.Map
}

// openTokenLimiter uses one unit a second, the lowest rate that it supports.
func openTokenLimiter(addr string, p benchLimit) (limiter, error) {
	store, err := openZero(addr)
	return &tokenLimiter{store: store, burst: int(p.burst)}, err
}

func (z *tokenLimiter) take(ctx context.Context, key string) (bool, error) {
	l, ok := z.keys.Load(key)
	if !ok {
		l, _ = z.keys.LoadOrStore(key, limit.NewTokenLimiter(1, z.burst, z.store, key))
	}
	return l.(*limit.TokenLimiter).AllowCtx(ctx), nil
}

func (z *tokenLimiter) close() {}
