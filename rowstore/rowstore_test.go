package rowstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/rowstore"
	"github.com/penstock-io/penstock/storetest"
)

func TestStoreConforms(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, clock *storetest.Clock) penstock.Store {
		engine, o := &mapEngine{now: clock.Now}, &rowstore.Options{Tick: time.Millisecond, Timeout: time.Minute}
		return storetest.Spread(rowstore.New(engine, o), rowstore.New(engine, o)) // as two processes
	})
}

// An engine may hide rows that have expired, and keep them: a clock that steps back shows them again.
func TestStoreConformsWithoutExpiredRows(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, clock *storetest.Clock) penstock.Store {
		engine, o := &mapEngine{now: clock.Now, hidesExpired: true}, &rowstore.Options{Tick: time.Millisecond, Timeout: time.Minute}
		return storetest.Spread(rowstore.New(engine, o), rowstore.New(engine, o))
	})
}

// A row that was cut off or overwritten is an error or another state, and never a panic.
func TestStoreSurvivesDamagedRows(t *testing.T) {
	for _, algorithm := range penstock.Algorithms() {
		engine := &mapEngine{now: time.Now}
		r := penstock.Request{Key: "k", Limit: penstock.PerMinute(5).WithAlgorithm(algorithm), Cost: 2, ID: "id"}
		take(t, rowstore.New(engine, nil), r)
		rejected := 0
		for name, row := range engine.rows {
			for i := range len(row.Value) {
				overwritten := slices.Clone(row.Value)
				overwritten[i] ^= 0xff
				for _, value := range [][]byte{row.Value[:i], overwritten} {
					damaged := &mapEngine{now: time.Now, rows: map[string]rowstore.Row{name: {Value: value}}}
					d, err := rowstore.New(damaged, nil).Take(context.Background(), r)
					if err != nil && d != (penstock.Decision{}) {
						t.Errorf("%v: byte %d of %d: %v beside an error", algorithm, i, len(row.Value), d)
					}
					rejected += count(errors.Is(err, penstock.ErrBadSnapshot))
				}
			}
		}
		if rejected == 0 {
			t.Errorf("%v: no damaged row was rejected", algorithm)
		}
	}
}

// What a row counts need not be what it holds, and its entries need not be in order.
func TestStoreSurvivesForgedRows(t *testing.T) {
	for _, algorithm := range penstock.Algorithms() {
		engine := &mapEngine{now: time.Now}
		r := penstock.Request{Key: "k", Limit: penstock.PerMinute(5).WithAlgorithm(algorithm), Cost: 2, ID: "id"}
		take(t, rowstore.New(engine, nil), r)
		for name, row := range engine.rows {
			for i := 0; i+8 <= len(row.Value); i += 8 {
				for _, word := range []uint64{0, 1, 3, 100, 1 << 32, 11 << 32, 1 << 62, 1 << 63, math.MaxUint64} {
					value := slices.Clone(row.Value)
					binary.LittleEndian.PutUint64(value[i:], word)
					for _, cost := range []int64{4, 5, 0, -1, penstock.Reset} {
						forged := &mapEngine{now: time.Now, rows: map[string]rowstore.Row{name: {Value: value}}}
						store := rowstore.New(forged, nil)
						for range 2 { // as long as it does not panic
							r.Cost = cost
							if d, _ := store.Take(context.Background(), r); d.RetryAfter < 0 || d.ResetAfter < 0 {
								t.Errorf("%v, %#x at %d, a take of %d: %v", algorithm, word, i, cost, d)
							}
						}
					}
				}
			}
		}
	}
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
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
