package penstock_test

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

func TestMemoryTakeAllDeniedHoldsNoSlotOrBytes(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 50, Now: newFakeClock().now})
	long := penstock.PerHour(1000).WithAlgorithm(penstock.SlidingLog)
	ds := make([]penstock.Decision, 2)
	for i := range 1000 {
		rs := []penstock.Request{
			{Key: strconv.Itoa(i), Limit: long, Cost: 1000},
			{Key: "denied", Limit: penstock.PerHour(0), Cost: 1},
		}
		if err := penstock.TakeAll(ctx, store, rs, ds); err != nil || ds[1].Allowed {
			t.Fatal(ds, err)
		}
	}
	if got := store.Stats(); got.Bytes != 0 || got.OverflowDecisions != 0 {
		t.Errorf("after a thousand denials: %+v, want no bytes and no overflow decisions", got)
	}
}

// Permits of several new keys come from one overflow bucket if the store is full, which records a
// grant for each of them.
func TestMemoryTakeAllGrantsPermitsOfSeveralKeysFromOverflowBucket(t *testing.T) {
	for n := range int64(12) {
		clock := newFakeClock()
		store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1, Now: clock.now})
		takeFive(t, limiter(t, store, "5/1h"), "the only slot")
		lim := limiter(t, store, "12/1m concurrent")
		rs, ds := make([]penstock.Request, n), make([]penstock.Decision, n)
		for i := range rs {
			rs[i] = lim.Request(strconv.Itoa(i))
			rs[i].ID = "permit"
		}
		for range 2 { // the second call renews them
			if err := penstock.TakeAll(ctx, store, rs, ds); err != nil || n > 0 && !penstock.Tightest(ds).Allowed {
				t.Fatalf("%d permits: %v, %v", n, ds, err)
			}
			expectRemaining(t, lim, "new", 12-n)
		}
		for _, r := range rs {
			r.Cost = -1
			if d, err := store.Take(ctx, r); err != nil || d.Granted != -1 {
				t.Fatalf("%d permits: release: %v, %v", n, d, err)
			}
		}
		expectRemaining(t, lim, "new", 12)
	}
}

// A permit that is only renewed takes no room of the overflow bucket, which another key takes.
func TestMemoryTakeAllRenewsBesideTakeFromOverflowBucket(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1, Now: newFakeClock().now})
	takeFive(t, limiter(t, store, "5/1h"), "the only slot")
	lim := limiter(t, store, "2/1m concurrent")
	held, other, third := lim.Request("held"), lim.Request("other"), lim.Request("third")
	held.ID, other.ID, third.ID = "a", "b", "c"
	if d, err := store.Take(ctx, held); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	for _, rs := range [][]penstock.Request{{held, other}, {other, held}} {
		ds := make([]penstock.Decision, 2)
		if err := penstock.TakeAll(ctx, store, rs, ds); err != nil || !ds[0].Allowed || !ds[1].Allowed {
			t.Errorf("one held, one new of two: %v, %v", ds, err)
		}
		expectRemaining(t, lim, "new", 0)
		other.Cost = -1
		if d, err := store.Take(ctx, other); err != nil || d.Granted != -1 {
			t.Errorf("release: %v, %v", d, err)
		}
		other.Cost = 1
	}
	ds := make([]penstock.Decision, 3)
	if err := penstock.TakeAll(ctx, store, []penstock.Request{held, other, third}, ds); err != nil || ds[1].Allowed || ds[2].Allowed {
		t.Errorf("one held, two new of two: %v, %v", ds, err)
	}
	expectRemaining(t, lim, "new", 1)
}

// Batches with overlapping keys neither deadlock nor lose a unit.
func TestMemoryConcurrentTakeAllLosesNoUnit(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 100_000, Now: newFakeClock().now})
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
		expectRemaining(t, lim, strconv.Itoa(k), 1_000_000-granted[k].Load())
	}
}

