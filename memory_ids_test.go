package penstock_test

import (
	"errors"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

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
