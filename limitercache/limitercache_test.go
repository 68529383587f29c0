package limitercache_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/limitercache"
)

func newCache(t *testing.T, load func(context.Context, string) (penstock.Limit, error), o *limitercache.Options) *limitercache.Cache {
	t.Helper()
	c, err := limitercache.New(penstock.NewMemory(nil), load, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func countOf(l *penstock.Limiter) int64 {
	if l == nil {
		return -1
	}
	return l.Limit().Count
}

func TestCacheLoadsOnceAndAgainWhenOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		loads, count := 0, int64(5)
		c := newCache(t, func(context.Context, string) (penstock.Limit, error) {
			loads++
			return penstock.PerMinute(count), nil
		}, nil)
		for range 3 {
			if got := countOf(c.For(t.Context(), "a")); got != 5 || loads != 1 {
				t.Fatalf("got %d after %d loads", got, loads)
			}
		}
		count = 9
		time.Sleep(11 * time.Second)
		if got := countOf(c.For(t.Context(), "a")); got != 5 {
			t.Errorf("got %d, want the old limit while the new one is loaded", got)
		}
		synctest.Wait()
		if got := countOf(c.For(t.Context(), "a")); got != 9 || loads != 2 {
			t.Errorf("got %d after %d loads, want the new limit", got, loads)
		}
		count = 7
		c.Invalidate("a")
		c.Invalidate("unknown")
		if got := countOf(c.For(t.Context(), "a")); got != 7 {
			t.Errorf("got %d, want the limit after Invalidate", got)
		}
	})
}

func TestCacheKeepsLimitWhileLoadFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fail error
		var reported atomic.Int64
		limit := penstock.PerMinute(5)
		c := newCache(t, func(context.Context, string) (penstock.Limit, error) { return limit, fail },
			&limitercache.Options{OnError: func(string, error) { reported.Add(1) }})
		c.For(t.Context(), "a")
		fail = errors.New("down")
		time.Sleep(time.Minute)
		for range 3 {
			if got := countOf(c.For(t.Context(), "a")); got != 5 {
				t.Errorf("got %d, want the old limit", got)
			}
			synctest.Wait()
		}
		if n := reported.Load(); n != 1 {
			t.Errorf("%d loads failed within a second, want one", n)
		}
		if got := c.For(t.Context(), "b"); got != nil {
			t.Errorf("a key that was never loaded has %v", got.Limit())
		}
		fail, limit = nil, penstock.Limit{Count: -1, Period: time.Minute}
		time.Sleep(time.Minute)
		c.For(t.Context(), "a")
		synctest.Wait()
		if got := countOf(c.For(t.Context(), "a")); got != 5 || reported.Load() != 3 {
			t.Errorf("an invalid limit: got %d, %d errors", got, reported.Load())
		}
	})
}

// A load that does not return fails: its callers go on, and so does the process.
// Without OnError, a load that fails is not silent: its key is not limited.
func TestCacheLogsLoadsThatFail(t *testing.T) {
	var log bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	synctest.Test(t, func(t *testing.T) {
		c := newCache(t, func(context.Context, string) (penstock.Limit, error) {
			return penstock.Limit{}, errors.New("no database")
		}, nil)
		for key := range 5 {
			c.For(t.Context(), fmt.Sprint("customer-", key))
		}
		synctest.Wait()
	})
	if got := log.String(); strings.Count(got, "no database") != 1 || strings.Contains(got, "customer-") {
		t.Errorf("the log has %q, want one line a second, without keys", got)
	}
}

func TestCacheSurvivesLoadsThatDoNotReturn(t *testing.T) {
	for want, end := range map[string]func(){
		"load panicked: a defect": func() { panic("a defect") },
		"ended its goroutine":     runtime.Goexit,
	} {
		synctest.Test(t, func(t *testing.T) {
			var loads atomic.Int64
			errs := make(chan error, 2)
			c := newCache(t, func(context.Context, string) (penstock.Limit, error) {
				if loads.Add(1) != 2 {
					end()
				}
				return penstock.PerMinute(5), nil
			}, &limitercache.Options{OnError: func(_ string, err error) { errs <- err }})
			for _, count := range []int64{-1, 5, 5} {
				if got := countOf(c.For(t.Context(), "a")); got != count {
					t.Errorf("%s: got %d, want %d", want, got, count)
				}
				time.Sleep(11 * time.Second)
			}
			for range 2 {
				if err := <-errs; !strings.Contains(err.Error(), want) {
					t.Errorf("got %v, want %s", err, want)
				}
			}
		})
	}
}

func TestCacheWaitsForFirstLoadOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var loads atomic.Int64
		c := newCache(t, func(ctx context.Context, _ string) (penstock.Limit, error) {
			loads.Add(1)
			<-ctx.Done() // until the timeout
			return penstock.PerMinute(5), nil
		}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if got := c.For(ctx, "a"); got != nil {
			t.Errorf("a caller that has left got %v", got.Limit())
		}
		got := make(chan *penstock.Limiter, 5)
		for range 5 {
			go func() { got <- c.For(t.Context(), "a") }()
		}
		for range 5 {
			if l := <-got; countOf(l) != 5 {
				t.Errorf("got %d", countOf(l))
			}
		}
		if n := loads.Load(); n != 1 {
			t.Errorf("%d loads, want one for all", n)
		}
	})
}

func TestCacheIsBoundedAndSharesLimiters(t *testing.T) {
	var loads atomic.Int64
	c := newCache(t, func(_ context.Context, key string) (penstock.Limit, error) {
		loads.Add(1)
		if key == "none" {
			return penstock.Limit{}, nil
		}
		return penstock.PerMinute(5), nil
	}, &limitercache.Options{MaxKeys: 10})
	first := c.For(t.Context(), "0")
	for i := range 1000 {
		if l := c.For(t.Context(), fmt.Sprint(i)); l != first {
			t.Fatal("keys of one plan have different limiters")
		}
	}
	if n := loads.Load(); n < 990 {
		t.Errorf("%d loads of 1000 keys: the cache has no bound", n)
	}
	if c.For(t.Context(), "none") != nil {
		t.Error("a key without a limit has a limiter")
	}
}

// A remote client may choose keys of a megabyte: the cache does not keep them, and tells them apart.
func TestCacheDoesNotKeepLongKeys(t *testing.T) {
	const keys, size = 64, 1 << 20
	asked := map[byte]int64{}
	c := newCache(t, func(_ context.Context, key string) (penstock.Limit, error) {
		asked[key[len(key)-1]]++
		return penstock.PerMinute(int64(key[len(key)-1]) + 1), nil
	}, &limitercache.Options{MaxAge: time.Hour})
	key := func(i int) string { return strings.Repeat("k", size-1) + string(rune(i)) }
	before := liveBytes()
	for range 2 {
		for i := range keys {
			if got := countOf(c.For(t.Context(), key(i))); got != int64(i)+1 {
				t.Fatalf("key %d: got the limit %d, want %d", i, got, i+1)
			}
		}
	}
	if grown := liveBytes() - before; grown > size*keys/4 {
		t.Errorf("%d keys of %d bytes keep %d bytes in memory", keys, size, grown)
	}
	c.Invalidate(key(1))
	c.For(t.Context(), key(1))
	if asked[0] != 1 || asked[1] != 2 {
		t.Errorf("loaded %d times, and %d times after Invalidate, want 1 and 2", asked[0], asked[1])
	}
	runtime.KeepAlive(c)
}

// liveBytes returns how much memory is in use after a garbage collection.
func liveBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A hookedStore cannot be compared with others, so that no limiter can be made with it.
type hookedStore struct {
	penstock.Store
	hooks []func()
}

func TestNewRejectsStoreOfNoLimiter(t *testing.T) {
	load := func(context.Context, string) (penstock.Limit, error) { return penstock.PerSecond(1), nil }
	for _, s := range []penstock.Store{hookedStore{penstock.AllowAll, nil}, (*penstock.Observer)(nil)} {
		if _, err := limitercache.New(s, load, nil); err == nil {
			t.Errorf("%T is accepted", s)
		}
	}
}

func TestNewRejectsNil(t *testing.T) {
	if _, err := limitercache.New(nil, func(context.Context, string) (penstock.Limit, error) { return penstock.Limit{}, nil }, nil); err == nil {
		t.Error("no store is accepted")
	}
	if _, err := limitercache.New(penstock.NewMemory(nil), nil, nil); err == nil {
		t.Error("no load function is accepted")
	}
}
