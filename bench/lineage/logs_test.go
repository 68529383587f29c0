package lineage

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// The sliding log as a sorted set, by script and by pipeline, and as a hash.

func slidingLog(count int64, period time.Duration) penstock.Limit {
	return penstock.Limit{Algorithm: penstock.SlidingLog, Count: count, Period: period}
}

// rivalLog calls zset-log or hash-log at a time by the caller's clock.
func (tr *rivalTest) rivalLog(rival string, at time.Time, l penstock.Limit) bool {
	tr.Helper()
	return tr.runRival(rival, []string{tr.key("log")}, at.UnixMilli(), l.Period.Milliseconds(), l.Count) == "1"
}

func (tr *rivalTest) zsetPipeline(at time.Time, l penstock.Limit) bool {
	tr.Helper()
	used := tr.runRival("zset-pipeline", []string{tr.key("log")}, at.UnixMilli(), int64(l.Period/time.Second))
	n, err := strconv.ParseInt(used, 10, 64)
	if err != nil {
		tr.Fatal(err)
	}
	return n <= l.Count
}

// checkAgreement makes n calls to a rival and to the store and returns how many were
// granted.
func (tr *rivalTest) checkAgreement(n int, l penstock.Limit, next func(admitted bool), rival func() bool) (granted int) {
	tr.Helper()
	for i := range n {
		got, want := tr.take(l).Allowed, rival()
		if got != want {
			tr.Fatalf("call %d, at %v: the store returns %v, the rival %v", i, tr.now.Format("15:04:05.000"), got, want)
		}
		if got {
			granted++
		}
		next(got)
	}
	if granted == 0 || granted == n {
		tr.Errorf("%d of %d calls were granted: the trace proves little", granted, n)
	}
	return granted
}

// tenth is the step of traces that meet the end of windows of whole seconds.
const tenth = 100 * time.Millisecond

func TestZsetLogAgreesOnDistinctMilliseconds(t *testing.T) {
	tr := newRivalTest(t)
	l := slidingLog(5, 2*time.Second)
	tr.checkAgreement(400, l,
		func(bool) { tr.wait(time.Duration(1+tr.random.IntN(5)) * tenth) },
		func() bool { return tr.rivalLog("zset-log", tr.now, l) })
}

func TestHashLogAgreesOnSharedMilliseconds(t *testing.T) {
	tr := newRivalTest(t)
	l := slidingLog(5, 2*time.Second)
	tr.checkAgreement(400, l,
		func(bool) { tr.wait(time.Duration(tr.random.IntN(6)) * tenth) },
		func() bool { return tr.rivalLog("hash-log", tr.now, l) })
}

func TestZsetPipelineAgreesWhenDeniedCallersWait(t *testing.T) {
	tr := newRivalTest(t)
	l := slidingLog(5, 2*time.Second)
	tr.checkAgreement(400, l,
		func(admitted bool) {
			if tr.wait(time.Duration(1+tr.random.IntN(5)) * tenth); !admitted {
				tr.wait(l.Period)
			}
		},
		func() bool { return tr.zsetPipeline(tr.now, l) })
}

func TestZsetLogCountsMillisecondOnce(t *testing.T) {
	tr := newRivalTest(t)
	l := slidingLog(2, time.Minute)
	tr.checkDiffer("50 calls in one millisecond, 2 a minute",
		countAdmitted(50, func() bool { return tr.rivalLog("zset-log", tr.now, l) }), 50,
		countAdmitted(50, func() bool { return tr.take(l).Allowed }), 2)
	if n := tr.number("ZCARD", tr.key("log")); n != 1 {
		t.Errorf("the sorted set has %d members after 50 calls in one millisecond, want 1", n)
	}
}

func TestZsetPipelineCountsMillisecondOnce(t *testing.T) {
	tr := newRivalTest(t)
	l := slidingLog(5, time.Minute)
	tr.checkDiffer("100 calls in one millisecond, 5 a minute",
		countAdmitted(100, func() bool { return tr.zsetPipeline(tr.now, l) }), 100,
		countAdmitted(100, func() bool { return tr.take(l).Allowed }), 5)
}

