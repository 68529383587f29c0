package redisstore_test

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// A server that hangs must not make callers wait, however many they are.
func TestDeadlineHoldsWhileRedisHangs(t *testing.T) {
	const callers, timeout = 2000, 50 * time.Millisecond
	server, err := redistest.Start(redistest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	store := open(t, server, redisstore.Options{Timeout: timeout})
	lim, err := penstock.New(store, penstock.PerHour(1_000_000))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lim.Allow(t.Context(), "somebody"); err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	var slowest, most, late atomic.Int64
	var all sync.WaitGroup
	until := time.Now().Add(3 * time.Second)
	for range callers {
		all.Go(func() {
			for time.Now().Before(until) {
				began := time.Now()
				_, err := lim.Allow(context.Background(), "somebody")
				raise(&slowest, int64(time.Since(began)))
				raise(&most, int64(runtime.NumGoroutine()))
				if !errors.Is(err, penstock.ErrUnavailable) {
					t.Errorf("a server that hangs: got %v, want %v", err, penstock.ErrUnavailable)
				}
			}
		})
	}
	for range 50 { // who only wait for a clock, to see how busy the machine is
		all.Go(func() {
			for first := true; first || time.Now().Before(until); first = false {
				began := time.Now()
				<-time.After(timeout)
				raise(&late, int64(time.Since(began)-timeout))
			}
		})
	}
	all.Wait()
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	t.Logf("slowest call %v where others were %v late, at most %d goroutines, %d before", time.Duration(slowest.Load()), time.Duration(late.Load()), most.Load(), before)
	// What goes wrong here makes callers wait for a second or more.
	if got, want := time.Duration(slowest.Load()), 500*time.Millisecond+3*time.Duration(late.Load()); got > want {
		t.Errorf("slowest of %d callers with %v each: got %v, want at most %v, where others were %v late",
			callers, timeout, got, want, time.Duration(late.Load()))
	}
	if got, want := most.Load(), int64(before+3*callers); got > want {
		t.Errorf("goroutines while %d callers wait: got %d, want at most %d", callers, got, want)
	}
	eventually(t, "Redis answers again", func() bool {
		_, err := lim.Allow(t.Context(), "somebody")
		return err == nil
	})
}

func raise(most *atomic.Int64, n int64) {
	for {
		old := most.Load()
		if n <= old || most.CompareAndSwap(old, n) {
			return
		}
	}
}

// eventually waits until something is true.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waited half a minute: %s", what)
		}
	}
}
