package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
)

// The record of an ID and the state of its key are written at one instant, though Redis
// reads its clock for each: otherwise a refund or settlement takes the window for another.
func TestSettleFindsTheWindowOfItsTake(t *testing.T) {
	t.Parallel()
	store := open(t, liveServer, redisstore.Options{})
	day := fmt.Sprintf("1000/day zone=UTC fixed-window offset=%dh", (time.Now().UTC().Hour()+12)%24) // it does not end meanwhile
	for _, text := range []string{"1000/24h fixed-window", "1000/24h sliding-window", "1000/24h rolling-window", "1000/24h sliding-log", day} {
		l, err := penstock.ParseLimit(text)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			r := penstock.Request{Key: fmt.Sprint("key", i), Limit: l, Cost: 40, ID: "id", Hold: 24 * time.Hour}
			if d, err := store.Take(t.Context(), r); err != nil || d.Granted != 40 {
				t.Fatal(d, err)
			}
			r.Cost, r.Settle = 10, true
			if d, err := store.Take(t.Context(), r); err != nil || d.Remaining != 990 {
				t.Fatalf("%s, key %d: %v, %v, want 990 left", l, i, d, err)
			}
		}
	}
}

// Redis keeps a key until after the millisecond in which it expires. A record in that
// millisecond is no longer remembered.
func TestIDExpiresWithItsMillisecond(t *testing.T) {
	tr := newClockTest(t)
	l := penstock.Limit{Algorithm: penstock.SlidingLog, Count: 5, Period: time.Millisecond}
	for i := range 5 {
		if d := tr.request(penstock.Request{Limit: l, Cost: 2, ID: "a"}); d.Granted != 2 || d.Remaining != 3 {
			t.Errorf("take %d: %+v, want 2 granted and 3 remaining", i, d)
		}
		tr.wait(time.Millisecond)
	}
}
