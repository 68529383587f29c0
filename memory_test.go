package penstock_test

import (
	"errors"
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
)

// everyAlgorithm is one limit of each kind, of five units that last an hour.
var everyAlgorithm = []string{
	"5/1h",
	"5/1h leaky-bucket",
	"5/1h fixed-window",
	"5/1h fixed-window align=clock",
	"5/day fixed-window zone=Europe/Berlin",
	"5/1h sliding-window",
	"5/1h rolling-window",
	"5/1h sliding-log",
}

// A hand is a clock that a test moves.
type hand struct{ nanos atomic.Int64 }

func newHand() *hand {
	var h hand
	h.nanos.Store(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixNano())
	return &h
}

func (h *hand) now() time.Time          { return time.Unix(0, h.nanos.Load()) }
func (h *hand) advance(d time.Duration) { h.nanos.Add(int64(d)) }

// spend takes everything from a key, and fails if it cannot.
func spend(t *testing.T, lim *penstock.Limiter, key string) {
	t.Helper()
	if d, err := lim.AllowN(ctx, key, 5); err != nil || !d.Allowed {
		t.Fatalf("spending %q: %+v, %v", key, d, err)
	}
}

// denied checks that a key has nothing left.
func denied(t *testing.T, lim *penstock.Limiter, key string) {
	t.Helper()
	if d, err := lim.Allow(ctx, key); err != nil || d.Allowed {
		t.Fatalf("%q was admitted: %+v, %v", key, d, err)
	}
}

func TestFullStoreKeepsEveryDebt(t *testing.T) {
	const residents, strangers = 100, 1000
	for _, text := range everyAlgorithm {
		t.Run(text, func(t *testing.T) {
			clock := newHand()
			store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: residents, Now: clock.now})
			lim := limiter(t, store, text)
			for i := range residents {
				spend(t, lim, strconv.Itoa(i))
			}
			if got := store.Stats(); got.Keys != residents || got.OverflowDecisions != 0 {
				t.Fatalf("a store with room for all: %+v", got)
			}
			admitted := 0
			for i := range strangers {
				d, err := lim.Allow(ctx, fmt.Sprint("stranger ", i))
				if err != nil {
					t.Fatal(err)
				}
				if d.Allowed {
					admitted++
				}
			}
			if admitted != 5 {
				t.Errorf("%d strangers were admitted, want the 5 of their one bucket", admitted)
			}
			if got := store.Stats(); got.Keys != residents || got.OverflowDecisions != strangers {
				t.Errorf("after the flood: %+v, want %d keys and %d shared decisions", got, residents, strangers)
			}
			for i := range residents {
				denied(t, lim, strconv.Itoa(i))
			}
		})
	}
}

func TestEveryVerbWorksOnTheSharedBucket(t *testing.T) {
	for _, text := range everyAlgorithm {
		t.Run(text, func(t *testing.T) {
			store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1, Now: newHand().now})
			lim := limiter(t, store, text)
			spend(t, lim, "resident")
			remains(t, lim, "a", 5)
			if d, err := lim.AllowN(ctx, "a", 3); err != nil || d.Remaining != 2 {
				t.Errorf("a takes 3: %+v, %v", d, err)
			}
			remains(t, lim, "b", 2)
			if d, err := lim.AllowAtMost(ctx, "b", 9); err != nil || d.Granted != 2 {
				t.Errorf("b takes what is left: %+v, %v", d, err)
			}
			denied(t, lim, "c")
			if d, err := lim.Refund(ctx, "c", 1); err != nil || d.Granted != -1 {
				t.Errorf("c gives one back: %+v, %v", d, err)
			}
			if err := lim.Reset(ctx, "d"); err != nil {
				t.Error(err)
			}
			remains(t, lim, "e", 5)
			denied(t, lim, "resident")
		})
	}
}

// Two limits that find the store full share a bucket each, not one.
func TestEachLimitHasItsOwnSharedBucket(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1, Now: newHand().now})
	five, seven := limiter(t, store, "5/1h"), limiter(t, store, "7/1h")
	spend(t, five, "resident")
	spend(t, five, "stranger")
	remains(t, five, "another", 0)
	remains(t, seven, "another", 7)
}

