package topkeys

import (
	"fmt"
	"hash/maphash"
	"slices"
	"strings"
	"testing"
	"time"

	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"pgregory.net/rapid"
)

// A stream is weights of keys, in order.
type stream []struct {
	key    string
	weight uint64
}

func drawStream(t *rapid.T, name string) (s stream) {
	keys := rapid.IntRange(1, 60).Draw(t, name+" keys")
	for i := range rapid.IntRange(0, 400).Draw(t, name+" length") {
		n := rapid.IntRange(0, keys-1).Draw(t, "key")
		if rapid.Bool().Draw(t, "hot") {
			n /= 8
		}
		weight := uint64(1)
		if i%7 == 0 {
			weight = rapid.Uint64Range(1, 64).Draw(t, "weight")
		}
		s = append(s, struct {
			key    string
			weight uint64
		}{fmt.Sprint("k", n), weight})
	}
	return s
}

// truth adds the true weights of a stream.
func (s stream) truth(sums map[string]uint64) (total uint64) {
	for _, x := range s {
		sums[x.key] += x.weight
		total += x.weight
	}
	return total
}

var (
	testSeed   = maphash.MakeSeed()
	testSource = &Source{Rule: "rule"}
)

// sketchOf counts a stream. Hashes of few bits make the index collide.
func (s stream) sketchOf(counters int, bits uint64) *sketch {
	k := newSketch(counters)
	for _, x := range s {
		hash := maphash.String(testSeed, x.key)
		k.add(hash&^(1<<bits-1)|hash%4, testSource, x.key, x.weight)
	}
	return k
}

func (s *sketch) summary() Summary {
	entries := s.appendEntries(nil, &strings.Builder{}, time.Time{}, func(*slot, time.Time) bool { return true })
	return Summary{Sampling: 1, Total: s.total, Floor: s.floor(), Entries: entries}
}

// checkBounds fails unless every count is within its bounds, and every key that is missing
// has at most the floor.
func checkBounds(t *rapid.T, s Summary, truth map[string]uint64) {
	t.Helper()
	found := map[string]bool{}
	for _, e := range s.Entries {
		found[e.Key] = true
		if e.Guaranteed() > truth[e.Key] || truth[e.Key] > e.Count || e.Error > e.Count {
			t.Fatalf("%s: counted from %d to %d, is %d", e.Key, e.Guaranteed(), e.Count, truth[e.Key])
		}
	}
	for key, n := range truth {
		if !found[key] && n > s.Floor {
			t.Fatalf("%s is missing: has %d, and the floor is %d", key, n, s.Floor)
		}
	}
}

func TestSketchBoundsEveryKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counters := rapid.IntRange(1, 40).Draw(t, "counters")
		s := drawStream(t, "stream")
		truth := map[string]uint64{}
		total := s.truth(truth)
		k := s.sketchOf(counters, rapid.Uint64Range(2, 12).Draw(t, "bits"))
		if k.total != total || k.used != min(counters, len(truth)) {
			t.Fatalf("total %d of %d keys, want %d of %d", k.total, k.used, total, len(truth))
		}
		if k.floor() > total/uint64(counters) {
			t.Fatalf("the floor is %d, more than %d/%d", k.floor(), total, counters)
		}
		checkBounds(t, k.summary(), truth)
		checkStructure(t, k)
	})
}

// checkStructure fails unless the heap is one, and the index finds every slot.
func checkStructure(t *rapid.T, k *sketch) {
	t.Helper()
	for i := 1; i < k.used; i++ {
		if k.counts[k.heap[i]] < k.counts[k.heap[(i-1)/heapWidth]] {
			t.Fatalf("heap: %d is below a larger one", i)
		}
	}
	for i := range k.used {
		if n, ok := k.find(k.hashes[i]); !ok || int(n) != i || k.heap[k.at[i]] != n {
			t.Fatalf("slot %d: found %d, %t", i, n, ok)
		}
	}
	if places := len(k.index) - len(slices.DeleteFunc(slices.Clone(k.index), func(n uint16) bool { return n != 0 })); places != k.used {
		t.Fatalf("the index has %d entries for %d slots", places, k.used)
	}
}

// What several sketches counted, and what is left of them after Top, bounds the true sums.
func TestMergeBoundsEveryKey(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		counters := rapid.IntRange(1, 40).Draw(t, "counters")
		truth := map[string]uint64{}
		var parts []Summary
		total := uint64(0)
		for range rapid.IntRange(0, 4).Draw(t, "parts") {
			s := drawStream(t, "stream")
			total += s.truth(truth)
			parts = append(parts, s.sketchOf(counters, 2).summary())
		}
		merged := Merge(parts...)
		checkBounds(t, merged, truth)
		if merged.Total != total || merged.Floor > total/uint64(counters) {
			t.Fatalf("total %d, floor %d, want %d, and at most %d", merged.Total, merged.Floor, total, total/uint64(counters))
		}
		for i := range parts {
			parts[i] = Merge(parts[i]).Top(rapid.IntRange(0, 20).Draw(t, "top"))
		}
		checkBounds(t, Merge(parts...), truth)
		checkBounds(t, Merge(parts...).Top(5), truth)
	})
}

func TestMergeCountsEqualTextsOnce(t *testing.T) {
	twice := Summary{Floor: 5, Entries: []Entry{{Key: "k", Count: 7}, {Key: "k", Count: 8}}}
	merged := Merge(twice, Summary{Floor: 2})
	if len(merged.Entries) != 1 || merged.Entries[0].Count != 17 || merged.Entries[0].Error != 2 {
		t.Errorf("got %+v, want one entry of 15 to 17", merged.Entries)
	}
}
