package penstock_test

import (
	"fmt"
	"math"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/storetest"
)

// everyAlgorithm has a limit of five units per hour or day for each algorithm whose requests need no ID.
var everyAlgorithm = func() []string {
	texts := []string{"5/1h fixed-window align=clock", "5/day fixed-window zone=Europe/Berlin"}
	for _, a := range penstock.Algorithms() {
		if l := penstock.PerHour(5).WithAlgorithm(a); !l.HasPermits() {
			texts = append(texts, l.String())
		}
	}
	return texts
}()

// A fakeClock moves only when a test advances it.
type fakeClock struct{ nanos atomic.Int64 }

func newFakeClock() *fakeClock {
	var c fakeClock
	c.nanos.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixNano())
	return &c
}

func (c *fakeClock) now() time.Time { return time.Unix(0, c.nanos.Load()) }

func (c *fakeClock) advance(d time.Duration) { c.nanos.Add(int64(d)) }

// takeFive takes five units of a key, and fails if it is denied.
func takeFive(t *testing.T, lim *penstock.Limiter, key string) {
	t.Helper()
	if d, err := lim.AllowN(ctx, key, 5); err != nil || !d.Allowed {
		t.Fatalf("taking 5 of %q: %+v, %v", key, d, err)
	}
}

// expectDenied checks that a key is denied one unit.
func expectDenied(t *testing.T, lim *penstock.Limiter, key string) {
	t.Helper()
	if d, err := lim.Allow(ctx, key); err != nil || d.Allowed {
		t.Fatalf("%q was allowed: %+v, %v", key, d, err)
	}
}

func TestMemoryFullStoreUsesOverflowBucket(t *testing.T) {
	const activeKeys, newKeys = 100, 1000
	for _, text := range everyAlgorithm {
		t.Run(text, func(t *testing.T) {
			clock := newFakeClock()
			store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: activeKeys, Now: clock.now})
			lim := limiter(t, store, text)
			for i := range activeKeys {
				takeFive(t, lim, strconv.Itoa(i))
			}
			if got := store.Stats(); got.Keys != activeKeys || got.OverflowDecisions != 0 {
				t.Fatalf("a store with room for all: %+v", got)
			}
			admitted := 0
			for i := range newKeys {
				d, err := lim.Allow(ctx, fmt.Sprint("new ", i))
				if err != nil {
					t.Fatal(err)
				}
				if d.Allowed {
					admitted++
				}
			}
			if admitted != 5 {
				t.Errorf("%d units were granted to new keys, want the 5 of the overflow bucket", admitted)
			}
			if got := store.Stats(); got.Keys != activeKeys || got.OverflowDecisions != newKeys {
				t.Errorf("after the new keys: %+v, want %d keys and %d overflow decisions", got, activeKeys, newKeys)
			}
			for i := range activeKeys {
				expectDenied(t, lim, strconv.Itoa(i))
			}
		})
	}
}

func TestMemoryOverflowBucketSupportsEveryMethod(t *testing.T) {
	for _, text := range everyAlgorithm {
		t.Run(text, func(t *testing.T) {
			store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1, Now: newFakeClock().now})
			lim := limiter(t, store, text)
			takeFive(t, lim, "active")
			expectRemaining(t, lim, "a", 5)
			if d, err := lim.AllowN(ctx, "a", 3); err != nil || d.Remaining != 2 {
				t.Errorf("a takes 3: %+v, %v", d, err)
			}
			expectRemaining(t, lim, "b", 2)
			if d, err := lim.AllowAtMost(ctx, "b", 9); err != nil || d.Granted != 2 {
				t.Errorf("b takes what is left: %+v, %v", d, err)
			}
			expectDenied(t, lim, "c")
			if d, err := lim.Refund(ctx, "c", 1); err != nil || d.Granted != -1 {
				t.Errorf("c refunds one: %+v, %v", d, err)
			}
			if err := lim.Reset(ctx, "d"); err != nil {
				t.Error(err)
			}
			expectRemaining(t, lim, "e", 5)
			expectDenied(t, lim, "active")
		})
	}
}