func TestMemoryTakeAllInFullStoreUsesOverflowBucket(t *testing.T) {
	for _, text := range everyAlgorithm {
		t.Run(text, func(t *testing.T) {
			store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 2, Now: newFakeClock().now})
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
			// a and b get the two slots; c and d share the overflow bucket.
			ds := all(map[string]int64{"a": 4, "b": 4, "c": 2, "d": 2})
			for i := range ds {
				if !ds[i].Allowed {
					t.Fatalf("all four fit: %+v", ds)
				}
			}
			expectRemaining(t, lim, "c", 1)
			if ds = all(map[string]int64{"a": 1, "c": 1, "d": 1}); ds[0].Granted != 0 || ds[1].Allowed || ds[2].Allowed {
				t.Errorf("c and d want two of one: %+v", ds)
			}
			expectRemaining(t, lim, "a", 1)
			expectRemaining(t, lim, "c", 1)
		})
	}
}

// In an overflow bucket one key can be overdrawn before another takes from it. Then the
// take is denied, and nothing is charged.
func TestMemoryTakeAllRefundsChargeInOverflowBucket(t *testing.T) {
	for _, text := range []string{"5/1h", "5/1h leaky-bucket", "5/1h fixed-window", "5/1h sliding-window"} {
		store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1, Now: newFakeClock().now})
		lim := limiter(t, store, text)
		takeFive(t, lim, "active")
		charge, take := lim.Request("charged"), lim.Request("taken")
		charge.Cost, charge.Overdraw = 7, true
		ds := make([]penstock.Decision, 2)
		if err := store.TakeAll(ctx, []penstock.Request{charge, take}, ds); err != nil || !ds[0].Allowed || ds[1].Allowed {
			t.Errorf("%s: a charge of the bucket, and then a take: %v, %v, want the take denied", text, ds, err)
		}
		expectRemaining(t, lim, "taken", 5)
		if err := store.TakeAll(ctx, []penstock.Request{take, charge}, ds); err != nil || ds[0].Granted != 1 || ds[1].Granted != 7 {
			t.Errorf("%s: a take, and then a charge: %v, %v, want both granted", text, ds, err)
		}
	}
}

func TestMemoryTakeAllPeekIsAllowed(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: newFakeClock().now})
	limit := penstock.PerHour(5)
	rs := []penstock.Request{{Key: "a", Limit: limit}, {Key: "a", Limit: limit, Cost: 6}, {Key: "b", Limit: limit, Cost: 1}}
	ds := make([]penstock.Decision, 3)
	if err := penstock.TakeAll(ctx, store, rs, ds); err != nil {
		t.Fatal(err)
	}
	if !ds[0].Allowed || ds[1].Allowed || ds[1].RetryAfter != penstock.Never || !ds[2].Allowed || ds[2].Granted != 0 {
		t.Errorf("a peek, six of five, and another key: %+v", ds)
	}
}

func TestMemoryRefundByIDReachesOverflowBucket(t *testing.T) {
	clock := newFakeClock()
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 2, Now: clock.now})
	short, long := limiter(t, store, "5/1m"), limiter(t, store, "5/24h")
	takeFive(t, short, "active")
	take := penstock.Request{Key: "new", Limit: long.Limit(), Cost: 5, ID: "id"}
	if d, err := store.Take(ctx, take); err != nil || d.Granted != 5 {
		t.Fatal(d, err)
	}
	clock.advance(time.Hour) // the slot of the active key has expired
	take.Cost = -5
	if d, err := store.Take(ctx, take); err != nil || d.Granted != -5 {
		t.Errorf("refund to the overflow bucket: %v, %v, want -5", d, err)
	}
}

func TestMemoryIDsCountTowardsMaxKeys(t *testing.T) {
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 3, Now: newFakeClock().now})
	take := func(id string) (penstock.Decision, error) {
		return store.Take(ctx, penstock.Request{Key: "k", Limit: penstock.PerHour(5), Cost: 1, ID: id})
	}
	for _, id := range []string{"a", "b"} {
		if d, err := take(id); err != nil || !d.Allowed {
			t.Fatalf("%s: %+v, %v", id, d, err)
		}
	}
	if d, err := take("c"); !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("no slot for the record of c: %+v, %v, want ErrUnavailable", d, err)
	}
	if d, err := take("a"); err != nil || d.Granted != 1 || d.Remaining != 3 {
		t.Errorf("a again: %+v, %v, want the same grant and 3 left", d, err)
	}
}