// With more limits than shared buckets, the last come are denied, not admitted.
func TestMoreLimitsThanSharedBuckets(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1, Now: newHand().now})
	spend(t, limiter(t, store, "5/1h"), "resident")
	admitted := 0
	for i := range 1100 {
		lim, err := penstock.New(store, penstock.PerHour(5).WithName(strconv.Itoa(i)))
		if err != nil {
			t.Fatal(err)
		}
		d, err := lim.Allow(ctx, "stranger")
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			admitted++
		} else if d.RetryAfter <= 0 {
			t.Errorf("limit %d is denied without saying for how long: %+v", i, d)
		}
	}
	if admitted != 1024 {
		t.Errorf("%d limits got a shared bucket, want 1024", admitted)
	}
}

func TestKeysAsGoodAsNewAreFreeSpace(t *testing.T) {
	for _, text := range everyAlgorithm {
		t.Run(text, func(t *testing.T) {
			clock := newHand()
			store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 50, Now: clock.now})
			lim := limiter(t, store, text)
			for generation := range 20 {
				for i := range 50 {
					spend(t, lim, fmt.Sprint(generation, "/", i))
				}
				clock.advance(25 * time.Hour)
			}
			if got := store.Stats(); got.OverflowDecisions != 0 || got.Keys > 50 {
				t.Errorf("20 generations, one after the other: %+v", got)
			}
		})
	}
}

// One of many keys is refilled, wherever it lies: the next stranger finds room.
func TestASingleFreePlaceIsFound(t *testing.T) {
	clock := newHand()
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 500, Now: clock.now})
	long, short := limiter(t, store, "5/24h"), limiter(t, store, "5/1m")
	for i := range 499 {
		spend(t, long, strconv.Itoa(i))
	}
	for i := range 20 {
		spend(t, short, fmt.Sprint("short ", i))
		clock.advance(time.Minute)
	}
	if got := store.Stats(); got.OverflowDecisions != 0 {
		t.Errorf("each short key left before the next came: %+v", got)
	}
	for i := range 499 {
		denied(t, long, strconv.Itoa(i))
	}
}

func TestManyShardsFindRoomInEachOther(t *testing.T) {
	const most = 20_000
	clock := newHand()
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
		t.Errorf("%d of %d decisions were shared although room was there", got.OverflowDecisions, 5*most)
	}
}

func TestLogsAreBoundedInBytes(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxBytes: 1 << 20, Now: newHand().now})
	lim := limiter(t, store, "1000/1h sliding-log")
	for i := range 500 {
		if d, err := lim.AllowN(ctx, strconv.Itoa(i), 1000); err != nil || (i < 60 && !d.Allowed) {
			t.Fatalf("key %d: %+v, %v", i, d, err)
		}
	}
	got := store.Stats()
	if got.Bytes > 1<<20+1<<18 || got.Bytes < 1<<19 {
		t.Errorf("logs hold %d bytes, want a megabyte, and at most a quarter more to share", got.Bytes)
	}
	if got.OverflowDecisions == 0 {
		t.Error("500 logs of 8 kB fit into a megabyte")
	}
	for i := range 60 {
		denied(t, lim, strconv.Itoa(i))
	}
}

// A log that finds no room to grow counts to what it has room for. It must not
// go on by the shared bucket, which would grant it more than its limit.
func TestALogThatCannotGrowStaysWithinItsLimit(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 4096, MaxBytes: 64 << 10, Now: newHand().now})
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
			t.Fatalf("denied without saying for how long: %v", d)
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

// Bytes of logs that are as good as new are free, also while places are left.
func TestBytesOfOldLogsAreFree(t *testing.T) {
	clock := newHand()
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
		t.Errorf("a year between them, and yet: %+v", got)
	}
}

// A refused batch leaves neither places nor bytes taken.
func TestARefusedBatchLeavesNothingBehind(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 50, Now: newHand().now})
	long := penstock.PerHour(1000).WithAlgorithm(penstock.SlidingLog)
	ds := make([]penstock.Decision, 2)
	for i := range 1000 {
		rs := []penstock.Request{
			{Key: strconv.Itoa(i), Limit: long, Cost: 1000},
			{Key: "nobody", Limit: penstock.PerHour(0), Cost: 1},
		}
		if err := penstock.TakeAll(ctx, store, rs, ds); err != nil || ds[1].Allowed {
			t.Fatal(ds, err)
		}
	}
	if got := store.Stats(); got.Bytes != 0 || got.OverflowDecisions != 0 {
		t.Errorf("after a thousand refusals: %+v, want no bytes and nothing shared", got)
	}
}

