package lineage

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
)

// The fixed and the rolling window of Istio's redisquota.

// A quota has the arguments of Istio's scripts.
type quota struct {
	key, id        string
	credit, cost   int64
	window, bucket time.Duration
	bestEffort     bool
	at             time.Time // by the caller's clock
}

// The scripts use nanoseconds since 1970, which Lua holds in multiples of 256 only.
// Traces in steps of istioStep are exact all the same.
const istioStep = 4 * time.Millisecond

// istio calls one of Istio's scripts, for one unit by default.
func (tr *rivalTest) istio(script string, q quota) (granted int64, valid time.Duration) {
	tr.Helper()
	if q.key == "" {
		q.key = tr.key("quota")
	}
	if q.cost == 0 {
		q.cost = 1
	}
	if q.at.IsZero() {
		q.at = tr.now
	}
	bestEffort := 0
	if q.bestEffort {
		bestEffort = 1
	}
	answer, err := tr.eval(script, []string{q.key, q.key + "-data"},
		q.credit, q.window.Nanoseconds(), q.bucket.Nanoseconds(), bestEffort, q.cost, q.at.UnixNano(), q.id)
	if err != nil {
		tr.Fatalf("%+v: %v", q, err)
	}
	first, second, _ := strings.Cut(answer, "\n")
	granted, err = strconv.ParseInt(first, 10, 64)
	if err != nil {
		tr.Fatalf("%+v: %q: %v", q, answer, err)
	}
	nanos, err := strconv.ParseInt(second, 10, 64)
	if err != nil {
		tr.Fatalf("%+v: %q: %v", q, answer, err)
	}
	return granted, time.Duration(nanos)
}

func fixedWindow(count int64, period time.Duration) penstock.Limit {
	return penstock.Limit{Algorithm: penstock.FixedWindow, Count: count, Period: period}
}

// istioAndStore calls the script and the store and returns the units granted by each.
func (tr *rivalTest) istioAndStore(script string, q quota, l penstock.Limit) (rival, store int) {
	tr.Helper()
	d := tr.request(penstock.Request{Limit: l, Cost: max(q.cost, 1), AtMost: q.bestEffort, ID: q.id})
	granted, _ := tr.istio(script, q)
	return int(granted), int(d.Granted)
}

func TestIstioFixedWindowAgreesOnSynchronizedClocks(t *testing.T) {
	tr := newRivalTest(t)
	script := readRival(t, "istio-fixed-window")
	l := fixedWindow(10, 2*time.Second)
	var ends time.Time
	for i := range 500 {
		q := quota{credit: 10, window: l.Period, cost: 1 + tr.random.Int64N(6), bestEffort: tr.random.IntN(2) == 0}
		d := tr.request(penstock.Request{Limit: l, Cost: q.cost, AtMost: q.bestEffort})
		if !tr.now.Before(ends) {
			ends = tr.now.Add(l.Period)
		}
		granted, valid := tr.istio(script, q)
		if granted != d.Granted || granted > 0 && valid != ends.Sub(tr.now) || granted > 0 && valid != d.ResetAfter {
			t.Fatalf("call %d, %+v, in a window that ends in %v:\nthe script grants %d for %v\nthe store returns %+v",
				i, q, ends.Sub(tr.now), granted, valid, d)
		}
		tr.wait(time.Duration(tr.random.IntN(150)) * istioStep)
	}
}

func TestIstioDeduplicationAgreesWithinWindow(t *testing.T) {
	tr := newRivalTest(t)
	script := readRival(t, "istio-fixed-window")
	l := fixedWindow(10, time.Second)
	for window := range 40 {
		for i := range 8 {
			q := quota{credit: 10, window: l.Period, cost: 1 + tr.random.Int64N(6), bestEffort: tr.random.IntN(2) == 0}
			q.id = fmt.Sprint(window, " ", tr.random.IntN(4))
			if rival, store := tr.istioAndStore(script, q, l); rival != store {
				t.Fatalf("window %d, call %d, %+v: the script grants %d, the store %d", window, i, q, rival, store)
			}
			tr.wait(istioStep)
		}
		tr.wait(l.Period)
	}
}

