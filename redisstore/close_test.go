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

var anyRequest = penstock.Request{Key: "k", Limit: slowLimits[0], Cost: 1}

func TestClosedStoreSaysSo(t *testing.T) {
	store, err := redisstore.Open(t.Context(), "redis://"+live.Addr, &redisstore.Options{Prefix: newPrefix(), Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	take(t, store, anyRequest)
	store.Close()
	store.Close()
	ds := make([]penstock.Decision, 1)
	for name, ask := range map[string]func() error{
		"Take":     func() error { _, err := store.Take(t.Context(), anyRequest); return err },
		"TakeEach": func() error { return store.TakeEach(t.Context(), []penstock.Request{anyRequest}, ds) },
		"TakeAll":  func() error { return store.TakeAll(t.Context(), []penstock.Request{anyRequest}, ds) },
		"with an ID": func() error {
			r := anyRequest
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
func TestCloseWhileCallsAreUnderWay(t *testing.T) {
	server := launch(t, redistest.Options{})
	for name, url := range map[string]string{
		"standalone": "redis://" + server.Addr, "sentinel": redistest.StartSentinel(t, server.Addr), "cluster": redistest.StartFakeClockCluster(t).URL(),
	} {
		t.Run(name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			store, err := redisstore.Open(t.Context(), url, &redisstore.Options{Prefix: newPrefix(), Timeout: generous})
			if err != nil {
				t.Fatal(err)
			}
			crowd := gather(t, store)
			crowd.answered(t, 300)
			var closing sync.WaitGroup
			for range 3 {
				closing.Go(store.Close)
			}
			closing.Wait()
			await(t, "callers are told", func() bool { return crowd.failed.Load() > members })
			crowd.end()
			for _, err := range crowd.failures {
				if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "the store is closed") {
					t.Errorf("a call under way when the store was closed: got %v", err)
				}
			}
			for key, n := range crowd.admitted {
				if n > burst {
					t.Errorf("key %d: admitted %d, bound %d", key, n, burst)
				}
			}
			await(t, "nothing is left running", func() bool { return runtime.NumGoroutine() <= before+2 })
		})
	}
	await(t, "no connection is left open", func() bool {
		return !strings.Contains(tell(t, server, "CLIENT", "LIST"), "lib-name=rueidis") && !strings.Contains(tell(t, server, "CLIENT", "LIST"), "evalsha")
	})
}

// A store that never got through leaves nothing behind either.
func TestCloseInTheMiddleOfAFailure(t *testing.T) {
	before := runtime.NumGoroutine()
	server := launch(t, redistest.Options{})
	p := startProxy(t, server.Addr)
	store := openURL(t, "redis://"+p.Addr, 20*time.Millisecond)
	take(t, openURL(t, "redis://"+server.Addr, generous), anyRequest)
	crowd := gather(t, store)
	crowd.answered(t, 10)
	p.Freeze() // nothing answers any more, and new connections do not either
	await(t, "callers notice", func() bool { return crowd.failed.Load() > 100 })
	store.Close()
	crowd.end()
	p.CutAll()
	await(t, "nothing is left running", func() bool { return runtime.NumGoroutine() <= before+10 })
}

// A caller who leaves is told that, and at once, wherever its call is; and one who
// has left before is not charged.
func TestCallersWhoLeave(t *testing.T) {
	for _, c := range []struct {
		name   string
		before func(t *testing.T, server *redistest.Server)
		first  int // so many more ask and stay
	}{
		{"in flight", func(t *testing.T, server *redistest.Server) { pause(t, server) }, 0},
		{"waiting for a place", func(t *testing.T, server *redistest.Server) { pause(t, server) }, 3},
		{"waiting to ask again", func(t *testing.T, server *redistest.Server) {
			tell(t, server, "REPLICAOF", "127.0.0.1", strconv.Itoa(freePort(t)))
		}, 0},
		{"waiting for a connection", func(_ *testing.T, server *redistest.Server) { server.Kill() }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := launch(t, redistest.Options{})
			store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{Timeout: time.Hour, MaxCalls: 2})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(store.Close)
			take(t, store, anyRequest)
			c.before(t, server)
			ctx, cancel := context.WithCancel(t.Context())
			others, stop := context.WithCancel(context.Background())
			defer stop()
			for range c.first {
				go func() { _, _ = store.Take(others, anyRequest) }()
			}
			ended := make(chan error)
			go func() {
				_, err := store.Take(ctx, anyRequest)
				ended <- err
			}()
			select {
			case err := <-ended:
				// A connection that the server has just closed is an answer, too.
				if c.name != "waiting for a connection" {
					t.Fatalf("the call ended by itself: %v", err)
				}
				go func() {
					_, err := store.Take(ctx, anyRequest)
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

func pause(t *testing.T, server *redistest.Server) {
	t.Helper()
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Resume() })
}

func TestCallersWhoHaveLeftAreNotCharged(t *testing.T) {
	store := open(t, live, redisstore.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rs, ds := []penstock.Request{anyRequest, anyRequest}, make([]penstock.Decision, 2)
	for range 50 {
		_, err := store.Take(ctx, anyRequest)
		for _, err := range []error{err, store.TakeEach(ctx, rs, ds), store.TakeAll(ctx, rs, ds)} {
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("a caller who has left: got %v, want %v", err, context.Canceled)
			}
		}
	}
	look := anyRequest
	look.Cost = 0
	if d := take(t, store, look); d.Remaining != burst {
		t.Errorf("%d are left of %d: somebody who was not there was charged", d.Remaining, burst)
	}
}
