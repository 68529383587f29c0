package topkeys

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
)

// A testClock is a clock that a test moves.
type testClock struct{ now time.Time }

func newTestClock() *testClock {
	return &testClock{time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)}
}

func (c *testClock) tracker(counters int) *Tracker {
	return New(&Options{Counters: counters, Now: func() time.Time { return c.now }})
}

func (c *testClock) advance(d time.Duration) { c.now = c.now.Add(d) }

func askedOf(tr *Tracker, rule *string) Summary {
	asked, _ := tr.Keys(rule)
	return asked
}

func deniedOf(tr *Tracker, rule *string) Summary {
	_, denied := tr.Keys(rule)
	return denied
}

// text returns entries as "rule/key count-guaranteed".
func text(s Summary) string {
	var lines []string
	for _, e := range s.Entries {
		lines = append(lines, fmt.Sprintf("%s%s/%s %d-%d", e.Rule, e.Limit, e.Key, e.Guaranteed(), e.Count))
	}
	return strings.Join(lines, ", ")
}

func TestTrackerRanksKeysByRule(t *testing.T) {
	tr := newTestClock().tracker(8)
	users, paths := tr.NewSource("users"), tr.NewSource("paths")
	for i := range 6 {
		outcome := Allowed
		if i > 3 {
			outcome = Denied
		}
		tr.Record(users, "ann", outcome, 1, int64(5-i))
		if i < 3 {
			tr.Record(tr.NewSource("users"), "bob", Shadowed, 1, 0)
		}
	}
	tr.Record(paths, "ann", Denied, 1, 0)
	limit := penstock.PerMinute(5)
	tr.RecordLimit(&limit, "ann", Denied, 1, 0)
	tr.RecordLimit(&limit, "ann", Denied, 1, 0)
	rule := "users"
	for _, c := range []struct{ got, want string }{
		{text(askedOf(tr, nil)), "users/ann 6-6, users/bob 3-3, 5/1m/ann 2-2, paths/ann 1-1"},
		{text(deniedOf(tr, nil)), "users/bob 3-3, 5/1m/ann 2-2, users/ann 2-2, paths/ann 1-1"},
		{text(deniedOf(tr, &rule)), "users/bob 3-3, users/ann 2-2"},
	} {
		if c.got != c.want {
			t.Errorf("got %s, want %s", c.got, c.want)
		}
	}
	if bob := deniedOf(tr, &rule).Entries[0]; bob.Shadowed != 3 {
		t.Errorf("got %+v, want 3 shadowed", bob)
	}
}

// Reports of any size leave the decisions that the tracker sees itself unsampled.
func TestTrackerCountsReports(t *testing.T) {
	clock := newTestClock()
	tr := clock.tracker(8)
	users := tr.NewSource("users")
	for range 3 {
		tr.RecordReport(users, "proxy", 1<<30, 2)
		tr.RecordReport(users, "idle", 0, 0)
		clock.advance(2 * time.Second)
		tr.Record(users, "ann", Allowed, 1, 5)
	}
	asked, denied := askedOf(tr, nil), deniedOf(tr, nil)
	if got, want := text(asked), "users/proxy 3221225478-3221225478, users/ann 3-3"; got != want || asked.Sampling != 1 {
		t.Errorf("asked %s, one in %d sampled, want %s and all", got, asked.Sampling, want)
	}
	if got, want := text(denied), "users/proxy 6-6"; got != want {
		t.Errorf("denied %s, want %s", got, want)
	}
	if seen := tr.Seen("proxy"); len(seen) != 1 || len(seen[0].Last) != 0 {
		t.Errorf("seen %+v, want no last decisions", seen)
	}
}

