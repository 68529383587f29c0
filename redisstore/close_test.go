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

// takeOne takes one unit of a limit that does not refill.
var takeOne = penstock.Request{Key: "k", Limit: slowLimits[0], Cost: 1}

func TestStoreClosedReturnsError(t *testing.T) {
	t.Parallel()
	store, err := redisstore.Open(t.Context(), "redis://"+liveServer.Addr, &redisstore.Options{Prefix: newPrefix(), Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	take(t, store, takeOne)
	store.Close()
	store.Close()
	ds := make([]penstock.Decision, 1)
	for name, call := range map[string]func() error{
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
		if err := call(); !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "the store is closed") {
			t.Errorf("%s after Close: got %v, want %v because the store is closed", name, err, penstock.ErrUnavailable)
		}
	}
}

// Close ends the calls in flight on every kind of server and leaves no goroutine or
// connection behind.
func TestStoreCloseEndsCallsInFlight(t *testing.T) {
	server := startServer(t)
	for name, url := range map[string]string{
		"standalone": "redis://" + server.Addr, "sentinel": redistest.StartSentinel(t, server.Addr), "cluster": redistest.StartFakeClockCluster(t).URL(),
	} {
		t.Run(name, func(t *testing.T) { checkCloseUnderLoad(t, url) })
	}
	waitFor(t, "no connection is left open", func() bool {
		clients := mustCommand(t, server, "CLIENT", "LIST")
		return !strings.Contains(clients, "lib-name=rueidis") && !strings.Contains(clients, "evalsha")
	})
}

func checkCloseUnderLoad(t *testing.T, url string) {
	before := runtime.NumGoroutine()
	store := openURL(t, url, longTimeout)
	load := startLoad(t, store)
	load.waitAnswers(t, 300)
	var closing sync.WaitGroup
	for range 3 {
		closing.Go(store.Close)
	}
	closing.Wait()
	waitFor(t, "all callers get errors", func() bool { return load.failed.Load() > loadClients })
	load.close()
	for _, err := range load.failures {
		if !errors.Is(err, penstock.ErrUnavailable) || !strings.Contains(err.Error(), "the store is closed") {
			t.Errorf("a call in flight when the store was closed: got %v", err)
		}
	}
	for key, n := range load.admitted {
		if n > burst {
			t.Errorf("key %d: admitted %d, bound %d", key, n, burst)
		}
	}
	waitFor(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+2 })
}

// A store that lost its server leaves no goroutine behind either.
func TestStoreCloseDuringOutageLeaksNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	server := startServer(t)
	p := startProxy(t, server.Addr)
	store := openURL(t, "redis://"+p.Addr, 20*time.Millisecond)
	take(t, openURL(t, "redis://"+server.Addr, longTimeout), takeOne)
	load := startLoad(t, store)
	load.waitAnswers(t, 10)
	p.Freeze()
	waitFor(t, "calls fail", func() bool { return load.failed.Load() > 100 })
	store.Close()
	load.close()
	p.CutAll()
	waitFor(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before+10 })
}

// A canceled call returns at once with the context's error, whatever it waits for.
func TestStoreCancelReturnsAtOnce(t *testing.T) {
	for _, c := range []struct {
		name  string
		fault func(t *testing.T, server *redistest.Server)
		calls int    // already waiting
		in    string // function in which the canceled call waits; "" if it has none of its own
	}{
		{"in flight", pauseServer, 0, "redisstore.(*rueidisClient).Do("},
		{"waiting for a slot", pauseServer, 3, "redisstore.(*inflightLimiter).acquire("},
		{"waiting to retry", makeReplica, 0, ""},
		{"waiting for a connection", func(_ *testing.T, server *redistest.Server) { server.Kill() }, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := startServer(t)
			store := openOptions(t, "redis://"+server.Addr, redisstore.Options{Timeout: time.Hour, MaxCalls: 2})
			take(t, store, takeOne)
			c.fault(t, server)
			background, stop := context.WithCancel(context.Background())
			defer stop()
			for i := range c.calls {
				r := takeOne
				r.Limit = penstock.PerHour(burst + 1 + int64(i)) // so that calls are not batched, and each needs a slot
				go func() { _, _ = store.Take(background, r) }()
			}
			checkCancel(t, store, c.in)
		})
	}
}

// checkCancel cancels a call that gets no answer. Its ID lets the store repeat it
// when a connection breaks, so that nothing but the cancellation ends it.
func checkCancel(t *testing.T, store *redisstore.Store, in string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := takeOne
	r.ID = "canceled"
	ended := make(chan error, 1)
	go func() {
		_, err := store.Take(ctx, r)
		ended <- err
	}()
	if in != "" {
		waitFor(t, "the call waits", func() bool { return goroutineIn(in) })
	}
	select {
	case err := <-ended:
		t.Fatalf("the call ended before it was canceled: %v", err)
	case <-time.After(20 * time.Millisecond): // cancel later than the first attempt, most of the time
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) || errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("got %v, want %v", err, context.Canceled)
	}
}

// openOptions opens a store with options and its own prefix.
func openOptions(t *testing.T, url string, o redisstore.Options) *redisstore.Store {
	t.Helper()
	o.Prefix = newPrefix()
	return mustOpen(t, url, o)
}

// makeReplica makes a server the replica of a primary that does not exist.
func makeReplica(t *testing.T, server *redistest.Server) {
	t.Helper()
	mustCommand(t, server, "REPLICAOF", "127.0.0.1", strconv.Itoa(freePort(t)))
}

func pauseServer(t *testing.T, server *redistest.Server) {
	t.Helper()
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Resume() })
}

func TestStoreCanceledCallIsNotCharged(t *testing.T) {
	t.Parallel()
	store := open(t, liveServer, redisstore.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	rs, ds := []penstock.Request{takeOne, takeOne}, make([]penstock.Decision, 2)
	for range 50 {
		_, err := store.Take(ctx, takeOne)
		for _, err := range []error{err, store.TakeEach(ctx, rs, ds), store.TakeAll(ctx, rs, ds)} {
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("a canceled call: got %v, want %v", err, context.Canceled)
			}
		}
	}
	peek := takeOne
	peek.Cost = 0
	if d := take(t, store, peek); d.Remaining != burst {
		t.Errorf("%d of %d remain: a canceled call was charged", d.Remaining, burst)
	}
}
