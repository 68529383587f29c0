package setassoc

import (
	"math"
	"testing"
)

func TestNewHasRoomForTheEntries(t *testing.T) {
	for entries, sets := range map[int]int{-1: 1, 0: 1, 1: 1, 4: 1, 5: 2, 8: 2, 9: 4, 16: 4, 17: 8, 65_536: 16_384} {
		table := New[byte](entries)
		if len(table.All()) != sets {
			t.Errorf("%d entries: %d sets, want %d", entries, len(table.All()), sets)
		}
	}
}

func TestTableOfUsesTheLowBits(t *testing.T) {
	table := New[int](16)
	for hash, set := range map[uint64]int{0: 0, 3: 3, 4: 0, 7: 3, math.MaxUint64: 3} {
		if table.Of(hash) != &table.All()[set] {
			t.Errorf("hash %d is not in set %d", hash, set)
		}
	}
}
