package redisstore_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// While Redis does not answer, a call ends before the deadline of its caller, who can then do
// without it: whether it is alone or in a batch, on an open connection or on a fresh one.
func TestEndEarlyLeavesCallerTime(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{Timeout: time.Minute, EndEarly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	store.EndAfter(500 * time.Millisecond)
	take := func(ctx context.Context) error {
		_, err := store.Take(ctx, penstock.Request{Key: "k", Limit: penstock.PerHour(10), Cost: 1})
		return err
	}
	many := func(call func(context.Context, penstock.Store, []penstock.Request, []penstock.Decision) error) func(context.Context) error {
		rs := []penstock.Request{{Key: "a", Limit: penstock.PerHour(10), Cost: 1}, {Key: "b", Limit: penstock.PerHour(10), Cost: 1}}
		return func(ctx context.Context) error { return call(ctx, store, rs, make([]penstock.Decision, 2)) }
	}
	if err := take(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Resume() }()
	calls := []func(context.Context) error{many(penstock.TakeEach), many(penstock.TakeAll)}
	for range 20 { // some of them in batches
		calls = append(calls, take)
	}
	for _, fresh := range []bool{false, true} {
		if fresh {
			if err := server.Resume(); err != nil {
				t.Fatal(err)
			}
			killClients(t, server)
		}
		if err := server.Pause(); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for _, call := range calls {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if err := call(ctx); !errors.Is(err, penstock.ErrUnavailable) || ctx.Err() != nil {
					t.Errorf("got %v, with the caller's time at %v", err, ctx.Err())
				}
			})
		}
		wg.Wait()
	}
}

// A call that needs a connection which another call is opening waits no longer than its own
// deadline allows, however long the other one may wait.
func TestCallLeavesConnectionOfAnotherCaller(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	take := func(timeout time.Duration) error {
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		_, err := store.Take(ctx, penstock.Request{Key: "k", Limit: penstock.PerHour(10), Cost: 1})
		return err
	}
	mustCommand(t, server, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	redistest.WaitFor(t, "only this client is left", func() bool {
		return !strings.Contains(strings.TrimSpace(mustCommand(t, server, "CLIENT", "LIST")), "\n")
	})
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	patient := make(chan error)
	go func() {
		err := take(time.Minute)
		for errors.Is(err, penstock.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
			err = take(time.Minute) // the call before has found the connection closed
		}
		patient <- err
	}()
	redistest.WaitFor(t, "a call opens a connection", store.Connecting)
	for range 3 {
		if err := take(10 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the caller's own deadline", err)
		}
	}
	select {
	case err := <-patient:
		t.Errorf("the call that opens the connection has ended: %v", err)
	default:
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	if err := <-patient; err != nil {
		t.Errorf("got %v from the call that opened the connection", err)
	}
}

// Without the option, and with very little time, a call ends with its caller's context.
func TestEndEarlyLeavesShortDeadlinesAlone(t *testing.T) {
	t.Parallel()
	server := startServer(t)
	for _, early := range []bool{false, true} {
		store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{Timeout: time.Minute, EndEarly: early})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		if err := server.Pause(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
		defer cancel()
		_, err = store.Take(ctx, penstock.Request{Key: "k", Limit: penstock.PerHour(10), Cost: 1})
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("early=%v: got %v, want the caller's own deadline", early, err)
		}
		if err := server.Resume(); err != nil {
			t.Fatal(err)
		}
	}
}
