package history

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"pgregory.net/rapid"
)

// tick records one column for some names.
func tick(h *History, second int64, values map[string]uint64) {
	h.Tick(second, func(record func(string, []uint64)) {
		names := make([]string, 0, len(values))
		for name := range values {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
			record(name, []uint64{values[name]})
		}
	})
}

// tail returns the last n numbers of a span's first column.
func tail(s Span, n int) []uint64 { return s.Columns[0][len(s.Columns[0])-n:] }

func TestTickRecordsIncreases(t *testing.T) {
	h := New(1)
	const begin = 1_800_000_000 // a multiple of 300
	for i, v := range []uint64{5, 5, 8} {
		tick(h, begin+int64(i), map[string]uint64{"a": v, "b": 10 * v})
	}
	tick(h, begin+4, map[string]uint64{"a": 2, "b": 90}) // a was reset, and a second was missed
	a, ok := h.Of("a", Seconds)
	if !ok || !slices.Equal(tail(a, 6), []uint64{0, 5, 0, 3, 0, 2}) {
		t.Errorf("a: %v", tail(a, 6))
	}
	if a.From != begin+4-119 || a.Step != 1 || a.Last != 1 || len(a.Columns[0]) != 120 {
		t.Errorf("a: from %d, step %d, last %d", a.From, a.Step, a.Last)
	}
	if sum := h.Sum(TenSeconds); !slices.Equal(tail(sum, 2), []uint64{0, 100}) || sum.Last != 5 || sum.From != begin-3590 {
		t.Errorf("sum: %v, %+v", tail(sum, 2), sum)
	}
	tick(h, begin+10, map[string]uint64{"b": 91})
	if _, ok := h.Of("a", Seconds); ok {
		t.Error("a is still there, though it was left out")
	}
	if sum := h.Sum(TenSeconds); !slices.Equal(tail(sum, 3), []uint64{0, 100, 1}) {
		t.Errorf("sum: %v, want what a did to stay", tail(sum, 3))
	}
}

// Each resolution has what was recorded within its span, whatever the gaps and steps back of
// the clock.
func TestHistoryEqualsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := New(1)
		type event struct {
			second int64
			n      uint64
		}
		var events []event
		second, value := int64(1_800_000_000+rapid.IntRange(0, 1000).Draw(t, "begin")), uint64(0)
		for range rapid.IntRange(1, 40).Draw(t, "ticks") {
			second += rapid.SampledFrom([]int64{1, 1, 1, 2, 7, 100, 3000, 90_000, -5}).Draw(t, "gap")
			if len(events) > 0 {
				second = max(second, events[len(events)-1].second) // a clock that goes back changes nothing
			}
			n := rapid.Uint64Range(0, 9).Draw(t, "n")
			value += n
			tick(h, second, map[string]uint64{"k": value})
			events = append(events, event{second, n})
			if rapid.IntRange(0, 9).Draw(t, "save") == 0 {
				h, value = reloaded(t, h), 0
			}
		}
		for r := range resolutions {
			s, _ := h.Of("k", r)
			want := make([]uint64, r.Slots())
			for _, e := range events {
				if i := e.second/s.Step - s.From/s.Step; i >= 0 {
					want[i] += e.n
				}
			}
			if !slices.Equal(s.Columns[0], want) || !slices.Equal(h.Sum(r).Columns[0], want) {
				t.Fatalf("resolution %d: %v, want %v", r, s.Columns[0], want)
			}
		}
	})
}

// A clock that was far ahead does not stop history until it is that late again.
func TestHistoryBeginsAnewAfterAStepBack(t *testing.T) {
	h := New(1)
	tick(h, 1_800_000_000, map[string]uint64{"a": 7})
	tick(h, 1_700_000_000, map[string]uint64{"a": 8})
	tick(h, 1_700_000_001, map[string]uint64{"a": 10})
	if a, _ := h.Of("a", Seconds); a.From != 1_700_000_001-119 || !slices.Equal(tail(a, 4), []uint64{0, 0, 1, 2}) {
		t.Errorf("from %d: %v", a.From, tail(a, 4))
	}
}

// reloaded returns what a file of the history holds.
func reloaded(t *rapid.T, h *History) *History {
	var file bytes.Buffer
	other := New(h.width)
	if err := errors.Join(h.Save(&file), other.Load(&file)); err != nil || file.Len() != 0 {
		t.Fatalf("%v, %d bytes left", err, file.Len())
	}
	return other
}

func TestNamesBeyondTheMaximumShareASeries(t *testing.T) {
	h := New(1)
	for n := range int64(3) {
		h.Tick(1_800_000_000+n, func(record func(string, []uint64)) {
			for i := range MaxSeries + 5 {
				record(fmt.Sprint(i), []uint64{uint64(n)})
			}
		})
	}
	others, found := h.Others(Seconds)
	if !found || !slices.Equal(tail(others, 3), []uint64{0, 5, 5}) || h.owners != MaxSeries {
		t.Errorf("others: %v, %t, %d series", tail(others, 3), found, h.owners)
	}
	if sum := h.Sum(Seconds); !slices.Equal(tail(sum, 3), []uint64{0, 1005, 1005}) {
		t.Errorf("sum: %v", tail(sum, 3))
	}
}

func TestLoadRejectsDamage(t *testing.T) {
	h := New(1)
	for i := range int64(50) {
		tick(h, 1_800_000_000+7*i, map[string]uint64{"a": uint64(i * i), "b": uint64(i)})
	}
	var file bytes.Buffer
	if err := h.Save(&file); err != nil {
		t.Fatal(err)
	}
	saved := file.Bytes()
	for i := range saved {
		other := New(1)
		if err := other.Load(bytes.NewReader(saved[:i])); !errors.Is(err, ErrBadHistory) || other.second != 0 {
			t.Fatalf("the first %d bytes: %v, want ErrBadHistory", i, err)
		}
		damaged := bytes.Clone(saved)
		damaged[i] ^= 0xff
		_ = New(1).Load(bytes.NewReader(damaged)) // the checksum of the file is for the rest
	}
	if err := New(2).Load(bytes.NewReader(saved)); !errors.Is(err, ErrBadHistory) {
		t.Errorf("other columns: %v, want ErrBadHistory", err)
	}
}

// Metrics come from elsewhere: a number too many is ignored, and one too few changes nothing.
func TestTickIgnoresCountersWithoutColumn(t *testing.T) {
	h := New(2)
	for second, values := range [][]uint64{{1, 1}, {2, 2, 7}, {3}, nil, {4, 3, 9, 9}} {
		h.Tick(1_800_000_000+int64(second), func(record func(string, []uint64)) { record("a", values) })
	}
	of, _ := h.Of("a", Seconds)
	for column, want := range []uint64{4, 3} {
		sum := uint64(0)
		for _, n := range of.Columns[column] {
			sum += n
		}
		if sum != want {
			t.Errorf("column %d: %d, want %d", column, sum, want)
		}
	}
}
