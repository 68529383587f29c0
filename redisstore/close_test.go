package redisstore_test

import (
	"context"
	"errors"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// How stores end, and how callers leave.

var takeOne = penstock.Request{Key: "k", Limit: slowLimits[0], Cost: 1}

func TestStoreClosedReturnsError(t *testing.T) {
	store, err := redisstore.Open(t.Context(), "redis://"+liveServer.Addr, &redisstore.Options{Prefix: newPrefix(), Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	take(t, store, takeOne)
	store.Close()
	store.Close()
	ds := make([]penstock.Decision, 1)
	for name, ask := range map[string]func() error{
		"Take":     func() error { _, err := store.Take(t.Context(), takeOne); return err },
		"TakeEach": func() error { return store.TakeEach(t.Context(), []penstock.Request{takeOne}, ds) },
		"TakeAll":  func() error { return store.TakeAll(t.Context(), []penstock.Request{takeOne}, ds) },
		"with an ID": func() error {
			r := takeOne
			r.ID = "x"
			_, err := store.Take(t.Context(), r)
			return err
		},
	} {
		if err := ask(); !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "the store is closed") {
			t.Errorf("%s after Close: got %v, want %v because the store is closed", name, err, penstock.ErrUnavailable)
		}
	}
}

// Close ends calls under way, wherever they are, and leaves nothing running.
func TestStoreCloseEndsCallsInFlight(t *testing.T) {
	server := startServer(t, redistest.Options{})
	for name, url := range map[string]string{
		"standalone": "redis://" + server.Addr, "sentinel": redistest.StartSentinel(t, server.Addr), "cluster": redistest.StartFakeClockCluster(t).URL(),
	} {
		t.Run(name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			store, err := redisstore.Open(t.Context(), url, &redisstore.Options{Prefix: newPrefix(), Timeout: generous})
			if err != nil {
				t.Fatal(err)
			}
			load := startLoad(t, store)
			load.waitAnswers(t, 300)
			var closing sync.WaitGroup
			for range 3 {
				closing.Go(store.Close)
			}
			closing.Wait()
			waitFor(t, "callers are told", func() bool { return load.failed.Load() > loadClients })
			load.close()
			for _, err := range load.failures {
				if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "the store is closed") {
					t.Errorf("a call under way when the store was closed: got %v", err)
				}
			}
			for key, n := range load.admitted {
				if n > burst {
					t.Errorf("key %d: admitted %d, bound %d", key, n, burst)
				}
			}
			waitFor(t, "nothing is left running", func() bool { return runtime.NumGoroutine() <= before+2 })
		})
	}
	waitFor(t, "no connection is left open", func() bool {
		return !strings.Contains(mustCommand(t, server, "CLIENT", "LIST"), "lib-name=rueidis") && !strings.Contains(mustCommand(t, server, "CLIENT", "LIST"), "evalsha")
	})
}

// A store that never got through leaves nothing behind either.
func TestStoreCloseDuringOutageLeaksNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	server := startServer(t, redistest.Options{})
	p := startProxy(t, server.Addr)
	store := openURL(t, "redis://"+p.Addr, 20*time.Millisecond)
	take(t, openURL(t, "redis://"+server.Addr, generous), takeOne)
	load := startLoad(t, store)
	load.waitAnswers(t, 10)
	p.Freeze() // nothing answers any more, and new connections do not either
	waitFor(t, "callers notice", func() bool { return load.failed.Load() > 100 })
	store.Close()
	load.close()
	p.CutAll()
	waitFor(t, "nothing is left running", func() bool { return runtime.NumGoroutine() <= before+10 })
}

// A caller who leaves is told that, and at once, wherever its call is; and one who
// has left before is not charged.
func TestStoreCancelReturnsAtOnce(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(t *testing.T, server *redistest.Server)
		first  int // so many more ask and stay
	}{
		{"in flight", func(t *testing.T, server *redistest.Server) { pauseServer(t, server) }, 0},
		{"waiting for a place", func(t *testing.T, server *redistest.Server) { pauseServer(t, server) }, 3},
		{"waiting to ask again", func(t *testing.T, server *redistest.Server) {
			mustCommand(t, server, "REPLICAOF", "127.0.0.1", strconv.Itoa(freePort(t)))
		}, 0},
		{"waiting for a connection", func(_ *testing.T, server *redistest.Server) { server.Kill() }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := startServer(t, redistest.Options{})
			store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{Timeout: time.Hour, MaxCalls: 2})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(store.Close)
			take(t, store, takeOne)
			c.before(t, server)
			ctx, cancel := context.WithCancel(t.Context())
			others, stop := context.WithCancel(context.Background())
			defer stop()
			for range c.first {
				go func() { _, _ = store.Take(others, takeOne) }()
			}
			ended := make(chan error)
			go func() {
				_, err := store.Take(ctx, takeOne)
				ended <- err
			}()
			select {
			case err := <-ended:
				// A connection that the server has just closed is an answer, too.
				if c.name != "waiting for a connection" {
					t.Fatalf("the call ended by itself: %v", err)
				}
				go func() {
					_, err := store.Take(ctx, takeOne)
					ended <- err
				}()
			case <-time.After(50 * time.Millisecond):
			}
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) || errors.Is(err, penstock.ErrUnavailable) {
				t.Errorf("got %v, want %v", err, context.Canceled)
			}
		})
	}
}

func pauseServer(t *testing.T, server *redistest.Server) {
	t.Helper()
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Resume() })
}

func TestStoreCanceledCallIsNotCharged(t *testing.T) {
	store := open(t, liveServer, redisstore.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rs, ds := []penstock.Request{takeOne, takeOne}, make([]penstock.Decision, 2)
	for range 50 {
		_, err := store.Take(ctx, takeOne)
		for _, err := range []error{err, store.TakeEach(ctx, rs, ds), store.TakeAll(ctx, rs, ds)} {
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("a caller who has left: got %v, want %v", err, context.Canceled)
			}
		}
	}
	look := takeOne
	look.Cost = 0
	if d := take(t, store, look); d.Remaining != burst {
		t.Errorf("%d are left of %d: somebody who was not there was charged", d.Remaining, burst)
	}
}