// Keys that find no bytes take no places from those that need none.
func TestNoBytesNoPlace(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1000, MaxBytes: 64 << 10, Now: newHand().now})
	long, short := limiter(t, store, "1000/1h sliding-log"), limiter(t, store, "5/1h")
	for i := range 5000 {
		if _, err := long.AllowN(ctx, strconv.Itoa(i), 1000); err != nil {
			t.Fatal(err)
		}
	}
	shared := store.Stats().OverflowDecisions
	for i := range 900 {
		spend(t, short, strconv.Itoa(i))
	}
	if got := store.Stats().OverflowDecisions - shared; got != 0 {
		t.Errorf("%d of 900 keys that need no bytes had to share", got)
	}
}

// The shared bucket is asked from many shards at once. It must not take an old
// reading of the clock for a step back, which would let it off its debt.
func TestSharedBucketOnAMovingClock(t *testing.T) {
	clock := newHand()
	ticking := func() time.Time { return time.Unix(0, clock.nanos.Add(int64(time.Microsecond))) }
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 50_000, Now: ticking})
	resident := limiter(t, store, "5/24h")
	for i := range 50_000 {
		spend(t, resident, strconv.Itoa(i))
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
		t.Errorf("%d admitted, at most %d may be", got, most)
	}
}

func TestARefundByIDReachesTheSharedBucket(t *testing.T) {
	clock := newHand()
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 2, Now: clock.now})
	short, long := limiter(t, store, "5/1m"), limiter(t, store, "5/24h")
	spend(t, short, "resident")
	take := penstock.Request{Key: "stranger", Limit: long.Limit(), Cost: 5, ID: "id"}
	if d, err := store.Take(ctx, take); err != nil || d.Granted != 5 {
		t.Fatal(d, err)
	}
	clock.advance(time.Hour) // the resident's place is free now
	take.Cost = -5
	if d, err := store.Take(ctx, take); err != nil || d.Granted != -5 {
		t.Errorf("giving back what was shared: %v, %v, want -5", d, err)
	}
}

func TestLogsGiveTheirBytesBack(t *testing.T) {
	clock := newHand()
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 100, Now: clock.now})
	long, short := limiter(t, store, "1000/1h sliding-log"), limiter(t, store, "5/1h")
	for i := range 100 {
		if d, err := long.AllowN(ctx, strconv.Itoa(i), 1000); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	if got := store.Stats().Bytes; got < 100*8000 {
		t.Fatalf("100 logs of 1000 moments are said to hold %d bytes", got)
	}
	clock.advance(2 * time.Hour)
	for i := range 100 {
		spend(t, short, strconv.Itoa(i))
	}
	if got := store.Stats(); got.Bytes != 0 {
		t.Errorf("nothing is left of the logs, but %+v", got)
	}
}

func TestMaxKeysMayBeAnything(t *testing.T) {
	for _, most := range []int{math.MinInt, -1, 0, 1, 2, 4097, math.MaxInt} {
		lim := limiter(t, penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: most, MaxBytes: -1, Tick: -1}), "5/1h")
		spend(t, lim, "k")
		denied(t, lim, "k")
	}
}

// Limits that come bare, and in turn, are not worked out anew each time.
func TestBareLimitsAreRemembered(t *testing.T) {
	store := penstock.NewMemory(nil)
	var requests []penstock.Request
	for _, zone := range []string{"Asia/Shanghai", "Europe/Berlin", "America/Lima", "UTC"} {
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
		t.Errorf("four limits in turn: %v allocations", allocations)
	}
}

func TestIDsCountAsKeys(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 3, Now: newHand().now})
	take := func(id string) (penstock.Decision, error) {
		return store.Take(ctx, penstock.Request{Key: "k", Limit: penstock.PerHour(5), Cost: 1, ID: id})
	}
	for _, id := range []string{"a", "b"} {
		if d, err := take(id); err != nil || !d.Allowed {
			t.Fatalf("%s: %+v, %v", id, d, err)
		}
	}
	if d, err := take("c"); !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("no place to remember c: %+v, %v, want ErrUnavailable", d, err)
	}
	if d, err := take("a"); err != nil || d.Granted != 1 || d.Remaining != 3 {
		t.Errorf("a again: %+v, %v, want the grant of before and 3 left", d, err)
	}
}