// A refund to the overflow bucket is decided at a time that is not before the last take from it,
// also if that take came while the refund waited for the bucket.
func TestMemoryRefundToOverflowBucketReadsTheClockAgain(t *testing.T) {
	clock := newFakeClock()
	waits := time.Duration(0) // how long the next call waits after it has read the clock
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 2, Now: func() time.Time {
		now := clock.now()
		clock.advance(waits)
		waits = 0
		return now
	}})
	l := penstock.PerSecond(10)
	take := func(r penstock.Request) penstock.Decision {
		t.Helper()
		r.Limit = l
		d, err := store.Take(ctx, r)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	take(penstock.Request{Key: "fills the store", Cost: 10})
	if d := take(penstock.Request{Key: "a", Cost: 2, ID: "x"}); d.Granted != 2 || store.Stats().OverflowDecisions != 1 {
		t.Fatalf("got %v, %+v, want a grant of the overflow bucket", d, store.Stats())
	}
	take(penstock.Request{Key: "b", Cost: 8}) // the rest of the bucket
	clock.advance(-500 * time.Millisecond)    // so that the refund reads a time before that
	waits = 500 * time.Millisecond
	if d := take(penstock.Request{Key: "a", Cost: -1, ID: "x"}); d.Granted != -1 {
		t.Errorf("the refund: got %v, want 1 unit back", d)
	}
	if d := take(penstock.Request{Key: "c"}); d.Remaining != 1 {
		t.Errorf("after the refund: got %v, want 1 unit left", d)
	}
}

// The records of a repeated call may expire while it is decided, and be swept for one of its keys.
func TestMemoryRepeatedTakeAllOutlivesItsRecords(t *testing.T) {
	clock := newFakeClock()
	step := time.Duration(0) // by which each reading moves the clock
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 4, Now: func() time.Time {
		defer clock.advance(step)
		return clock.now()
	}})
	rs, ds := make([]penstock.Request, 2), make([]penstock.Decision, 2)
	for i, key := range []string{"a", "b"} {
		rs[i] = penstock.Request{Key: key, Limit: penstock.PerSecond(5), Cost: 1, ID: "x", Hold: time.Hour}
	}
	if err := store.TakeAll(ctx, rs, ds); err != nil || !penstock.Tightest(ds).Allowed {
		t.Fatal(ds, err)
	}
	clock.advance(time.Minute) // both keys are idle, and make room for others
	for _, key := range []string{"c", "d"} {
		if _, err := store.Take(ctx, penstock.Request{Key: key, Limit: penstock.PerDay(1), Cost: 1}); err != nil {
			t.Fatal(err)
		}
	}
	clock.advance(59*time.Minute - 1)
	step = 1
	if err := store.TakeAll(ctx, rs, ds); err != nil || ds[0].Granted != 1 || ds[1].Granted != 1 {
		t.Errorf("got %v, %v, want both grants", ds, err)
	}
}

// The same, where the time is read again because an overflow bucket holds permits of the call.
func TestMemoryRepeatedTakeAllWithOverflowOutlivesItsRecords(t *testing.T) {
	clock := newFakeClock()
	step := time.Duration(0)
	store := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 2, Now: func() time.Time {
		defer clock.advance(step)
		return clock.now()
	}})
	permits := penstock.Limit{Count: 1, Period: 2 * time.Hour, Algorithm: penstock.Concurrent}
	rs := []penstock.Request{
		{Key: "a", Limit: penstock.PerSecond(5), Cost: 1, ID: "x", Hold: time.Hour},
		{Key: "b", Limit: permits, Cost: 1, ID: "x"},
	}
	take := func(r penstock.Request) {
		t.Helper()
		if d, err := store.Take(ctx, r); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}
	for _, key := range []string{"c", "d"} {
		take(penstock.Request{Key: key, Limit: penstock.PerSecond(1), Cost: 1})
	}
	take(rs[1])
	clock.advance(time.Minute)
	take(rs[0])
	clock.advance(time.Hour - 1)
	step = 1
	ds := make([]penstock.Decision, 2)
	if err := store.TakeAll(ctx, rs, ds); err != nil || ds[0].Granted != 1 || ds[1].Granted != 1 || store.Stats().OverflowDecisions == 0 {
		t.Errorf("got %v, %v, %+v, want both grants, one of them of the overflow bucket", ds, err, store.Stats())
	}
}
