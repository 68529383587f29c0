package main

import (
	"context"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/go-redis/redis_rate/v10"
	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/throttled/throttled/v2"
	throttledredis "github.com/throttled/throttled/v2/store/goredisstore.v9"
	ulule "github.com/ulule/limiter/v3"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
	"github.com/zeromicro/go-zero/core/limit"
	"github.com/zeromicro/go-zero/core/logx"
	zeroredis "github.com/zeromicro/go-zero/core/stores/redis"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// A limiter decides through a client library, as a program would.
type limiter struct {
	take  func(ctx context.Context, key string) (ok bool, err error) // never ok with an error
	close func()
}

// A benchLimit is so many units at once, of which one refills every so often.
type benchLimit struct {
	burst int64
	every time.Duration
}

// window is how long a burst takes to refill.
func (p benchLimit) window() time.Duration { return time.Duration(p.burst) * p.every }

var (
	ample = benchLimit{burst: 100_000, every: 36 * time.Second} // admits every call of a run
	once  = benchLimit{burst: 1, every: time.Hour}              // admits one
)

// A library opens a limiter.
type library struct {
	name   string
	module string // where it comes from
	perKey int    // keys in Redis for each key
	open   func(addr string, p benchLimit) limiter
}

var ours = library{"penstock token-bucket", "github.com/penstock-io/penstock", 1, openPenstock}

// ourWindows have no targets.
var ourWindows = []library{
	{"penstock fixed-window", "", 1, openPenstockWindow(penstock.FixedWindow)},
	{"penstock sliding-window", "", 1, openPenstockWindow(penstock.SlidingWindow)},
}

func openPenstock(addr string, p benchLimit) limiter {
	return newPenstock(addr, penstock.Limit{Count: 1, Period: p.every, Burst: p.burst})
}

func openPenstockWindow(a penstock.Algorithm) func(string, benchLimit) limiter {
	return func(addr string, p benchLimit) limiter {
		return newPenstock(addr, penstock.Limit{Count: p.burst, Period: p.window(), Algorithm: a})
	}
}

// newPenstock opens the store with a deadline for every call, as by default.
func newPenstock(addr string, l penstock.Limit) limiter {
	store := harness.Must(redisstore.Open(context.Background(), "redis://"+addr, &redisstore.Options{Timeout: callTimeout}))
	lim := harness.Must(penstock.New(store, l))
	take := func(ctx context.Context, key string) (bool, error) {
		d, err := lim.Allow(ctx, key)
		return err == nil && d.Allowed, err
	}
	return limiter{take, store.Close}
}

// callTimeout is the deadline of a call. It is longer than the store's default because a
// busy machine may stop Redis for longer than that; a deadline costs the same whatever its length.
const callTimeout = time.Minute

// The floors are the least that a decision through a client can cost: a round trip, one
// that counts, and one that runs a script. None has a deadline.
var floors = []library{
	{"PING through rueidis", "github.com/redis/rueidis", 0, openFloor(func(c rueidis.Client, _ string) rueidis.Completed { return c.B().Ping().Build() })},
	{"INCR through rueidis", "", 1, openFloor(func(c rueidis.Client, key string) rueidis.Completed { return c.B().Incr().Key(key).Build() })},
	trivial,
}

var trivial = library{"trivial EVALSHA through rueidis", "", 0, openFloor(func(c rueidis.Client, key string) rueidis.Completed {
	return c.B().Evalsha().Sha1(trivialSHA1).Numkeys(1).Key(key).Build()
})}

var trivialSHA1 = trivialShape().words[1]

func openFloor(command func(c rueidis.Client, key string) rueidis.Completed) func(string, benchLimit) limiter {
	return func(addr string, _ benchLimit) limiter {
		client := connect(addr)
		harness.Check(client.Do(context.Background(), client.B().ScriptLoad().Script(trivialScript).Build()).Error())
		take := func(ctx context.Context, key string) (bool, error) {
			err := client.Do(ctx, command(client, key)).Error()
			return err == nil, err
		}
		return limiter{take, client.Close}
	}
}

// A server is a redis-server on a free port, without persistence.
type server struct {
	*redistest.Server
	client rueidis.Client // to fill it, not to load it
}

// startServer starts a server with more settings, as on its command line, under a
// wrapper command if there is one.
func (b *bench) startServer(wrapper []string, settings ...string) *server {
	if _, err := exec.LookPath("redis-benchmark"); err != nil {
		b.Fatalf("redis-server and redis-benchmark are needed; on Debian: apt-get install redis-server redis-tools: %w", err)
	}
	s := &server{Server: redistest.StartForTest(b, redistest.Options{Wrapper: wrapper, Args: append([]string{"--maxclients", "4000"}, settings...)})}
	s.client = connect(s.Addr)
	b.Cleanup(s.client.Close)
	return s
}

// startClusterNode starts a Cluster of one node, which owns every slot.
func (b *bench) startClusterNode() *server {
	s := b.startServer(nil, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
	redistest.MustCommand(b, s.Server, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	redistest.WaitFor(b, "a Cluster of one node is ready", func() bool {
		return strings.Contains(redistest.MustCommand(b, s.Server, "CLUSTER", "INFO"), "cluster_state:ok")
	})
	return s
}

// empty deletes all keys. Scripts stay loaded.
func (s *server) empty() { harness.Must(s.Command("FLUSHALL", "SYNC")) }

// info returns what the server says of itself.
func (s *server) info() harness.Info { return harness.InfoOf(s.Server) }

// startTimeout is how long a server may take to respond under a simulator.
const startTimeout = time.Minute

// connect opens a client with the settings of the store's own: the same buffers, one
// connection per processor, no retries.
func connect(addr string) rueidis.Client {
	return harness.Must(rueidis.NewClient(rueidis.ClientOption{
		InitAddress:         []string{addr},
		ForceSingleClient:   true,
		DisableCache:        true,
		DisableRetry:        true,
		RingScaleEachConn:   12,
		ReadBufferEachConn:  1 << 16,
		WriteBufferEachConn: 1 << 16,
		ConnWriteTimeout:    startTimeout,
	}))
}

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