func TestMemoryOverflowBucketIsPerLimit(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1, Now: newFakeClock().now})
	five, seven := limiter(t, store, "5/1h"), limiter(t, store, "7/1h")
	takeFive(t, five, "active")
	takeFive(t, five, "new")
	expectRemaining(t, five, "another", 0)
	expectRemaining(t, seven, "another", 7)
}

// With more limits than overflow buckets, the last limits deny. A charge is not denied:
// Granted says that nothing was charged.
func TestMemoryDeniesWhenOverflowBucketsRunOut(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1, Now: newFakeClock().now})
	takeFive(t, limiter(t, store, "5/1h"), "active")
	admitted := 0
	for i := range 1100 {
		lim, err := penstock.New(store, penstock.PerHour(5).WithName(strconv.Itoa(i)))
		if err != nil {
			t.Fatal(err)
		}
		d, err := lim.Allow(ctx, "new")
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			admitted++
		} else if d.RetryAfter <= 0 {
			t.Errorf("limit %d is denied without a RetryAfter: %+v", i, d)
		}
	}
	if admitted != 1024 {
		t.Errorf("%d limits got an overflow bucket, want 1024", admitted)
	}
	last := limiter(t, store, "5/1h name=1099")
	if d, err := last.Charge(ctx, "new", 7); err != nil || !d.Allowed || d.Granted != 0 {
		t.Errorf("a charge without a place for it: %v, %v, want it allowed and nothing charged", d, err)
	}
	charge, take := last.Request("new"), limiter(t, store, "5/1h name=0").Request("new")
	charge.Overdraw = true
	ds := make([]penstock.Decision, 2)
	if err := store.TakeAll(ctx, []penstock.Request{charge, take}, ds); err != nil || ds[0].Granted != 0 || ds[1].Granted != 1 {
		t.Errorf("all or nothing: %v, %v, want only the take charged", ds, err)
	}
}

func TestMemoryReusesSlotsOfIdleKeys(t *testing.T) {
	for _, text := range everyAlgorithm {
		t.Run(text, func(t *testing.T) {
			clock := newFakeClock()
			store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 50, Now: clock.now})
			lim := limiter(t, store, text)
			for generation := range 20 {
				for i := range 50 {
					takeFive(t, lim, fmt.Sprint(generation, "/", i))
				}
				clock.advance(25 * time.Hour)
			}
			if got := store.Stats(); got.OverflowDecisions != 0 || got.Keys > 50 {
				t.Errorf("20 generations, one after the other: %+v", got)
			}
		})
	}
}

// One of many keys is idle again, in whichever slot: the next new key gets it.
func TestMemoryFindsSingleExpiredSlot(t *testing.T) {
	clock := newFakeClock()
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 500, Now: clock.now})
	long, short := limiter(t, store, "5/24h"), limiter(t, store, "5/1m")
	for i := range 499 {
		takeFive(t, long, strconv.Itoa(i))
	}
	for i := range 20 {
		takeFive(t, short, fmt.Sprint("short ", i))
		clock.advance(time.Minute)
	}
	if got := store.Stats(); got.OverflowDecisions != 0 {
		t.Errorf("each short key was idle before the next: %+v", got)
	}
	for i := range 499 {
		expectDenied(t, long, strconv.Itoa(i))
	}
}

func TestMemoryShardsShareMaxKeys(t *testing.T) {
	const most = 20_000
	clock := newFakeClock()
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: most, Now: clock.now})
	lim := limiter(t, store, "5/1h")
	for generation := range 5 {
		for i := range most {
			if _, err := lim.Allow(ctx, fmt.Sprint(generation, "/", i)); err != nil {
				t.Fatal(err)
			}
		}
		clock.advance(2 * time.Hour)
	}
	got := store.Stats()
	if got.Keys > most {
		t.Errorf("%d keys, more than %d", got.Keys, most)
	}
	if got.OverflowDecisions > most/100 {
		t.Errorf("%d of %d decisions used overflow buckets although there was room", got.OverflowDecisions, 5*most)
	}
}