func TestZsetPipelineDeniedRetriesExtendWait(t *testing.T) {
	tr := newRivalTest(t)
	l := slidingLog(5, 10*time.Second)
	rival, store := 0, 0
	for range 120 {
		rival += countAdmitted(1, func() bool { return tr.zsetPipeline(tr.now, l) })
		store += countAdmitted(1, func() bool { return tr.take(l).Allowed })
		tr.wait(time.Second)
	}
	tr.checkDiffer("one call a second for two minutes, 5 in 10 s", rival, 5, store, 60)
}

func TestZsetPipelineGrowsWithDenials(t *testing.T) {
	tr := newRivalTest(t)
	l := slidingLog(5, 10*time.Second)
	rival, store := 0, 0
	for range 1000 {
		rival += countAdmitted(1, func() bool { return tr.zsetPipeline(tr.now, l) })
		store += countAdmitted(1, func() bool { return tr.take(l).Allowed })
		tr.wait(time.Millisecond)
	}
	tr.checkSame("1000 calls in a second, 5 in 10 s", rival, store, 5)
	if n := tr.number("ZCARD", tr.key("log")); n != 1000 {
		t.Errorf("the sorted set has %d members, want one for each call: 1000", n)
	}
	if n := tr.number("STRLEN", tr.storeKeys()[0]); n != 4*5 {
		t.Errorf("the store's log takes %d bytes, want 4 for each of 5", n)
	}
}

func TestLogsExpireMillisecondsAsSeconds(t *testing.T) {
	for _, rival := range []string{"zset-log", "hash-log"} {
		t.Run(rival, func(t *testing.T) {
			tr := newRivalTest(t)
			l := slidingLog(5, 30*time.Second)
			if !tr.rivalLog(rival, tr.now, l) || !tr.take(l).Allowed {
				t.Fatal("the first of 5 was denied")
			}
			if got, want := tr.ttl(tr.key("log")), 30_000*time.Second; got != want {
				t.Errorf("a window of %v in milliseconds: the rival's key lives for %v, want %v", l.Period, got, want)
			}
			if got := tr.ttl(tr.storeKeys()[0]); got != l.Period {
				t.Errorf("a window of %v: the store's key lives for %v, want the same", l.Period, got)
			}
		})
	}
}

func TestLogsFastClockDropsEntries(t *testing.T) {
	for _, rival := range []string{"zset-log", "hash-log"} {
		t.Run(rival, func(t *testing.T) {
			tr := newRivalTest(t)
			l := slidingLog(5, 10*time.Second)
			spend := func(n int) (byRival, byStore int) {
				for range n {
					tr.wait(time.Millisecond)
					byRival += countAdmitted(1, func() bool { return tr.rivalLog(rival, tr.now, l) })
					byStore += countAdmitted(1, func() bool { return tr.take(l).Allowed })
				}
				return byRival, byStore
			}
			byRival, byStore := spend(6)
			tr.checkSame("6 calls, 5 in 10 s", byRival, byStore, 5)

			ahead := tr.rivalLog(rival, tr.now.Add(11*time.Second), l)
			tr.checkDiffer("then one by a client 11 s ahead", countAdmitted(1, func() bool { return ahead }), 1,
				countAdmitted(1, func() bool { return tr.take(l).Allowed }), 0)

			byRival, byStore = spend(5)
			tr.checkDiffer("and 5 by the other clients", byRival, 4, byStore, 0)
		})
	}
}

func TestLogsClockHourAheadLocksOutAll(t *testing.T) {
	for _, rival := range []string{"zset-log", "hash-log"} {
		t.Run(rival, func(t *testing.T) {
			tr := newRivalTest(t)
			l := slidingLog(5, 10*time.Second)
			for range 5 {
				tr.wait(time.Millisecond)
				if !tr.rivalLog(rival, tr.now.Add(time.Hour), l) || !tr.take(l).Allowed {
					t.Fatal("one of the first 5 was denied")
				}
			}
			tr.wait(20 * time.Second)
			tr.checkDiffer("20 s after a client an hour ahead has used 5 in 10 s",
				countAdmitted(1, func() bool { return tr.rivalLog(rival, tr.now, l) }), 0,
				countAdmitted(1, func() bool { return tr.take(l).Allowed }), 1)
		})
	}
}

