package penstock

import (
	"slices"
	"testing"
)

// A probe settles one debt at a time. One that fails again stays before later settlements of its
// ID: the last amount counts.
func TestLedgerRetriesSettlementsInOrder(t *testing.T) {
	l := ledger{maxDebts: 10}
	settle := func(id string, amount int64) {
		l.settle(&Request{Key: "key", Limit: PerHour(9), ID: id, Cost: amount, Settle: true}, PerHour(9), amount, 0)
	}
	fail := func(n int) {
		claimed := l.claim(n)
		if len(claimed) != n {
			t.Fatalf("%d claimed, want %d", len(claimed), n)
		}
		l.finish(claimed, claimed)
	}
	settle("a", 1)
	fail(1)
	settle("other", 5)
	settle("a", 2)
	fail(3)
	fail(1)
	settle("a", 1) // not what is on its way: the last to come is 2
	fail(4)
	var amounts []int64
	for _, d := range l.claim(10) {
		if d.id == "a" {
			amounts = append(amounts, d.amount)
		}
	}
	if want := []int64{1, 2, 1}; !slices.Equal(amounts, want) {
		t.Errorf("settled to %v, want %v", amounts, want)
	}
}
