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

// Two limits share both slots of a compiledCache, and begin with different ones.
func TestCompiledCacheKeepsTwoLimitsOfTheSameSlots(t *testing.T) {
	cache, first := &compiledCache{}, PerSecond(1)
	second := first
	for second.cacheHash()%uint64(len(cache.slots)) != first.cacheHash()%uint64(len(cache.slots))^1 {
		second.Count++
	}
	var compiled [2]*compiledLimit
	for range 2 {
		for i, l := range []Limit{first, second} {
			cl, err := cache.get(l, 1, nil)
			if err != nil {
				t.Fatal(err)
			}
			if compiled[i] != nil && cl != compiled[i] {
				t.Errorf("%v was compiled twice", l)
			}
			compiled[i] = cl
		}
	}
}
