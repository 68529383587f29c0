package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
)

// burst is what each of slowLimits grants at once. Nothing refills while a test
// runs, so it is also the total that a key may be granted.
const burst = 60

// slowLimits has limits of every kind.
var slowLimits = []penstock.Limit{
	{Algorithm: penstock.TokenBucket, Count: burst, Period: 300 * 24 * time.Hour},
	{Algorithm: penstock.LeakyBucket, Count: burst, Period: 300 * 24 * time.Hour, Burst: burst},
	{Algorithm: penstock.FixedWindow, Count: burst, Period: 24 * time.Hour},
	{Algorithm: penstock.FixedWindow, Count: burst, Align: penstock.AlignClock, Period: 366 * 24 * time.Hour},
	{Algorithm: penstock.SlidingWindow, Count: burst, Period: 24 * time.Hour},
	{Algorithm: penstock.RollingWindow, Count: burst, Period: 240 * time.Hour},
	{Algorithm: penstock.SlidingLog, Count: burst, Period: 24 * time.Hour},
}

// openURL opens a store with its own prefix.
func openURL(t *testing.T, url string, timeout time.Duration) *redisstore.Store {
	t.Helper()
	return openPrefix(t, url, newPrefix(), timeout)
}

// openPrefix opens a store that shares its state with other stores of the prefix.
func openPrefix(t *testing.T, url, prefix string, timeout time.Duration) *redisstore.Store {
	t.Helper()
	o := redisstore.Options{Prefix: prefix, Timeout: timeout}
	if timeout >= longTimeout {
		o = o.WithConnTimeout(longConnTimeout)
	}
	return mustOpen(t, url, o)
}

// A load takes one unit at a time from a few keys, moves on to new keys when they
// are used up, and counts the units granted.
type load struct {
	store     *redisstore.Store
	stop      chan struct{}
	closeOnce sync.Once
	wg        sync.WaitGroup

	newest atomic.Int64 // key
	calls  atomic.Int64
	failed atomic.Int64

	mu       sync.Mutex
	admitted map[int64]int64 // by key
	failures []error         // the first few
	slowest  time.Duration
}

// loadClients is the number of concurrent callers of a load.
const loadClients = 16

func startLoad(t *testing.T, store *redisstore.Store) *load {
	c := &load{store: store, stop: make(chan struct{}), admitted: map[int64]int64{}}
	for range loadClients {
		c.wg.Go(c.run)
	}
	t.Cleanup(c.close)
	return c
}

// close stops the callers and waits for them.
func (c *load) close() {
	c.closeOnce.Do(func() { close(c.stop) })
	c.wg.Wait()
}

// run takes units until the load is closed.
func (c *load) run() {
	for {
		select {
		case <-c.stop:
			return
		default:
		}
		newest := c.newest.Load()
		key := max(newest-rand.Int64N(8), 0)
		if rand.IntN(10) == 0 {
			key = rand.Int64N(newest + 1) // a key that was used up before
		}
		if c.take(key, rand.IntN(8) == 0) {
			c.newest.CompareAndSwap(newest, newest+1)
		}
	}
}

// take takes one unit and reports whether it was denied.
func (c *load) take(key int64, withID bool) (denied bool) {
	r := c.request(key, 1)
	if withID {
		r.ID = fmt.Sprint(rand.Uint64())
	}
	began := time.Now()
	d, err := c.store.Take(context.Background(), r)
	took := time.Since(began)
	c.calls.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.slowest = max(c.slowest, took)
	if err != nil {
		if c.failed.Add(1) <= 5 {
			c.failures = append(c.failures, err)
		}
		return false
	}
	c.admitted[key] += d.Granted
	return !d.Allowed
}

func (c *load) request(key, cost int64) penstock.Request {
	return penstock.Request{Key: fmt.Sprintf("k%d", key), Limit: slowLimits[key%int64(len(slowLimits))], Cost: cost}
}

// waitAnswers waits until this many more calls have succeeded.
func (c *load) waitAnswers(t *testing.T, times int64) {
	t.Helper()
	answers := func() int64 { return c.calls.Load() - c.failed.Load() }
	at := answers()
	for until := at + times; at < until; at = answers() { // the deadline is for one call, as machines differ
		waitFor(t, "the load gets an answer", func() bool { return answers() > at })
	}
}

// closeAndDrain stops the load and takes the rest of its keys, so that everything
// that can be admitted was admitted.
func (c *load) closeAndDrain(t *testing.T) {
	t.Helper()
	c.close()
	for key := range c.admitted {
		r := c.request(key, 10*burst)
		r.AtMost = true
		waitFor(t, "the rest can be taken", func() bool {
			d, err := c.store.Take(context.Background(), r)
			if c.admitted[key] += d.Granted; err != nil {
				t.Logf("taking the rest of %s: %v", r.Key, err)
			}
			return err == nil
		})
	}
}

// check fails the test if a key was granted fewer than least or more than most
// units.
func (c *load) check(t *testing.T, least, most int64) {
	t.Helper()
	sum := int64(0)
	for key, n := range c.admitted {
		if sum += n; n < least || n > most {
			t.Errorf("key %d under %s: admitted %d, want from %d to %d", key, c.request(key, 1).Limit, n, least, most)
		}
	}
	keys := int64(len(c.admitted))
	t.Logf("%d keys, %d calls, %d failed, slowest %v: admitted %d, bound %d (%d without the fault)",
		keys, c.calls.Load(), c.failed.Load(), c.slowest.Round(time.Millisecond), sum, keys*most, keys*burst)
	for _, err := range c.failures {
		if !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("a call failed with %v, want it to be %v", err, penstock.ErrUnavailable)
		}
	}
}

// checkNoFailures is check for faults that no caller may notice.
func (c *load) checkNoFailures(t *testing.T) {
	t.Helper()
	c.check(t, burst, burst)
	for _, err := range c.failures {
		t.Errorf("a caller got an error that a retry could have avoided: %v", err)
	}
}
