package penstock

import (
	"testing"

	"github.com/penstock-io/penstock/internal/siphash"
)

func asUntrusted(l Limit) Limit {
	l.Untrusted = true
	return l
}

func TestIdentifySeparatesLimitsThatDoNotShareState(t *testing.T) {
	key := siphash.NewKey([siphash.KeySize]byte{1})
	seen := map[uint64]Limit{}
	for _, l := range []Limit{
		PerSecond(1), PerSecond(2), PerMinute(1), PerSecond(1).WithBurst(2), PerSecond(1).WithName("a"),
		PerSecond(1).WithName("a").WithAlgorithm(LeakyBucket), PerSecond(1).WithName("b"), PerSecond(1).WithAlgorithm(SlidingLog),
		asUntrusted(PerSecond(1)), asUntrusted(PerSecond(1).WithName("a")),
		{Count: 1, Algorithm: FixedWindow, Align: AlignDay},
		{Count: 1, Algorithm: FixedWindow, Align: AlignDay, Zone: "Asia/Tokyo"},
		{Count: 1, Algorithm: FixedWindow, Align: AlignDay, Name: "Asia/", Zone: "Asia/Tokyo"},
		{Count: 1, Algorithm: FixedWindow, Align: AlignDay, Offset: 1},
		{Count: 1, Period: 1e9, Algorithm: RollingWindow, Buckets: 3},
	} {
		id := identityHashOf(l.Identity(), key)
		if other, ok := seen[id]; ok {
			t.Errorf("%v and %v have the same identity", l, other)
		}
		seen[id] = l
	}
	if identityHashOf(PerSecond(5).WithName("a").Identity(), key) != identityHashOf(PerSecond(1).WithName("a").Identity(), key) {
		t.Error("two counts of one name have different identities")
	}
}
