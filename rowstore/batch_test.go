package rowstore_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rowstore"
)

// A slowEngine takes a while for each update, as a database does, and fails on request.
type slowEngine struct {
	mapEngine
	delay   time.Duration
	updates int
	rowsMax int
	err     error
}

func (e *slowEngine) Update(ctx context.Context, names []string, change func(time.Time, []rowstore.Row) error) error {
	e.mu.Lock()
	e.updates++
	e.rowsMax = max(e.rowsMax, len(names))
	err := e.err
	e.mu.Unlock()
	time.Sleep(e.delay)
	if err != nil {
		return err
	}
	return e.mapEngine.Update(ctx, names, change)
}

func newSlowEngine() *slowEngine {
	return &slowEngine{mapEngine: mapEngine{now: time.Now}, delay: 10 * time.Millisecond}
}

// takeMany takes one unit of a key concurrently.
func takeMany(store penstock.Store, n int, limit penstock.Limit) (allowed int, err error) {
	var running sync.WaitGroup
	var mu sync.Mutex
	for range n {
		running.Go(func() {
			d, takeErr := store.Take(context.Background(), penstock.Request{Key: "k", Limit: limit, Cost: 1})
			mu.Lock()
			defer mu.Unlock()
			allowed += count(d.Allowed)
			err = errors.Join(err, takeErr)
		})
	}
	running.Wait()
	return allowed, err
}

func TestCallsShareUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newSlowEngine()
		allowed, err := takeMany(rowstore.New(engine, nil), 100, penstock.PerMinute(30))
		if allowed != 30 || err != nil {
			t.Errorf("%d allowed of 100, %v; want 30", allowed, err)
		}
		if engine.updates > 2 {
			t.Errorf("%d updates for 100 calls, of which 99 came while the first was in flight; want 2", engine.updates)
		}
	})
}

func TestUpdatesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newSlowEngine()
		store := rowstore.New(engine, &rowstore.Options{Timeout: time.Hour})
		limit := penstock.PerMinute(1)
		var running sync.WaitGroup
		for i := range 2000 {
			running.Go(func() {
				if _, err := store.Take(t.Context(), penstock.Request{Key: strings.Repeat("k", i+1), Limit: limit, Cost: 1}); err != nil {
					t.Error(err)
				}
			})
		}
		running.Wait()
		if engine.rowsMax > 512 || engine.updates > 6 {
			t.Errorf("%d updates of up to %d rows for 2000 calls, want 5 of up to 512", engine.updates, engine.rowsMax)
		}
	})
}

// Calls that share an update do not share an error.
func TestCallsFailAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newSlowEngine()
		store := rowstore.New(engine, nil)
		limit := penstock.PerMinute(10)
		take(t, store, penstock.Request{Key: "damaged", Limit: limit, Cost: 1})
		for name := range engine.rows {
			engine.rows[name] = rowstore.Row{Value: []byte("damaged")}
		}
		go func() { _, _ = store.Take(t.Context(), penstock.Request{Key: "first", Limit: limit, Cost: 1}) }()
		synctest.Wait()
		before := engine.updates
		errs := map[string]error{}
		var running sync.WaitGroup
		var mu sync.Mutex
		for key, r := range map[string]penstock.Request{
			"good": {Cost: 1}, "damaged": {Cost: 1}, "unknown": {Cost: 1, ID: "never granted", Settle: true},
		} {
			running.Go(func() {
				r.Key, r.Limit = key, limit
				_, err := store.Take(t.Context(), r)
				mu.Lock()
				defer mu.Unlock()
				errs[key] = err
			})
		}
		running.Wait()
		var key *penstock.KeyError
		if errs["good"] != nil || !errors.As(errs["damaged"], &key) || !errors.Is(errs["unknown"], penstock.ErrUnknownID) {
			t.Errorf("got %v; want errors of the damaged key and of the unknown ID alone", errs)
		}
		if engine.updates != before+1 {
			t.Errorf("%d updates, want 1 for the three calls", engine.updates-before)
		}
		if d := take(t, store, penstock.Request{Key: "good", Limit: limit}); d.Remaining != 9 {
			t.Errorf("%d of the good key remain, want 9", d.Remaining)
		}
	})
}

// A caller that leaves learns whether its call may be charged, and one that still waited is not.
func TestCallerLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newSlowEngine()
		store := rowstore.New(engine, nil)
		limit := penstock.PerMinute(10)
		var running sync.WaitGroup
		for _, want := range []string{"in flight, may be charged", "not sent"} {
			running.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
				defer cancel()
				_, err := store.Take(ctx, penstock.Request{Key: want, Limit: limit, Cost: 1})
				if !errors.Is(err, penstock.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %q", err, want)
				}
			})
			synctest.Wait()
		}
		running.Wait()
		time.Sleep(time.Second)
		for key, want := range map[string]int64{"in flight, may be charged": 9, "not sent": 10} {
			if d := take(t, store, penstock.Request{Key: key, Limit: limit}); d.Remaining != want {
				t.Errorf("%s: %d remain, want %d", key, d.Remaining, want)
			}
		}
	})
}

// Callers that have left are not in the next update, which decides those that still wait.
func TestCallersLeaveAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newSlowEngine()
		store := rowstore.New(engine, nil)
		limit := penstock.PerMinute(10)
		var running sync.WaitGroup
		for i := range 2002 {
			timeout := time.Second
			if i > 0 && i < 2001 { // the first is in flight, the last one stays
				timeout = 5 * time.Millisecond
			}
			running.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), timeout)
				defer cancel()
				if _, err := store.Take(ctx, penstock.Request{Key: strings.Repeat("k", i+1), Limit: limit, Cost: 1}); (err == nil) != (timeout == time.Second) {
					t.Errorf("call %d: %v", i, err)
				}
			})
			synctest.Wait()
		}
		running.Wait()
		if engine.updates != 2 || engine.rowsMax != 1 {
			t.Errorf("%d updates of up to %d rows, want 2 of 1", engine.updates, engine.rowsMax)
		}
	})
}

// A call ends after the timeout, whatever the engine does, and an ended context is not sent.
func TestCallsEndInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		engine := newSlowEngine()
		engine.delay = time.Hour
		store := rowstore.New(engine, &rowstore.Options{Timeout: 20 * time.Millisecond})
		if store.Timeout() != 20*time.Millisecond {
			t.Errorf("timeout %s, want 20ms", store.Timeout())
		}
		began := time.Now()
		_, err := takeMany(store, 10, penstock.PerMinute(30))
		if took := time.Since(began); !errors.Is(err, penstock.ErrUnavailable) || took != 20*time.Millisecond {
			t.Errorf("%v after %s, want ErrUnavailable after 20ms", err, took)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := store.Take(ended, penstock.Request{Key: "k", Limit: penstock.PerMinute(1), Cost: 1}); !errors.Is(err, context.Canceled) {
			t.Errorf("under an ended context: %v", err)
		}
		time.Sleep(2 * time.Hour)
	})
}

func TestEngineErrorDecidesNothing(t *testing.T) {
	engine := newSlowEngine()
	engine.err = penstock.ErrUnavailable
	store := rowstore.New(engine, nil)
	if allowed, err := takeMany(store, 10, penstock.PerMinute(30)); allowed != 0 || !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("%d allowed, %v; want ErrUnavailable", allowed, err)
	}
	engine.err = nil
	if d := take(t, store, penstock.Request{Key: "k", Limit: penstock.PerMinute(30)}); d.Remaining != 30 {
		t.Errorf("%d remain, want all 30", d.Remaining)
	}
}