// An idle key whose own block fills the last bytes has room for a longer one: the sweep that
// frees the block drops the key as well.
func TestMemoryIdleKeyAtMaxBytesGetsLongerBlock(t *testing.T) {
	const page = 16 << 10
	for _, others := range []int{0, 1} {
		clock := newFakeClock()
		store := penstock.NewMemory(&penstock.MemoryOptions{MaxBytes: page, Now: clock.now})
		take := func(cost int64) (penstock.Decision, error) {
			rs, ds := []penstock.Request{{Key: "k", Limit: penstock.PerMinute(100).WithAlgorithm(penstock.SlidingLog), Cost: cost}}, make([]penstock.Decision, 2)
			for range others { // all or nothing
				rs = append(rs, penstock.Request{Key: "other", Limit: penstock.PerHour(5), Cost: 1})
			}
			err := penstock.TakeAll(ctx, store, rs, ds)
			return ds[0], err
		}
		if _, err := take(1); err != nil || store.Stats().Bytes != page {
			t.Fatalf("%v, %+v, want that the block needs a page", err, store.Stats())
		}
		clock.advance(time.Hour)
		d, err := take(20)
		if got := store.Stats(); err != nil || d.Granted != 20 || got.OverflowDecisions != 0 {
			t.Errorf("with %d others: got %v, %+v, %v, want 20 granted without overflow", others, d, got, err)
		}
	}
}

func TestMemoryMaxBytesBoundsLogs(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxBytes: 1 << 20, Now: newFakeClock().now})
	lim := limiter(t, store, "1000/1h sliding-log")
	for i := range 500 {
		if d, err := lim.AllowN(ctx, strconv.Itoa(i), 1000); err != nil || (i < 60 && !d.Allowed) {
			t.Fatalf("key %d: %+v, %v", i, d, err)
		}
	}
	got := store.Stats()
	if got.Bytes > 1<<20+1<<18 || got.Bytes < 1<<19 {
		t.Errorf("logs hold %d bytes, want a megabyte, and at most a quarter more for overflow buckets", got.Bytes)
	}
	if got.OverflowDecisions == 0 {
		t.Error("500 logs of 8 kB fit into a megabyte")
	}
	for i := range 60 {
		expectDenied(t, lim, strconv.Itoa(i))
	}
}

// A log that cannot grow counts up to the length that it has. It must not use the
// overflow bucket, which would grant it more than its limit.
func TestMemoryTruncatedLogStaysWithinItsLimit(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 4096, MaxBytes: 64 << 10, Now: newFakeClock().now})
	lim := limiter(t, store, "100/1h sliding-log")
	admitted := int64(0)
	take := func(key string, n int64) penstock.Decision {
		d, err := lim.AllowAtMost(ctx, key, n)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	admitted += take("victim", 8).Granted
	for i := range 200 {
		take(strconv.Itoa(i), 100)
	}
	for range 200 {
		d := take("victim", 1)
		admitted += d.Granted
		if !d.Allowed && d.RetryAfter <= 0 {
			t.Fatalf("denied without a RetryAfter: %v", d)
		}
	}
	if admitted != 8 {
		t.Errorf("a log with room for 8 moments admitted %d of its 100", admitted)
	}
	if d, err := lim.AllowN(ctx, "victim", 50); err != nil || d.Allowed || d.RetryAfter != time.Hour {
		t.Errorf("50 more: %v, %v, want to be denied for an hour", d, err)
	}
	rs := []penstock.Request{{Key: "victim", Limit: lim.Limit(), Cost: 1}}
	ds := make([]penstock.Decision, 1)
	if err := penstock.TakeAll(ctx, store, rs, ds); err != nil || ds[0].Allowed || ds[0].RetryAfter <= 0 {
		t.Errorf("one more in a batch: %v, %v, want a denial", ds, err)
	}
}

// Bytes of expired logs are reused, even while there are unused slots.
func TestMemoryReusesBytesOfExpiredLogs(t *testing.T) {
	clock := newFakeClock()
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxBytes: 1 << 20, Now: clock.now})
	lim := limiter(t, store, "1000/1m sliding-log")
	for year := range 5 {
		for i := range 40 {
			d, err := lim.AllowN(ctx, fmt.Sprint(year, "/", i), 600)
			if err != nil || !d.Allowed {
				t.Fatalf("year %d, key %d: %v, %v", year, i, d, err)
			}
		}
		clock.advance(365 * 24 * time.Hour)
	}
	if got := store.Stats(); got.OverflowDecisions != 0 {
		t.Errorf("each log had expired before the next: %+v", got)
	}
}