func TestTrackerForgetsAfterTwoGenerations(t *testing.T) {
	clock := newTestClock()
	tr := clock.tracker(8)
	source := tr.NewSource("r")
	begin := clock.now
	tr.Record(source, "old", Allowed, 1, 0)
	clock.advance(59 * time.Second)
	tr.Record(source, "both", Allowed, 1, 0)
	clock.advance(time.Second)
	tr.Record(source, "both", Allowed, 1, 0)
	if s := askedOf(tr, nil); text(s) != "r/both 2-2, r/old 1-1" || !s.Since.Equal(begin) {
		t.Errorf("after a minute: %s since %s", text(s), s.Since)
	}
	clock.advance(time.Minute)
	if s := askedOf(tr, nil); text(s) != "r/both 1-1" || !s.Since.Equal(begin.Add(time.Minute)) {
		t.Errorf("after two minutes: %s since %s", text(s), s.Since)
	}
	tr.Record(source, "new", Allowed, 1, 0)
	clock.advance(time.Hour)
	if s := askedOf(tr, nil); text(s) != "" || s.Total != 0 || !s.Since.Equal(clock.now) {
		t.Errorf("after an hour: %s of %d since %s", text(s), s.Total, s.Since)
	}
}

// Up to 20,000 decisions a second all are counted. Above that their sum is estimated, and
// the work per second stays bounded.
func TestTrackerSamplesOnlyFloods(t *testing.T) {
	clock := newTestClock()
	tr := clock.tracker(64)
	source := tr.NewSource("r")
	second := func(n int) {
		for i := range n {
			tr.Record(source, "hot", Allowed, 1, 0)
			if i%100 == 99 {
				clock.advance(time.Second * 100 / time.Duration(n))
			}
		}
	}
	for range 5 {
		second(20_000)
	}
	if s := askedOf(tr, nil); s.Sampling != 1 || text(s) != "r/hot 100000-100000" {
		t.Fatalf("at 20,000 a second: step %d, %s; want all counted", s.Sampling, text(s))
	}
	for i := range 3 {
		second(640_000)
		if step := tr.allowed.mask.Load() + 1; step < 32 || step > 64 {
			t.Errorf("step %d after %d seconds of a flood of 640,000, want 32 or 64", step, i+1)
		}
	}
	s := askedOf(tr, nil)
	if estimate := s.Entries[0].Count; s.Sampling > 64 || estimate < 1_900_000 || estimate > 2_140_000 {
		t.Errorf("%d counted of 2,020,000 by steps up to %d", estimate, s.Sampling)
	}
	for range 3 {
		second(1000)
	}
	if step := tr.allowed.mask.Load() + 1; step != 1 {
		t.Errorf("step %d after the flood, want 1", step)
	}
	if s := deniedOf(tr, nil); s.Sampling != 1 {
		t.Errorf("denials are sampled 1 in %d, though there are none", s.Sampling)
	}
}

func TestTrackerTellsLongKeysApart(t *testing.T) {
	tr := newTestClock().tracker(8)
	source := tr.NewSource("r")
	long := strings.Repeat("x", 4000)
	for range 3 {
		tr.Record(source, long+"a", Denied, 1, 0)
	}
	tr.Record(source, long+"b", Denied, 1, 0)
	entries := deniedOf(tr, nil).Entries
	if len(entries) != 2 || entries[0].Count != 3 || entries[0].Key != long[:keyBytes] || entries[0].Length != 4001 {
		t.Errorf("got %+v, want two keys, cut", entries)
	}
	if seen := tr.Seen(long + "a"); len(seen) != 1 || seen[0].Denied.Count != 3 {
		t.Errorf("got %+v, want the first key alone", seen)
	}
}

func TestTrackerBoundsLimitsOfRequests(t *testing.T) {
	clock := newTestClock()
	tr := clock.tracker(8)
	for i := range 3 * maxLimits {
		limit := penstock.PerMinute(int64(i + 1))
		tr.RecordLimit(&limit, "k", Allowed, 1, 0)
	}
	if len(tr.limits) != maxLimits {
		t.Errorf("%d limits are kept, want %d", len(tr.limits), maxLimits)
	}
	clock.advance(2 * generation)
	limit := penstock.PerMinute(1_000_000)
	tr.RecordLimit(&limit, "k", Allowed, 1, 0)
	if got := text(askedOf(tr, nil)); got != "1000000/1m/k 1-1" {
		t.Errorf("after the flood: %s", got)
	}
}