// A repeated request under an ID that was denied is decided again by both.
func TestIstioDeniedIDIsDecidedAgain(t *testing.T) {
	for _, rival := range []string{"istio-fixed-window", "istio-rolling-window"} {
		tr := newRivalTest(t)
		q := quota{credit: 5, window: 10 * time.Second, bucket: time.Second}
		l := fixedWindow(5, q.window)
		for _, step := range []struct {
			id   string
			cost int64
			want int
		}{{"first", 3, 3}, {"second", 3, 0}, {"second", 2, 2}, {"second", 1, 2}, {"first", 1, 3}} {
			q.id, q.cost = step.id, step.cost
			byScript, byStore := tr.istioAndStore(readRival(t, rival), q, l)
			tr.checkSame(fmt.Sprintf("%s: %d for %s", rival, step.cost, step.id), byScript, byStore, step.want)
		}
	}
}

// Istio's buckets begin with the first request after the end of the last bucket. With a
// request at the start of each bucket they equal a rolling window here with one bucket
// fewer, which counts one bucket more than its Period.
func TestIstioRollingWindowAgreesWithOneBucketFewer(t *testing.T) {
	tr := newRivalTest(t)
	script := readRival(t, "istio-rolling-window")
	const bucket, buckets = 100 * istioStep, 5
	l := penstock.Limit{Algorithm: penstock.RollingWindow, Count: 20, Period: (buckets - 1) * bucket, Buckets: buckets - 1}
	for i := range 150 {
		for at := time.Duration(0); at < bucket; at += time.Duration(1+tr.random.IntN(60)) * istioStep {
			tr.set(time.Unix(1_800_000_000, 0).Add(time.Duration(i)*bucket + at))
			q := quota{credit: 20, window: buckets * bucket, bucket: bucket, cost: 1 + tr.random.Int64N(6), bestEffort: tr.random.IntN(2) == 0}
			if rival, store := tr.istioAndStore(script, q, l); rival != store {
				t.Fatalf("bucket %d, %v after it began, %+v: the script grants %d, the store %d", i, at, q, rival, store)
			}
		}
	}
}

// Units taken at the end of a bucket expire one window after the start of the bucket,
// which is too early.
func TestIstioRollingWindowExceedsCredit(t *testing.T) {
	tr := newRivalTest(t)
	script := readRival(t, "istio-rolling-window")
	q := quota{credit: 6, window: 10 * time.Second, bucket: 5 * time.Second}
	l := penstock.Limit{Algorithm: penstock.RollingWindow, Count: 6, Period: q.window, Buckets: 2}
	rival, store := tr.istioAndStore(script, q, l)
	tr.wait(4900 * time.Millisecond)
	for range 6 {
		d, s := tr.istioAndStore(script, q, l)
		rival, store = rival+d, store+s
	}
	tr.wait(5100 * time.Millisecond)
	for range 6 {
		d, s := tr.istioAndStore(script, q, l)
		rival, store = rival+d, store+s
	}
	tr.checkDiffer("7 calls in 5 s and 6 more 5 s later, 6 in 10 s: the first is gone then, 5 are not", rival, 12, store, 6)
}

func TestIstioWithServerTimeIgnoresClockSkew(t *testing.T) {
	tr := newRivalTest(t)
	script := strings.Replace(readRival(t, "istio-fixed-window"),
		"---------------------------------------- time", readRival(t, "server-time"), 1)
	l := fixedWindow(5, 2*time.Second)
	for i := range 300 {
		skew := time.Duration(tr.random.IntN(7200)-3600) * time.Second
		q := quota{credit: 5, window: l.Period, at: tr.now.Add(skew)}
		if rival, store := tr.istioAndStore(script, q, l); rival != store {
			t.Fatalf("call %d by a caller whose clock is off by %v: the script grants %d, the store %d", i, skew, rival, store)
		}
		tr.wait(time.Duration(tr.random.IntN(150)) * istioStep)
	}
}

