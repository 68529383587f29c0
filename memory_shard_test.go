package penstock

import (
	"context"
	"strconv"
	"testing"
	"time"
)

// A position in a snapshot must lie within its block.
func TestRestoreMemoryRefusesPositionOutsideBlock(t *testing.T) {
	position := func(first, slack, length uint64) uint64 { return first<<32 | slack<<16 | length }
	for _, c := range []struct {
		position uint64
		words    int
		ok       bool
	}{
		{position(0, 0, 0), 0, true},
		{position(0, 0, 1), 0, false},
		{position(0, 0, 8), 8, true},
		{position(7, 0, 8), 8, true},
		{position(8, 0, 8), 8, false},
		{position(0, 0, 9), 8, false},
		{position(6, 1, 7), 8, true},
		{position(7, 1, 7), 8, false},
		{position(6, 1, 8), 8, false},
		{position(0, 8, 0), 8, false},
		{position(0, 9, 0), 8, false},
		{position(1<<32-1, 0, 0), 8, false},
		{position(1<<31, 1<<16-1, 1<<16-1), 8, false},
	} {
		if got := positionFits([]uint64{1, 1, 1, c.position}, c.words); got != c.ok {
			t.Errorf("position %#x in %d words fits: %v, want %v", c.position, c.words, got, c.ok)
		}
	}
}

// The ring of a full log has no free places, though its block is longer, also after the limit
// was raised.
func TestMemoryFullLogFillsItsRing(t *testing.T) {
	m := NewMemory(&MemoryOptions{MaxKeys: 100})
	for _, count := range []int64{9, 17, 100, 103, 1001} {
		limit := Limit{Name: "x", Algorithm: SlidingLog, Count: count, Period: time.Hour}
		lim, err := New(m, limit)
		if err != nil {
			t.Fatal(err)
		}
		for range count {
			if _, err := lim.Allow(context.Background(), "k"); err != nil {
				t.Fatal(err)
			}
		}
		s, cl := &m.shards[0], lim.compiled
		l := s.log(cl, s.tables[cl.table].Slot(m.hashOf(cl, "k")))
		if l.Len != int(count) || len(l.Times) != l.Len {
			t.Errorf("a log of %d has %d times in a ring of %d", count, l.Len, len(l.Times))
		}
	}
}

// Sweeps that succeed do not count down: after two billion of them the number would wrap around,
// and as many failed allocations would sweep only one shard each.
func TestMemorySweepsThatSucceedDoNotCountDown(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	m := NewMemory(&MemoryOptions{Now: func() time.Time { return now }})
	for range 3 {
		for i := range 1000 {
			if _, err := m.Take(context.Background(), Request{Key: strconv.Itoa(i), Limit: PerSecond(1), Cost: 1}); err != nil {
				t.Fatal(err)
			}
		}
		now = now.Add(time.Hour)
		if !m.sweepUntil(trusted, func() bool { return true }) {
			t.Fatal("nothing was swept")
		}
	}
	if got := m.sweepBackoff[trusted].Load(); got != 0 {
		t.Errorf("%d allocations may fail, want 0", got)
	}
}
