package penstock_test

import (
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"pgregory.net/rapid"
)

// Whatever the order of takes, repeats, settlements and refunds under some IDs, what is
// charged to a key is the sum of what is charged under each of them. The clock stands
// still, so that time pays nothing back.
func TestSettlementsAddUpToWhatIsCharged(t *testing.T) {
	for _, a := range []penstock.Algorithm{
		penstock.TokenBucket, penstock.LeakyBucket, penstock.FixedWindow, penstock.SlidingWindow, penstock.RollingWindow, penstock.SlidingLog,
	} {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) { checkBooks(t, penstock.PerHour(50).WithAlgorithm(a)) })
		})
	}
}

func checkBooks(t *rapid.T, limit penstock.Limit) {
	now := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
	store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
	charged := map[string]int64{} // by ID
	sum, most := int64(0), limit.Capacity()+limit.MaxDebt()
	for range rapid.IntRange(1, 30).Draw(t, "requests") {
		r := penstock.Request{Key: "key", Limit: limit, ID: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "id")}
		before, known := charged[r.ID]
		want := before
		switch r.Cost = rapid.Int64Range(1, 60).Draw(t, "cost"); rapid.IntRange(0, 2).Draw(t, "verb") {
		case 0:
			if !known && sum+r.Cost <= limit.Capacity() {
				want = r.Cost
			}
		case 1:
			r.Settle = true
			if known {
				want = min(r.Cost, before+most-sum)
			}
		case 2:
			r.Cost = -60 // all of it, which ends the record
			want = 0
		}
		d, err := store.Take(ctx, r)
		if err != nil && (known || !r.Settle) {
			t.Fatalf("%+v: %v", r, err)
		}
		if r.Cost > 0 && err == nil && d.Granted != want {
			t.Fatalf("%+v: got %v, want %d charged under the ID", r, d, want)
		}
		if charged[r.ID] = want; want == 0 && (r.Cost < 0 || !known) {
			delete(charged, r.ID)
		}
		sum += want - before
		peek, err := store.Take(ctx, penstock.Request{Key: "key", Limit: limit})
		if err != nil || peek.Remaining != max(limit.Capacity()-sum, 0) {
			t.Fatalf("after %+v: got %v, %v, want %d units charged, by ID %v", r, peek, err, sum, charged)
		}
	}
}