func TestIstioFixedWindowRestartsForFastClock(t *testing.T) {
	tr := newRivalTest(t)
	script := readRival(t, "istio-fixed-window")
	q := quota{credit: 1, window: 10 * time.Second}
	l := fixedWindow(1, q.window)
	rival, store := tr.istioAndStore(script, q, l)
	q.at = tr.now.Add(12 * time.Second)
	d, s := tr.istioAndStore(script, q, l)
	tr.checkDiffer("two calls at one instant, one of them by a client 12 s ahead, 1 in 10 s", rival+d, 2, store+s, 1)
}

// With clocks 2 s apart, the windows of the slow clock end 2 s early for the fast one.
// The other way round they do not last 12 s, because the key expires after 10.
func TestIstioFixedWindowShrinksBetweenSkewedClocks(t *testing.T) {
	tr := newRivalTest(t)
	script := readRival(t, "istio-fixed-window")
	q := quota{credit: 5, window: 10 * time.Second, cost: 5}
	l := fixedWindow(5, q.window)
	rival, store := tr.istioAndStore(script, q, l)
	tr.wait(8 * time.Second)
	q.at = tr.now.Add(2 * time.Second)
	d, s := tr.istioAndStore(script, q, l)
	tr.checkDiffer("5 units now, and 5 for a client 2 s ahead 8 s later, 5 in 10 s", rival+d, 10, store+s, 5)

	tr = newRivalTest(t)
	q.at = tr.now.Add(2 * time.Second)
	rival, store = tr.istioAndStore(script, q, l)
	tr.wait(q.window + time.Millisecond)
	q.at = tr.now
	d, s = tr.istioAndStore(script, q, l)
	tr.checkSame("5 units for a client 2 s ahead, and 5 for another 10 s later", rival+d, store+s, 10)
}

func TestIstioOddWindowKeysNeverExpire(t *testing.T) {
	for _, rival := range []string{"istio-fixed-window", "istio-rolling-window"} {
		t.Run(rival, func(t *testing.T) {
			tr := newRivalTest(t)
			window := 1_500_001 * time.Nanosecond
			key := tr.key("quota")
			_, err := tr.eval(readRival(t, rival), []string{key, key + "-data"}, 1, window.Nanoseconds(), 1000, 0, 1, tr.now.UnixNano(), "")
			if err == nil {
				t.Errorf("a window of %v: the script succeeds, although an expiry is in whole milliseconds", window)
			}
			if got := tr.ttl(key); got >= 0 {
				t.Errorf("a window of %v: the script's key lives for %v, want no expiry", window, got)
			}
			l := penstock.Limit{Algorithm: penstock.RollingWindow, Count: 1, Period: window, Buckets: 1}
			for _, l := range []penstock.Limit{fixedWindow(1, window), l} {
				if d := tr.request(penstock.Request{Key: l.Algorithm.String(), Limit: l, Cost: 1}); !d.Allowed || d.ResetAfter < window {
					t.Errorf("%s: %+v, want it allowed, and reset after the window", l, d)
				}
			}
			for _, name := range tr.storeKeys() {
				if got := tr.ttl(name); got <= 0 || got > 10*time.Millisecond {
					t.Errorf("a window of %v: the store's key lives for %v", window, got)
				}
			}
		})
	}
}

func TestIstioForgetsIDAtWindowEnd(t *testing.T) {
	tr := newRivalTest(t)
	script := readRival(t, "istio-fixed-window")
	q := quota{credit: 2, window: 10 * time.Second}
	l := fixedWindow(2, q.window)
	tr.istioAndStore(script, q, l)
	tr.wait(q.window - 200*time.Microsecond)
	q.id = "once"
	rival, store := tr.istioAndStore(script, q, l)
	tr.checkSame("the second of 2, 0.2 ms before the window ends", rival, store, 1)
	rival, store = tr.istioAndStore(script, q, l)
	tr.checkDiffer("the same id again", rival, 0, store, 1)
}