func TestConcurrentTakesAdmitExactlyTheLimit(t *testing.T) {
	for _, text := range []string{
		"1000/24h", "1000/24h leaky-bucket", "1000/24h fixed-window", "1000/24h fixed-window align=clock",
		"1000/24h sliding-window", "1000/24h rolling-window", "1000/24h sliding-log",
	} {
		t.Run(text, func(t *testing.T) {
			lim := limiter(t, penstock.NewMemory(&penstock.MemoryOptions{Now: newHand().now}), text)
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

// Batches that want each other's keys neither deadlock nor lose a unit.
func TestConcurrentTakeAllKeepsTheBooks(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 100_000, Now: newHand().now})
	limit := penstock.PerDay(1_000_000)
	var granted [32]atomic.Int64
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			rs, ds := make([]penstock.Request, 4), make([]penstock.Decision, 4)
			for i := range 300 {
				for j := range rs {
					rs[j] = penstock.Request{Key: strconv.Itoa((worker*7 + i*3 + j*11) % 32), Limit: limit, Cost: int64(j + 1)}
				}
				if err := penstock.TakeAll(ctx, store, rs, ds); err != nil {
					t.Error(err)
					return
				}
				for j := range rs {
					k, _ := strconv.Atoi(rs[j].Key)
					granted[k].Add(ds[j].Granted)
				}
			}
		})
	}
	group.Wait()
	lim, err := penstock.New(store, limit)
	if err != nil {
		t.Fatal(err)
	}
	for k := range granted {
		remains(t, lim, strconv.Itoa(k), 1_000_000-granted[k].Load())
	}
}

func TestTakeAllInAFullStore(t *testing.T) {
	for _, text := range everyAlgorithm {
		t.Run(text, func(t *testing.T) {
			store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 2, Now: newHand().now})
			lim := limiter(t, store, text)
			all := func(costs map[string]int64) (ds []penstock.Decision) {
				var rs []penstock.Request
				for _, key := range []string{"a", "b", "c", "d"} {
					if cost, ok := costs[key]; ok {
						rs = append(rs, penstock.Request{Key: key, Limit: lim.Limit(), Cost: cost})
					}
				}
				ds = make([]penstock.Decision, len(rs))
				if err := penstock.TakeAll(ctx, store, rs, ds); err != nil {
					t.Fatal(err)
				}
				return ds
			}
			// a and b get the two places; c and d share the five of one bucket.
			ds := all(map[string]int64{"a": 4, "b": 4, "c": 2, "d": 2})
			for i := range ds {
				if !ds[i].Allowed {
					t.Fatalf("all four fit: %+v", ds)
				}
			}
			remains(t, lim, "c", 1)
			if ds = all(map[string]int64{"a": 1, "c": 1, "d": 1}); ds[0].Granted != 0 || ds[1].Allowed || ds[2].Allowed {
				t.Errorf("c and d want two of one: %+v", ds)
			}
			remains(t, lim, "a", 1)
			remains(t, lim, "c", 1)
		})
	}
}

func TestTakeAllMayLook(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: newHand().now})
	limit := penstock.PerHour(5)
	rs := []penstock.Request{{Key: "a", Limit: limit}, {Key: "a", Limit: limit, Cost: 6}, {Key: "b", Limit: limit, Cost: 1}}
	ds := make([]penstock.Decision, 3)
	if err := penstock.TakeAll(ctx, store, rs, ds); err != nil {
		t.Fatal(err)
	}
	if !ds[0].Allowed || ds[1].Allowed || ds[1].RetryAfter != penstock.Never || !ds[2].Allowed || ds[2].Granted != 0 {
		t.Errorf("a look, six of five, and another key: %+v", ds)
	}
}

func TestDecisionsAllocateNothing(t *testing.T) {
	for _, text := range everyAlgorithm {
		store := penstock.NewMemory(nil)
		lim := limiter(t, store, strings.Replace(text, "5/", "1000/", 1))
		decorated, err := penstock.New(&counting{next: store}, lim.Limit())
		if err != nil {
			t.Fatal(err)
		}
		for name, l := range map[string]*penstock.Limiter{"direct": lim, "decorated": decorated} {
			spend(t, l, "k")
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

func TestStoreIsInvisibleToTheCollector(t *testing.T) {
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

func TestClocksAtTheEdgesOfTime(t *testing.T) {
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
