// Package goredistest_test runs go-redis against package respapi. It is a module of its
// own, so that users of penstock do not download go-redis.
package goredistest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/respapi"
	"github.com/redis/go-redis/v9"
)

// testTimeout bounds how long a test waits, long enough for a busy machine.
const testTimeout = time.Minute

// redisServer is a Redis for the stores, with a clock that stands still. Tests share it,
// each with its own key prefix.
var redisServer *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{FakeClock: true}, func(shared *redistest.Server) {
		redisServer = shared
		shared.Clock.Set(start)
	}))
}

// start is the time of the stores, so that no reply depends on how fast the test runs.
var start = time.Now()

var prefixes atomic.Int64

// onBothStores runs a test with an empty store of each kind.
func onBothStores(t *testing.T, test func(t *testing.T, store penstock.Store)) {
	t.Run("memory", func(t *testing.T) {
		test(t, penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return start }}))
	})
	t.Run("redis", func(t *testing.T) {
		store, err := redisstore.Open(t.Context(), "redis://"+redisServer.Addr, &redisstore.Options{
			Prefix: fmt.Sprintf("g%d-", prefixes.Add(1)), Timeout: testTimeout,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		test(t, store)
	})
}

// startServer serves a store on a free port until the test ends, and returns the address.
// An empty token is none.
func startServer(t *testing.T, store penstock.Store, token string, o *respapi.Options) string {
	t.Helper()
	s, err := respapi.New(engine.New(store, &engine.Options{Token: token}), o)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := s.Serve(l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
		defer cancel()
		if err := s.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
	return l.Addr().String()
}

// newClient returns a client that does not give up and repeat a command because the machine is busy:
// its default is three seconds, and a command that is repeated is charged twice.
func newClient(o redis.Options) *redis.Client {
	o.DialTimeout, o.ReadTimeout, o.WriteTimeout, o.PoolTimeout = testTimeout, testTimeout, testTimeout, testTimeout
	return redis.NewClient(&o)
}

// TestServerWorksWithGoRedis uses go-redis as with Redis, with its defaults and without.
func TestServerWorksWithGoRedis(t *testing.T) {
	for name, o := range map[string]redis.Options{
		"defaults": {},
		"RESP2":    {Protocol: 2},
		"password": {Password: "secret", ClientName: "web-1", MinIdleConns: 3},
		"user":     {Username: "default", Password: "secret", DisableIdentity: true},
	} {
		t.Run(name, func(t *testing.T) {
			onBothStores(t, func(t *testing.T, store penstock.Store) {
				options := o
				options.Addr = startServer(t, store, options.Password, nil)
				c := newClient(options)
				defer func() { _ = c.Close() }()
				ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
				defer cancel()
				testThrottle(ctx, t, c)
				testTake(ctx, t, c)
				testPipeline(ctx, t, c)
				testConcurrentTakes(ctx, t, c)
				testKeys(ctx, t, c)
			})
		})
	}
}

func testThrottle(ctx context.Context, t *testing.T, c *redis.Client) {
	got, err := c.Do(ctx, "CL.THROTTLE", "alice", 99, 1, 60).Int64Slice()
	if want := []int64{0, 100, 99, -1, 60}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	got, err = c.Do(ctx, "CL.THROTTLE", "alice", 99, 1, 60, 101).Int64Slice()
	if want := []int64{1, 100, 99, -1, 60}; err != nil || !slices.Equal(got, want) {
		t.Errorf("above the capacity: got %v, %v, want %v", got, err, want)
	}
	err = c.Do(ctx, "CL.THROTTLE", "alice", "x", 1, 60).Err()
	if err == nil || err.Error() != "Cell error: Store error: Couldn't parse as integer: x" {
		t.Errorf("a bad number: got %v", err)
	}
	if pong, err := c.Ping(ctx).Result(); err != nil || pong != "PONG" {
		t.Errorf("PING: got %s, %v", pong, err)
	}
}

// testTake reads the reply as a map, which go-redis makes of both protocol versions' forms.
func testTake(ctx context.Context, t *testing.T, c *redis.Client) {
	cmd := redis.NewMapStringInterfaceCmd(ctx, "PENSTOCK.TAKE", "KEY", "carol", "LIMIT", "3/1m", "COST", 2)
	if err := c.Process(ctx, cmd); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"allowed": int64(1), "granted": int64(2), "limit": int64(3), "remaining": int64(1),
		"retry_after_ms": int64(0), "reset_after_ms": int64(40_000), "delay_ms": int64(0), "source": "store",
	}
	if got := cmd.Val(); !maps.Equal(got, want) {
		t.Errorf("PENSTOCK.TAKE: got %v, want %v", got, want)
	}
	err := c.Do(ctx, "PENSTOCK.TAKE", "DOMAIN", "shop", "user", 42).Err()
	if err == nil || !strings.HasPrefix(err.Error(), "UNAVAILABLE ") {
		t.Errorf("PENSTOCK.TAKE without rules: got %v, want UNAVAILABLE", err)
	}
}

func testPipeline(ctx context.Context, t *testing.T, c *redis.Client) {
	var replies []*redis.Cmd
	_, err := c.Pipelined(ctx, func(p redis.Pipeliner) error {
		for range 50 {
			replies = append(replies, p.Do(ctx, "CL.THROTTLE", "bob", 49, 1, 60))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range replies {
		got, err := r.Int64Slice()
		if want := []int64{0, 50, int64(49 - i), -1, int64(i+1) * 60}; err != nil || !slices.Equal(got, want) {
			t.Errorf("in a pipeline: got %v, %v, want %v", got, err, want)
		}
	}
}

// testConcurrentTakes takes from one key in many goroutines: no unit is granted twice.
func testConcurrentTakes(ctx context.Context, t *testing.T, c *redis.Client) {
	var mu sync.Mutex
	granted := 0
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			for range 10 {
				got, err := c.Do(ctx, "CL.THROTTLE", "shared", 99, 1, 3600).Int64Slice()
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				granted += 1 - int(got[0])
				mu.Unlock()
			}
		})
	}
	all.Wait()
	if granted != 100 {
		t.Errorf("%d of 100 granted", granted)
	}
}

func testKeys(ctx context.Context, t *testing.T, c *redis.Client) {
	if n, err := c.Exists(ctx, "alice", "bob", "unknown").Result(); err != nil || n != 2 {
		t.Errorf("EXISTS: got %d, %v", n, err)
	}
	if left, err := c.TTL(ctx, "bob").Result(); err != nil || left < 49*time.Minute || left > 50*time.Minute {
		t.Errorf("TTL: got %v, %v", left, err)
	}
	if tat, err := c.Get(ctx, "bob").Int64(); err != nil || time.Unix(0, tat).Sub(start) < 49*time.Minute {
		t.Errorf("GET: got %d, %v", tat, err)
	}
	if n, err := c.Del(ctx, "alice", "bob", "unknown").Result(); err != nil || n != 2 {
		t.Errorf("DEL: got %d, %v", n, err)
	}
	if err := c.Get(ctx, "bob").Err(); !errors.Is(err, redis.Nil) {
		t.Errorf("GET of nothing: got %v", err)
	}
	if info, err := c.Info(ctx).Result(); err != nil || !strings.Contains(info, "redis_mode:standalone") {
		t.Errorf("INFO: got %q, %v", info, err)
	}
	if all, err := c.Command(ctx).Result(); err != nil || all["cl.throttle"] == nil || all["cl.throttle"].FirstKeyPos != 1 {
		t.Errorf("COMMAND: got %v, %v", all, err)
	}
}

func TestServerWrongPasswordFailsGoRedis(t *testing.T) {
	c := newClient(redis.Options{Addr: startServer(t, penstock.NewMemory(nil), "secret", &respapi.Options{RequireAuth: true}), Password: "sesame", MaxRetries: -1})
	defer func() { _ = c.Close() }()
	if err := c.Ping(t.Context()).Err(); err == nil || !strings.Contains(err.Error(), "WRONGPASS") {
		t.Errorf("got %v, want WRONGPASS", err)
	}
}