func TestIstioRollingWindowBucketsNeverExpire(t *testing.T) {
	tr := newRivalTest(t)
	script := readRival(t, "istio-rolling-window")
	q := quota{credit: 5, window: 10 * time.Second, bucket: time.Second}
	l := penstock.Limit{Algorithm: penstock.RollingWindow, Count: 5, Period: q.window}
	tr.istioAndStore(script, q, l)
	tr.wait(q.bucket)
	tr.istioAndStore(script, q, l)
	if got := tr.ttl(tr.key("quota")); got != q.window {
		t.Errorf("the script's hash lives for %v, want %v", got, q.window)
	}
	if got := tr.ttl(tr.key("quota-data")); got >= 0 {
		t.Errorf("the script's sorted set lives for %v, want no expiry", got)
	}
	for _, name := range tr.storeKeys() {
		if got := tr.ttl(name); got <= 0 || got > 11*time.Second {
			t.Errorf("the store's key lives for %v, want at most one bucket more than a window", got)
		}
	}
}

// The buckets outlive the hash, which expires by the server's clock. Buckets of a fast
// clock are then refunded to a window in which they were never taken.
func TestIstioRollingWindowRefundsExpiredBuckets(t *testing.T) {
	tr := newRivalTest(t)
	script := readRival(t, "istio-rolling-window")
	q := quota{credit: 5, window: 10 * time.Second, bucket: time.Second}
	l := penstock.Limit{Algorithm: penstock.RollingWindow, Count: 5, Period: q.window}

	q.at, q.cost = tr.now.Add(3*time.Second), 3
	tr.istioAndStore(script, q, l)
	tr.wait(time.Second)
	q.at, q.cost = tr.now.Add(3*time.Second), 1
	tr.istioAndStore(script, q, l)

	tr.wait(11 * time.Second)
	q.at, q.cost = tr.now, 5
	rival, store := tr.istioAndStore(script, q, l)
	tr.wait(2 * time.Second)
	q.at, q.cost = tr.now, 3
	d, s := tr.istioAndStore(script, q, l)
	tr.checkDiffer("5 units, and 3 more 2 s later, 5 in 10 s", rival+d, 8, store+s, 5)
}

func TestIstioConfusesIDs(t *testing.T) {
	for _, rival := range []string{"istio-fixed-window", "istio-rolling-window"} {
		tr := newRivalTest(t)
		script := readRival(t, rival)
		q := quota{credit: 1, window: 10 * time.Second, bucket: time.Second}
		l := fixedWindow(1, q.window)
		call := func(id, key string) (byScript, byStore int) {
			q.key, q.id = key, id
			granted, _ := tr.istio(script, q)
			return int(granted), int(tr.request(penstock.Request{Key: key, Limit: l, Cost: 1, ID: id}).Granted)
		}
		c := tr.key("c")
		call("other", "b-"+c)
		call("a-b", c)
		byScript, byStore := call("a", "b-"+c)
		tr.checkDiffer(rival+": id a on a key b-c that has none left, after id a-b on the key c", byScript, 1, byStore, 0)
	}
}

func TestIstioNegativeCostAddsCredit(t *testing.T) {
	for _, rival := range []string{"istio-fixed-window", "istio-rolling-window"} {
		tr := newRivalTest(t)
		script := readRival(t, rival)
		q := quota{credit: 5, window: 10 * time.Second, bucket: time.Second, cost: -1000}
		l := fixedWindow(5, q.window)
		tr.istio(script, q)
		if d := tr.request(penstock.Request{Limit: l, Cost: -1000}); d.Granted != 0 || d.Remaining != 5 {
			t.Errorf("a refund of 1000 that were never taken: %+v, want no refund", d)
		}
		q.cost = 1000
		byScript, byStore := tr.istioAndStore(script, q, l)
		tr.checkDiffer(rival+": 1000 units after -1000, 5 in 10 s", byScript, 1000, byStore, 0)
	}
}

func TestIstioDenialHasNoRetryAfter(t *testing.T) {
	for _, rival := range []string{"istio-fixed-window", "istio-rolling-window"} {
		tr := newRivalTest(t)
		script := readRival(t, rival)
		q := quota{credit: 1, window: 10 * time.Second, bucket: time.Second}
		l := fixedWindow(1, q.window)
		tr.istioAndStore(script, q, l)
		tr.wait(4 * time.Second)
		if granted, valid := tr.istio(script, q); granted != 0 || valid != 0 {
			t.Errorf("%s: a denial says {%d, %v}, want {0, 0}", rival, granted, valid)
		}
		if d := tr.take(l); d.Allowed || d.RetryAfter != 6*time.Second {
			t.Errorf("%s: a denial 4 s into a window of 10: %+v, want RetryAfter 6s", l, d)
		}
	}
}

