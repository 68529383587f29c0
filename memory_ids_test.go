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