func TestHashLogCannotExpireManyEntries(t *testing.T) {
	tr := newRivalTest(t)
	l := slidingLog(10_000, 10*time.Second)
	// The result of 9000 calls in as many milliseconds.
	tr.command("EVAL", `for i = 0, 8999 do redis.call('HSET', KEYS[1], ARGV[1] + i, 1) end redis.call('EXPIRE', KEYS[1], 10000)`,
		1, tr.key("log"), tr.now.UnixMilli())
	if d := tr.request(penstock.Request{Limit: l, Cost: 9000}); d.Granted != 9000 {
		t.Fatalf("9000 of 10,000: %+v", d)
	}
	for _, later := range []time.Duration{20 * time.Second, time.Hour} {
		tr.wait(later)
		_, err := tr.eval(readRival(t, "hash-log"), []string{tr.key("log")}, tr.now.UnixMilli(), l.Period.Milliseconds(), l.Count)
		if err == nil {
			t.Errorf("%v later the hash-log succeeds, although it cannot unpack 9000 fields", later)
		}
		if d := tr.take(l); d.Remaining != l.Count-1 {
			t.Errorf("%v later the store returns %+v, want all but one of %d remaining", later, d, l.Count)
		}
	}
}

func TestSlidingLogUsesThirdOfZset(t *testing.T) {
	for _, n := range []int64{100, 1000} {
		tr := newRivalTest(t)
		l := slidingLog(n, time.Hour)
		tr.command("EVAL", `for i = 1, ARGV[2] do redis.call('ZADD', KEYS[1], ARGV[1] + i, ARGV[1] + i) end redis.call('EXPIRE', KEYS[1], 3600)`,
			1, tr.key("log"), tr.now.UnixMilli(), n)
		for range 10 {
			tr.wait(time.Millisecond)
			tr.request(penstock.Request{Limit: l, Cost: n / 10})
		}
		zset, own := tr.number("MEMORY", "USAGE", tr.key("log"), "SAMPLES", 0), tr.number("MEMORY", "USAGE", tr.storeKeys()[0])
		if 3*own > zset {
			t.Errorf("%d moments take %d bytes, and %d in a sorted set: want a third or less", n, own, zset)
		}
	}
}

// The hash-log with hours instead of milliseconds as fields: a day takes at most 24.
func TestRollingWindowStoresOneCountPerBucket(t *testing.T) {
	tr := newRivalTest(t)
	l := penstock.Limit{Algorithm: penstock.RollingWindow, Count: 1000, Period: 24 * time.Hour, Buckets: 24}
	for range 100 {
		if d := tr.request(penstock.Request{Limit: l, Cost: 3}); !d.Allowed {
			t.Fatalf("3 of 1000 a day, for the hundredth time: %+v", d)
		}
		tr.wait(10 * time.Minute)
	}
	if n := tr.number("MEMORY", "USAGE", tr.storeKeys()[0]); n > 250 {
		t.Errorf("100 moments in 17 hours take %d bytes, want as many as 17 counts need", n)
	}
}

func TestSlidingLogRejectsMillionEntries(t *testing.T) {
	tr := newRivalTest(t)
	l := slidingLog(1_000_000, time.Minute)
	if _, err := tr.store.Take(context.Background(), penstock.Request{Key: "key", Limit: l, Cost: 1}); err == nil {
		t.Errorf("%s: a log of a million moments was accepted", l)
	}
	window := l.WithAlgorithm(penstock.SlidingWindow)
	if d := tr.request(penstock.Request{Limit: window, Cost: 1_000_000}); !d.Allowed {
		t.Errorf("%s: %+v", window, d)
	}
	if n := tr.number("MEMORY", "USAGE", tr.storeKeys()[0]); n > 150 {
		t.Errorf("%s takes %d bytes, want as many as two counts need", window, n)
	}
}

func TestSlidingLogKeysAreSeparate(t *testing.T) {
	tr := newRivalTest(t)
	l := slidingLog(1, time.Minute)
	for _, key := range []string{"hist:ann:reply", "hist:ann:post", "hist:bob:reply", fmt.Sprint("hist:", 5)} {
		if d := tr.request(penstock.Request{Key: key, Limit: l, Cost: 1}); !d.Allowed {
			t.Errorf("%s was denied its first request: %+v", key, d)
		}
		if d := tr.request(penstock.Request{Key: key, Limit: l, Cost: 1}); d.Allowed {
			t.Errorf("%s was granted a second of one a minute: %+v", key, d)
		}
	}
}
