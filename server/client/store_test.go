package client_test

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server/client"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/httpapi"
	"github.com/penstock-io/penstock/storetest"
)

// redis is a server whose clock the tests hold.
var redis *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{FakeClock: true}, func(shared *redistest.Server) { redis = shared }))
}

// What is asked through the door is answered as the store behind it does, in
// every field.
func TestAMemoryBehindTheDoorIsAStore(t *testing.T) {
	fewerChecks(t)
	storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
		store := penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond, MaxKeys: 10_000})
		return ask(t, serve(t, engine.New(store, nil)))
	})
}

func TestRedisBehindTheDoorIsAStore(t *testing.T) {
	fewerChecks(t)
	storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
		return ask(t, serve(t, engine.New(openRedis(t, clock), nil)))
	})
}

// fewerChecks makes up fewer requests. The stores have been asked everything in
// their own tests: here it is about the way there.
func fewerChecks(t *testing.T) {
	t.Helper()
	checks := flag.Lookup("rapid.checks").Value
	before := checks.String()
	if err := checks.Set("20"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = checks.Set(before) })
}

var prefixes atomic.Int64

// openRedis opens an empty store that goes by the clock.
func openRedis(t testing.TB, clock *storetest.Clock) penstock.Store {
	t.Helper()
	err := clock.Follow(func(now time.Time) error {
		redis.Clock.Set(now)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	store, err := redisstore.Open(context.Background(), "unix://"+redis.Socket, &redisstore.Options{
		Prefix:  fmt.Sprintf("t%d-", prefixes.Add(1)),
		Timeout: 10 * time.Second, // a busy machine is no failure here
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// serve opens a door to the judge, and returns its address.
func serve(t testing.TB, j *engine.Engine) string {
	t.Helper()
	door, err := httpapi.New(j, nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- door.Serve(l) }()
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = door.Shutdown(ended)
		if err := <-served; err != nil {
			t.Errorf("serving: %v", err)
		}
	})
	return "http://" + l.Addr().String()
}

// ask returns a client of the server at an address.
func ask(t testing.TB, address string) *client.Client {
	t.Helper()
	c, err := client.New(address, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}