func TestSeenReturnsLastDecisions(t *testing.T) {
	clock := newTestClock()
	tr := clock.tracker(8)
	source := tr.NewSource("r")
	for i := range 12 {
		outcome := Allowed
		if i >= 10 {
			outcome = Denied
		}
		tr.Record(source, "ann", outcome, 2, int64(20-2*i))
		clock.advance(10 * time.Second)
	}
	tr.Record(tr.NewSource("other"), "ann", Shadowed, 1, 1<<40)
	seen := tr.Seen("ann")
	if len(seen) != 2 || seen[0].Rule != "other" || seen[1].Rule != "r" {
		t.Fatalf("got %+v, want both rules", seen)
	}
	if last := seen[0].Last; len(last) != 1 || last[0].Outcome != Shadowed || last[0].Remaining != 1<<32-1 {
		t.Errorf("got %+v, want one shadowed decision", last)
	}
	last := seen[1].Last
	if len(last) != 6 || last[0].Outcome != Denied || !last[0].Time.Equal(clock.now.Add(-10*time.Second)) || last[5].Remaining != 8 || last[0].Cost != 2 {
		t.Errorf("got %+v, want the decisions since the generation of a minute ago, the newest first", last)
	}
	if seen[1].Denied.Count != 2 || len(tr.Seen("bob")) != 0 {
		t.Errorf("got %+v", seen[1].Denied)
	}
}

func TestNilTrackerCountsNothing(t *testing.T) {
	var tr *Tracker
	tr.Record(tr.NewSource("r"), "k", Denied, 1, 0)
	tr.RecordLimit(&penstock.Limit{}, "k", Denied, 1, 0)
	if tr.Seen("k") != nil {
		t.Error("a nil tracker has seen a key")
	}
}

// All memory is allocated in advance: at most 8 MB for the two lists of two sketches.
func TestTrackerMemoryIsBounded(t *testing.T) {
	const perCounter = unsafe.Sizeof(slot{}) + 8 + 8 + 2 + 2 + 4*2
	if total := 4 * DefaultCounters * perCounter; total > 7<<20 {
		t.Errorf("%d bytes", total)
	}
	tr := New(nil)
	source, limit := tr.NewSource("r"), penstock.PerMinute(5)
	n := 0
	keys := strings.Repeat("0123456789", 1000)
	allocs := testing.AllocsPerRun(5000, func() {
		n++
		tr.Record(source, keys[n:n+40], Denied, 1, 0)
		tr.RecordLimit(&limit, keys[n:n+40], Denied, 1, 0)
	})
	if allocs != 0 {
		t.Errorf("%v allocations a decision, want none", allocs)
	}
}

// A flood of new keys, each of them denied, leaves nothing behind but what is allocated once.
func TestTrackerStaysSmallInAFlood(t *testing.T) {
	keys := 10_000_000
	if testing.Short() {
		keys = fixedseed.FewerUnderRace(keys / 50)
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	tr := New(nil)
	source := tr.NewSource("r")
	var key [64]byte
	for i := range keys {
		tr.Record(source, string(strconv.AppendInt(key[:0], int64(i), 10)), Denied, 1, 0)
	}
	if grown := heap() - before; grown > 8<<20 {
		t.Errorf("%d bytes more after %d keys, want at most 8 MB", grown, keys)
	}
	runtime.KeepAlive(tr)
}

func TestTrackerIsSafeForConcurrentUse(t *testing.T) {
	tr := New(&Options{Counters: 16})
	source := tr.NewSource("r")
	var working sync.WaitGroup
	for g := range 4 {
		working.Go(func() {
			for i := range 2000 {
				tr.Record(source, fmt.Sprint(g, i%50), Denied, 1, 0)
				if i%500 == 0 {
					askedOf(tr, nil)
					tr.Seen("0 1")
				}
			}
		})
	}
	working.Wait()
	if s := askedOf(tr, nil); s.Sampling == 1 && s.Total != 8000 {
		t.Errorf("total %d, want 8000", s.Total)
	}
}

func BenchmarkRecord(b *testing.B) {
	keys := make([]string, 1<<20)
	for i := range keys {
		keys[i] = fmt.Sprint("remote_address=10.0.0.", i)
	}
	for name, mask := range map[string]int{"hot": 0, "flood": 1<<20 - 1} {
		b.Run(name, func(b *testing.B) {
			tr := New(nil)
			source := tr.NewSource("r")
			b.ReportAllocs()
			for i := range b.N {
				tr.Record(source, keys[i&mask], Allowed, 1, 0)
			}
		})
	}
}