// Keys that get no bytes must not use up the slots of keys that need none.
func TestMemoryKeyWithoutBytesHoldsNoSlot(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1000, MaxBytes: 64 << 10, Now: newFakeClock().now})
	long, short := limiter(t, store, "1000/1h sliding-log"), limiter(t, store, "5/1h")
	for i := range 5000 {
		if _, err := long.AllowN(ctx, strconv.Itoa(i), 1000); err != nil {
			t.Fatal(err)
		}
	}
	before := store.Stats().OverflowDecisions
	for i := range 900 {
		takeFive(t, short, strconv.Itoa(i))
	}
	if got := store.Stats().OverflowDecisions - before; got != 0 {
		t.Errorf("%d of 900 keys that need no bytes used the overflow bucket", got)
	}
}

// Many shards use the overflow bucket at once. It must not take an old reading of
// the clock for a step back, which would forgive its debt.
func TestMemoryOverflowBucketKeepsDebtOnMovingClock(t *testing.T) {
	clock := newFakeClock()
	ticking := func() time.Time { return time.Unix(0, clock.nanos.Add(int64(time.Microsecond))) }
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 50_000, Now: ticking})
	active := limiter(t, store, "5/24h")
	for i := range 50_000 {
		takeFive(t, active, strconv.Itoa(i))
	}
	lim := limiter(t, store, "1000/1s burst=10")
	start := ticking()
	var admitted atomic.Int64
	var group sync.WaitGroup
	for worker := range 16 {
		group.Go(func() {
			for i := range 2000 {
				d, err := lim.Allow(ctx, fmt.Sprint(worker, "/", i))
				if err != nil {
					t.Error(err)
				}
				admitted.Add(d.Granted)
			}
		})
	}
	group.Wait()
	most := 10 + int64(ticking().Sub(start)/time.Millisecond)
	if got := admitted.Load(); got > most {
		t.Errorf("%d admitted, want at most %d", got, most)
	}
}

func TestMemoryFreesBytesOfExpiredLogs(t *testing.T) {
	clock := newFakeClock()
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 100, Now: clock.now})
	long, short := limiter(t, store, "1000/1h sliding-log"), limiter(t, store, "5/1h")
	for i := range 100 {
		if d, err := long.AllowN(ctx, strconv.Itoa(i), 1000); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	if got := store.Stats().Bytes; got < 100*8000 {
		t.Fatalf("Stats of 100 logs of 1000 moments: %d bytes", got)
	}
	clock.advance(2 * time.Hour)
	for i := range 100 {
		takeFive(t, short, strconv.Itoa(i))
	}
	if got := store.Stats(); got.Bytes != 0 {
		t.Errorf("after all logs have expired: %+v", got)
	}
}

func TestMemoryOptionsAcceptAnyMaxKeys(t *testing.T) {
	for _, most := range []int{math.MinInt, -1, 0, 1, 2, 4097, math.MaxInt} {
		lim := limiter(t, penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: most, MaxBytes: -1, Tick: -1}), "5/1h")
		takeFive(t, lim, "k")
		expectDenied(t, lim, "k")
	}
}

// Limits of requests that were not made by a Limiter are compiled once.
func TestMemoryCachesCompiledLimits(t *testing.T) {
	store := penstock.NewMemory(nil)
	var requests []penstock.Request
	for _, zone := range []string{"Asia/Shanghai", "UTC"} { // a cache may have room for two
		requests = append(requests, penstock.Request{Key: "k", Cost: 1, Limit: penstock.Limit{
			Algorithm: penstock.FixedWindow, Align: penstock.AlignDay, Count: 1 << 40, Zone: zone,
		}})
	}
	allocations := testing.AllocsPerRun(100, func() {
		for _, r := range requests {
			if _, err := store.Take(ctx, r); err != nil {
				t.Fatal(err)
			}
		}
	})
	if allocations != 0 {
		t.Errorf("two limits in turn: %v allocations", allocations)
	}
}

