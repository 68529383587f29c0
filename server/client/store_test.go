package client_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server/client"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/httpapi"
	"github.com/penstock-io/penstock/storetest"
)

// redis is shared by all tests. Its clock is that of storetest; each store has its own key
// prefix.
var redis *redistest.Server

func TestMain(m *testing.M) {
	// The stores are tested in full by their own packages. Here fewer random cases
	// suffice for the way through HTTP.
	if err := flag.Set("rapid.checks", "10"); err != nil {
		panic(err)
	}
	os.Exit(redistest.Main(m, redistest.Options{FakeClock: true}, func(shared *redistest.Server) { redis = shared }))
}

// Through client and server, a store decides as it does directly, in every field. A short run leaves
// the transcripts, which take most of the time, to make unit.
func TestClientIsAStoreOnMemory(t *testing.T) {
	t.Parallel()
	run := storetest.Run
	if testing.Short() {
		run = storetest.RunRandom
	}
	run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
		store := penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond, MaxKeys: 10_000})
		return newClient(t, serve(t, engine.New(store, nil)))
	})
}

// A client is shared by all goroutines of a program.
func TestClientConcurrentTakesAreExact(t *testing.T) {
	c := newClient(t, serve(t, engine.New(penstock.NewMemory(nil), nil)))
	var granted atomic.Int64
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for range 20 {
				d, err := c.Take(t.Context(), penstock.Request{Key: "k", Limit: penstock.PerDay(100), Cost: 1})
				if err != nil {
					t.Error(err)
				}
				granted.Add(d.Granted)
			}
		})
	}
	callers.Wait()
	if granted.Load() != 100 {
		t.Errorf("%d of 160 were granted, want 100", granted.Load())
	}
}

// The Redis store is tested in full by its own package, and the way through HTTP on
// memory.
func TestClientIsAStoreOnRedis(t *testing.T) {
	t.Parallel()
	shared := newRedisClient(t)
	storetest.RunRandom(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
		return newClient(t, serve(t, engine.New(newRedisStore(t, shared, clock), nil)))
	})
}

// timeout is for a starved machine. These tests are not about timeouts.
const timeout = time.Minute

var prefixes atomic.Int64

// newRedisStore returns an empty store that follows the clock.
func newRedisStore(t testing.TB, c redisstore.Client, clock *storetest.Clock) penstock.Store {
	t.Helper()
	err := clock.Follow(func(now time.Time) error {
		redis.Clock.Set(now)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	store, err := redisstore.New(c, &redisstore.Options{
		Prefix:  fmt.Sprintf("t%d-", prefixes.Add(1)),
		Timeout: timeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// serve serves the HTTP API on a free port of loopback until the test ends, and
// returns the URL.
func serve(t testing.TB, e *engine.Engine) string {
	t.Helper()
	server, err := httpapi.New(e, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	t.Cleanup(func() {
		canceled, cancel := context.WithCancel(context.Background())
		cancel()
		_ = server.Shutdown(canceled) // without waiting for idle connections
		if err := <-served; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return "http://" + l.Addr().String()
}

// newClient returns a client of the server at an address.
func newClient(t testing.TB, address string) *client.Client {
	t.Helper()
	c, err := client.New(address, &client.Options{HTTP: &http.Client{Timeout: timeout, Transport: &http.Transport{
		MaxConnsPerHost: 64, MaxIdleConnsPerHost: 64,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}
