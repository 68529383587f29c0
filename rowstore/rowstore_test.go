package rowstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/rowstore"
	"github.com/penstock-io/penstock/storetest"
)

func TestStoreConforms(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, clock *storetest.Clock) penstock.Store {
		return rowstore.New(&mapEngine{now: clock.Now}, &rowstore.Options{Tick: time.Millisecond})
	})
}

func TestStoreRejectsDamagedRows(t *testing.T) {
	for _, algorithm := range penstock.Algorithms() {
		engine := &mapEngine{now: time.Now}
		r := penstock.Request{Key: "k", Limit: penstock.PerMinute(5).WithAlgorithm(algorithm), Cost: 2, ID: "id"}
		take(t, rowstore.New(engine, nil), r)
		for name, row := range engine.rows {
			for length := range len(row.Value) {
				damaged := &mapEngine{now: time.Now, rows: map[string]rowstore.Row{name: {Value: row.Value[:length]}}}
				d, err := rowstore.New(damaged, nil).Take(context.Background(), r)
				if err != nil && d != (penstock.Decision{}) {
					t.Errorf("%v: %d of %d bytes: %v beside an error", algorithm, length, len(row.Value), d)
				}
			}
		}
	}
}

// An engine whose first commit fails calls change twice, and only the second call counts.
func TestStoreChargesRepeatedUpdateOnce(t *testing.T) {
	engine := &mapEngine{now: time.Now, repeats: 3}
	store := rowstore.New(engine, nil)
	if d := take(t, store, penstock.Request{Key: "k", Limit: penstock.PerMinute(10), Cost: 1}); d.Remaining != 9 {
		t.Errorf("%v, want 9 remaining after one unit of ten", d)
	}
}

func take(t *testing.T, s penstock.Store, r penstock.Request) penstock.Decision {
	t.Helper()
	d, err := s.Take(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
