package main

import (
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
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

var ours = library{"penstock token-bucket", "github.com/penstock-io/penstock", 1, openPenstock(func(p benchLimit) penstock.Limit {
	return penstock.Limit{Count: 1, Period: p.every, Burst: p.burst}
})}

// ourWindows have no targets.
var ourWindows = []library{
	{"penstock fixed-window", "", 1, openPenstock(func(p benchLimit) penstock.Limit {
		return penstock.Limit{Count: p.burst, Period: p.window(), Algorithm: penstock.FixedWindow}
	})},
	{"penstock sliding-window", "", 1, openPenstock(func(p benchLimit) penstock.Limit {
		return penstock.Limit{Count: p.burst, Period: p.window(), Algorithm: penstock.SlidingWindow}
	})},
}

// openPenstock opens the store with a deadline for every call, as by default.
func openPenstock(limit func(benchLimit) penstock.Limit) func(addr string, p benchLimit) limiter {
	return func(addr string, p benchLimit) limiter {
		store := harness.Must(redisstore.Open(context.Background(), "redis://"+addr, &redisstore.Options{Timeout: callTimeout}))
		lim := harness.Must(penstock.New(store, limit(p)))
		take := func(ctx context.Context, key string) (bool, error) {
			d, err := lim.Allow(ctx, key)
			return err == nil && d.Allowed, err
		}
		return limiter{take, store.Close}
	}
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
		InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true, DisableRetry: true, ConnWriteTimeout: startTimeout,
		RingScaleEachConn: 12, ReadBufferEachConn: 1 << 16, WriteBufferEachConn: 1 << 16,
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

// goroutines is the number of concurrent callers, as in a busy server.
const goroutines = 64

// newLoad returns a load by goroutines. call makes the i-th call.
func newLoad(name string, goroutines int, meter harness.Meter, call func(i int) (bool, error)) *harness.Load {
	return harness.NewLoad(name, goroutines, meter, func(_, from, calls int) (t harness.Counts) {
		for i := from; i < from+calls; i++ {
			t.Count(call(i))
		}
		return t
	})
}

// A client calls a limiter through its client library. Its figures are microseconds of processor: of
// this process, and of the server.
type client struct {
	*harness.Load
	library
	limiter limiter
	ctx     context.Context
	keys    []string
}

// clients compares the limiters through their client libraries. Penstock and the
// references of its targets run next to each other.
func (b *bench) clients() {
	libraries := slices.Concat([]library{ours, trivial, redisRate}, ourWindows, floors[:2], rivals[1:])
	for _, l := range libraries {
		b.verifyLimits(l)
	}
	b.server.empty() // some keys of these checks expire soon, and newClient counts keys
	keys := keyNames("user:key", b.Size(10_000, 200))
	var clients []*client
	for _, l := range libraries {
		c := b.newClient(l, keys)
		defer c.limiter.close()
		clients = append(clients, c)
	}
	b.Logf("clients: %d rounds of %s for each of %d limiters", b.Rounds, b.Turn, len(clients))
	for _, c := range clients {
		c.Calibrate(b.Turn, goroutines)
	}
	harness.TakeTurns(b.Rounds, clients...)
	b.verifyGrants(clients)
	t := b.Table(fmt.Sprintf("Through client libraries, %d goroutines: medians of the rounds, in brackets the 10th to the 90th percentile", goroutines),
		"limiter", "thousand calls a second", "to a trivial EVALSHA", "to redis_rate", "client µs a call", "server µs a call", "allocations")
	for _, c := range clients {
		row := append([]any{c.Name, harness.Decimals(0)(c.Median("rate") / 1000), c.To(clients[1], "rate"), c.To(clients[2], "rate")}, c.Medians(1, "client", "server")...)
		t.Row(append(row, harness.Decimals(1)(c.Allocations(b.Size(50_000, 1_000))))...)
	}
	ours, trivial, redisRate := clients[0], clients[1], clients[2]
	title := fmt.Sprintf("token bucket, %d goroutines, %s keys, Limiter.Allow with its deadline", goroutines, harness.Thousands(b.Size(10_000, 200)))
	b.FindAtLeast(title, ours.To(redisRate, "rate"), 2, "redis_rate")
	b.FindAtLeast(title, ours.To(trivial, "rate"), 0.55, "a trivial EVALSHA without deadline")
	plain := ours.Allocations(b.Size(50_000, 1_000))
	cancelable, cancel := context.WithCancel(context.Background())
	defer cancel()
	ours.ctx = cancelable
	wrapper := ours.Allocations(b.Size(50_000, 1_000))
	b.Find(title+", allocations", "≤ 2, ≤ 5 under a cancelable context", plain <= 2.05 && wrapper <= 5.05,
		"%.2f, and %.2f under a cancelable context", plain, wrapper)
}

// newClient opens a limiter and takes each key once, and verifies that this created the
// expected number of keys in Redis, with an expiry.
func (b *bench) newClient(l library, keys []string) *client {
	before := b.server.info()
	c := &client{library: l, limiter: l.open(b.server.Addr, ample), keys: keys, ctx: context.Background()}
	c.Load = newLoad(l.name, goroutines, func() map[string]float64 {
		user, system := harness.Processor()
		return map[string]float64{"client": user + system, "server": b.server.info().Processor()}
	}, func(i int) (bool, error) { return c.limiter.take(c.ctx, keys[i%len(keys)]) })
	c.Run(len(keys))
	d, want := b.server.info().Since(before), l.perKey*len(keys)
	if d.Keys() != want || (d.Expires() != want && !l.lasting()) {
		b.Fatalf("%s: %d new keys, %d with an expiry; want %d", l.name, d.Keys(), d.Expires(), want)
	}
	harness.Check(c.Total.Verify(c.Name, len(keys), false))
	return c
}

// keyNames returns keys of 20 bytes with a prefix of eight bytes.
func keyNames(begin string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("%s%012d", begin, i)
	}
	return keys
}

// isFloor reports whether this is a floor, which never denies.
func (l library) isFloor() bool { return strings.HasSuffix(l.name, " through rueidis") }

// lasting reports whether the keys have no expiry: those of INCR, which is no limiter.
func (l library) lasting() bool { return l.name == floors[1].name }

// verifyLimits ends the case unless a limit of one unit admits one, on each of some keys.
func (b *bench) verifyLimits(l library) {
	if l.isFloor() {
		return
	}
	opened := l.open(b.server.Addr, once)
	defer opened.close()
	for _, key := range keyNames("user:one", 10) {
		verifyLimit(l.name, opened, key, time.Now)
	}
}

// verifyLimit takes a key until that is denied, and ends the case unless one unit was granted.
// One more may be with each second that has begun, because go-zero's slowest limit refills
// that fast.
func verifyLimit(name string, l limiter, key string, now func() time.Time) {
	began, granted := now().Unix(), int64(0)
	for ok := true; ok; {
		if ok = harness.Must(l.take(context.Background(), key)); ok {
			granted++
		}
		if most := 1 + now().Unix() - began; granted < 1 || granted > most {
			harness.Failf("%s: %d units of key %s granted, want from 1 to %d", name, granted, key, most)
		}
	}
}

// verifyGrants ends the case unless all calls were granted, and all keys have an expiry but those that
// never had one.
func (b *bench) verifyGrants(clients []*client) {
	lasting := 0
	for _, c := range clients {
		harness.Check(c.Total.Verify(c.Name, len(c.keys), false))
		if c.lasting() {
			lasting += len(c.keys)
		}
	}
	if i := b.server.info(); i.Keys()-i.Expires() != lasting {
		b.Fatalf("%d of %d keys have no expiry, want %d", i.Keys()-i.Expires(), i.Keys(), lasting)
	}
}

// A place is where keys are: a server, or a Cluster.
type place struct {
	name          string
	url           string
	nodes, copies []*redistest.Server // primaries, and their replicas
}

// splitKeys are the numbers of keys of a call.
var splitKeys = []int{1, 3, 5}

// split measures where the time of a call goes: in a server with batches, in one to which
// every call is a script of its own, in a Cluster of three shards with replicas, and in a
// server with a replica, because a write costs a primary more that has one.
func (b *bench) split() {
	var all []*harness.Load
	var keys []int
	for _, p := range b.places() {
		for _, n := range splitKeys {
			all, keys = append(all, b.splitSubject(p, n, b.Size(10_000, 200))), append(keys, n)
		}
	}
	b.Logf("split: %d rounds of %s for each of %d kinds of calls", b.Rounds, 5*b.Turn, len(all))
	harness.TakeTurns(b.Rounds, all...)
	for _, s := range all {
		harness.Check(s.Total.Verify(s.Name, 1, false))
	}
	t := b.Table(fmt.Sprintf("Processor time of a call by one program with %d goroutines: medians of the rounds", goroutines),
		"where", "keys of a call", "thousand calls a second", "client µs a call", "kernel, for the client", "primaries", "replicas", "in all")
	for i, c := range all {
		row := []any{c.Name, keys[i], harness.Decimals(0)(c.Median("rate") / 1000)}
		t.Row(append(row, c.Medians(1, "client", "kernel", "primaries", "replicas", "in all")...)...)
	}
	title := fmt.Sprintf("TakeAll of three keys, %d goroutines", goroutines)
	b.FindAtLeast(title, all[1].To(all[0], "rate"), 0.5, "the rate of single takes")
	batched := all[1].Median("primaries")
	b.Find(title+", redis-server", "≤ 14 µs a call", batched <= 14, "%.1f µs", batched)
}

// places returns the places. A server decides in batches, a Cluster does not.
func (b *bench) places() []place {
	cluster := redistest.StartCluster(b)
	primary := redistest.StartForTest(b, redistest.Options{})
	replica := redistest.StartForTest(b, redistest.Options{Args: []string{"--replicaof", "127.0.0.1", strconv.Itoa(primary.Port)}})
	redistest.WaitFor(b, "the replica follows its primary", func() bool { return redistest.MustCommand(b, primary, "WAIT", "1", "1000") == "1" })
	single := b.server.Server
	return []place{
		{name: "a server, in batches", url: "redis://" + single.Addr, nodes: []*redistest.Server{single}},
		{name: "a Cluster", url: cluster.URL(), nodes: cluster.Nodes[:redistest.Shards], copies: cluster.Nodes[redistest.Shards:]},
		{
			name: "a server with a replica, in batches", url: "redis://" + primary.Addr,
			nodes: []*redistest.Server{primary}, copies: []*redistest.Server{replica},
		},
	}
}

// splitSubject opens a store at a place, takes from each key once, and returns calls that take from one or
// more keys at once for about as long as a turn.
func (b *bench) splitSubject(p place, keys, calls int) *harness.Load {
	o := &redisstore.Options{Timeout: callTimeout, Prefix: fmt.Sprintf("s%d-%d", keys, len(p.name))}
	store := harness.Must(redisstore.Open(context.Background(), p.url, o))
	b.Cleanup(store.Close)
	requests := make([][]penstock.Request, calls)
	for i := range requests {
		for k := range keys {
			requests[i] = append(requests[i], penstock.Request{
				Key: fmt.Sprintf("key%d:%014d", k, i), Cost: 1,
				Limit: penstock.Limit{Count: 1, Period: ample.every, Burst: ample.burst, Name: strconv.Itoa(k)},
			})
		}
	}
	s := newLoad(p.name, goroutines, p.spent, func(i int) (bool, error) { return takeAll(store, requests[i%calls]) })
	s.Run(calls)
	s.Calibrate(5*b.Turn, goroutines)
	return s
}

// takeAll takes from one key, or from some at once.
func takeAll(store *redisstore.Store, rs []penstock.Request) (allowed bool, err error) {
	var room [8]penstock.Decision
	ds := room[:len(rs)]
	if len(rs) == 1 {
		ds[0], err = store.Take(context.Background(), rs[0])
	} else {
		err = store.TakeAll(context.Background(), rs, ds)
	}
	return err == nil && penstock.Tightest(ds).Allowed, err
}

// spent returns the processor time so far, in microseconds: in this process and in the kernel on its
// behalf, in primaries, and in replicas.
func (p place) spent() map[string]float64 {
	user, system := harness.Processor()
	s := map[string]float64{"client": user, "kernel": system, "primaries": 0, "replicas": 0}
	for figure, servers := range map[string][]*redistest.Server{"primaries": p.nodes, "replicas": p.copies} {
		for _, server := range servers {
			s[figure] += harness.ParseInfo(harness.Must(server.Command("INFO", "cpu"))).Processor()
		}
	}
	return s
}