// In a Cluster a script may use only the keys of its call. Istio's script makes up a
// key for each id, which is often on another node.
func TestIstioUsesUndeclaredKeys(t *testing.T) {
	t.Parallel()
	node, key := startHalfCluster(t)
	failed, script := 0, readRival(t, "istio-fixed-window")
	for id := range 100 {
		now := fmt.Sprint(time.Now().UnixNano())
		_, err := node.Command("EVAL", script, "1", key, "1000", "10000000000", "0", "0", "1", now, fmt.Sprint("id", id))
		failed += countAdmitted(1, func() bool { return err != nil })
	}
	if failed < 20 || failed > 80 {
		t.Errorf("on a node with half of the slots, %d of 100 calls with an id failed, want about half", failed)
	}

	s := openStore(t, "redis-cluster://"+node.Addr, newPrefix())
	for id := range 100 {
		r := penstock.Request{Key: key, Limit: fixedWindow(1000, time.Hour), Cost: 1, ID: fmt.Sprint("id", id)}
		if d, err := s.Take(context.Background(), r); err != nil || d.Granted != 1 {
			t.Fatalf("%+v: %+v, %v", r, d, err)
		}
	}
}

// startHalfCluster starts a Cluster node with half of the slots, waits until it serves
// them and returns a key in one of them.
func startHalfCluster(t *testing.T) (node *redistest.Server, key string) {
	t.Helper()
	node = redistest.StartForTest(t, redistest.Options{Args: []string{"--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"}})
	redistest.MustCommand(t, node, "CLUSTER", "ADDSLOTSRANGE", "0", "8191")
	redistest.WaitFor(t, "the node serves one of ten keys", func() bool {
		for i := range 10 {
			key = fmt.Sprint("key", i)
			if _, err := node.Command("EXISTS", key); err == nil {
				return true
			}
		}
		return false
	})
	return node, key
}

func TestIstioRoundsNanoseconds(t *testing.T) {
	tr := newRivalTest(t)
	q := quota{credit: 1, window: time.Second, at: tr.now.Add(1001 * time.Nanosecond)}
	tr.istio(readRival(t, "istio-fixed-window"), q)
	stored := tr.command("HGET", tr.key("quota"), "expire")
	end, err := strconv.ParseFloat(stored, 64)
	if err != nil {
		t.Fatal(err)
	}
	if want := q.at.Add(q.window).UnixNano(); !strings.Contains(stored, "e+18") || int64(end) == want {
		t.Errorf("the end of a window is stored as %s, want %d rounded to a multiple of 256", stored, want)
	}
	tr.take(fixedWindow(1, q.window))
	if got := tr.command("GET", tr.storeKeys()[0]); got != "1" {
		t.Errorf("the store's window is %q, want a whole number", got)
	}
}

func TestFixedWindowUsesLessMemoryThanIstio(t *testing.T) {
	tr := newRivalTest(t)
	usage := func(names ...string) (sum int64) {
		for _, name := range names {
			sum += tr.number("MEMORY", "USAGE", name)
		}
		return sum
	}
	tr.request(penstock.Request{Key: "a-name-of-a-user", Limit: fixedWindow(100, 10*time.Second), Cost: 1})
	name := tr.storeKeys()[0]
	own := usage(name)
	// Names of one length, because the size of a name is not what is compared.
	q := quota{credit: 100, window: 10 * time.Second, bucket: time.Second, key: tr.key("")}
	q.key += strings.Repeat("k", len(name)-len(q.key))
	tr.istio(readRival(t, "istio-fixed-window"), q)
	fixed := usage(q.key)
	tr.command("DEL", q.key)
	tr.istio(readRival(t, "istio-rolling-window"), q)
	tr.wait(q.bucket)
	tr.istio(readRival(t, "istio-rolling-window"), q)
	rolling := usage(q.key, q.key+"-data")
	if 3*own > 2*fixed || 3*own > rolling {
		t.Errorf("a fixed window takes %d bytes, Istio's %d and its rolling window %d: want two thirds, and a third, or less", own, fixed, rolling)
	}
}