func TestMemoryConcurrentTakesAdmitExactlyTheLimit(t *testing.T) {
	for _, text := range []string{
		"1000/24h", "1000/24h leaky-bucket", "1000/24h fixed-window", "1000/24h fixed-window align=clock",
		"1000/24h sliding-window", "1000/24h rolling-window", "1000/24h sliding-log",
	} {
		t.Run(text, func(t *testing.T) {
			lim := limiter(t, penstock.NewMemory(&penstock.MemoryOptions{Now: newFakeClock().now}), text)
			var admitted atomic.Int64
			var group sync.WaitGroup
			for range 8 {
				group.Go(func() {
					for range 500 {
						if d, err := lim.Allow(ctx, "k"); err == nil && d.Allowed {
							admitted.Add(1)
						}
					}
				})
			}
			group.Wait()
			if admitted.Load() != 1000 {
				t.Errorf("4000 takes at once admitted %d, want 1000", admitted.Load())
			}
		})
	}
}

func TestMemoryTakeDoesNotAllocate(t *testing.T) {
	for _, text := range everyAlgorithm {
		store := penstock.NewMemory(nil)
		lim := limiter(t, store, strings.Replace(text, "5/", "1000/", 1))
		decorated, err := penstock.New(&countingStore{next: store}, lim.Limit())
		if err != nil {
			t.Fatal(err)
		}
		for name, l := range map[string]*penstock.Limiter{"direct": lim, "decorated": decorated} {
			takeFive(t, l, "k")
			n := testing.AllocsPerRun(100, func() {
				if d, err := l.Allow(ctx, "k"); err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
			})
			if n != 0 {
				t.Errorf("%s, %s: %v allocations", text, name, n)
			}
		}
	}
}

func TestMemoryUsesFewHeapObjects(t *testing.T) {
	store := penstock.NewMemory(nil)
	lim := limiter(t, store, "5/1h sliding-log")
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 100_000 {
		if _, err := lim.Allow(ctx, strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if objects := int64(after.HeapObjects) - int64(before.HeapObjects); objects > 5_000 {
		t.Errorf("100,000 keys are %d objects on the heap", objects)
	}
	runtime.KeepAlive(store)
}

func TestMemoryClockOutsideSupportedYearsIsClamped(t *testing.T) {
	for _, text := range everyAlgorithm {
		for _, year := range []int{-200000, 1, 1969, 1970, 2262, 2500, 200000} {
			now := time.Date(year, 12, 31, 23, 59, 59, 999_999_999, time.UTC)
			lim := limiter(t, penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }}), text)
			for i := range 7 {
				d, err := lim.Allow(ctx, "k")
				if err != nil || d.Allowed != (i < 5) || d.RetryAfter < 0 || d.ResetAfter < 0 {
					t.Errorf("%s in the year %d, take %d: %+v, %v", text, year, i, d, err)
				}
			}
		}
	}
}

// A flood of cold values changes no hot key's count, also when the store is full.
func TestMemoryFloodOfColdKeysKeepsHotCounts(t *testing.T) {
	for _, text := range limitsOfTen {
		t.Run(text, func(t *testing.T) {
			now := newFakeClock()
			m := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 64, Now: now.now})
			lim := limiter(t, m, text)
			for _, hot := range []string{"hot", "hotter"} {
				if d, err := lim.AllowN(ctx, hot, 7); err != nil || !d.Allowed {
					t.Fatal(d, err)
				}
			}
			for i := range fixedseed.FewerUnderRace(10_000) {
				if _, err := lim.Allow(ctx, "cold "+strconv.Itoa(i)); err != nil {
					t.Fatal(err)
				}
			}
			for _, hot := range []string{"hot", "hotter"} {
				expectRemaining(t, lim, hot, 3)
				if d, err := lim.AllowN(ctx, hot, 4); err != nil || d.Allowed {
					t.Errorf("%s: %v, %v, want a denial, as before the flood", hot, d, err)
				}
			}
		})
	}
}

func TestMemoryPassesStoretest(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, clock *storetest.Clock) penstock.Store {
		return penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond})
	})
}
