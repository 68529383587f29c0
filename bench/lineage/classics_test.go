package lineage

import (
	"context"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// The funnel, redis-cell's reply and the classic algorithms.

// A funnel is the class of that name: it leaks at a constant rate, in each process
// separately.
type funnel struct {
	capacity, rate, left float64
	leaked               time.Time
}

func newFunnel(capacity, rate float64, now time.Time) *funnel {
	return &funnel{capacity: capacity, rate: rate, left: capacity, leaked: now}
}

// take leaks whole units and takes one.
func (f *funnel) take(now time.Time) bool {
	if room := now.Sub(f.leaked).Seconds() * f.rate; room >= 1 {
		f.left, f.leaked = min(f.left+room, f.capacity), now
	}
	if f.left < 1 {
		return false
	}
	f.left--
	return true
}

// replies is 30 a minute, 15 at once.
func replies() penstock.Limit { return penstock.PerMinute(30).WithBurst(15) }

func TestFunnelAgreesOnWholeUnits(t *testing.T) {
	tr := newRivalTest(t)
	f := newFunnel(15, 0.5, tr.now)
	tr.checkAgreement(400, replies(),
		func(bool) { tr.wait(time.Duration(tr.random.IntN(5)/2*2) * time.Second) },
		func() bool { return f.take(tr.now) })
}

func TestFunnelAdmitsFifteenOfTwentyReplies(t *testing.T) {
	tr := newRivalTest(t)
	f := newFunnel(15, 0.5, tr.now)
	tr.checkSame("20 calls at once, 30 a minute and 15 at once",
		countAdmitted(20, func() bool { return f.take(tr.now) }),
		countAdmitted(20, func() bool { return tr.take(replies()).Allowed }), 15)
}

func TestFunnelDelaysDueUnit(t *testing.T) {
	tr := newRivalTest(t)
	f := newFunnel(15, 0.5, tr.now)
	both := func() (rival, store int) {
		return countAdmitted(1, func() bool { return f.take(tr.now) }), countAdmitted(1, func() bool { return tr.take(replies()).Allowed })
	}
	for range 15 {
		both()
	}
	tr.wait(3 * time.Second)
	rival, store := both()
	tr.checkSame("one, 3 s after all was taken, when 1.5 have leaked", rival, store, 1)
	tr.wait(time.Second)
	rival, store = both()
	tr.checkDiffer("another a second later, when 2 have leaked", rival, 0, store, 1)
}

func TestFunnelPerProcessAdmitsDouble(t *testing.T) {
	tr := newRivalTest(t)
	rival, store := 0, 0
	for range 2 {
		f, process := newFunnel(15, 0.5, tr.now), newRivalTest(t)
		process.store = tr.openAnother()
		rival += countAdmitted(20, func() bool { return f.take(tr.now) })
		store += countAdmitted(20, func() bool { return process.take(replies()).Allowed })
	}
	tr.checkDiffer("20 calls in each of two processes, 15 at once", rival, 30, store, 15)
}

// CL.THROTTLE dayueba:reply 15 30 60 is answered with 0, 15, 14, -1, 2.
func TestRedisCellReplyMapsToDecision(t *testing.T) {
	tr := newRivalTest(t)
	want := penstock.Decision{Allowed: true, Granted: 1, Limit: 15, Remaining: 14, ResetAfter: 2 * time.Second}
	if got := tr.take(replies()); got != want {
		t.Errorf("the first of 15 at once:\n got %+v\nwant %+v", got, want)
	}
	tr.request(penstock.Request{Limit: replies(), Cost: 14})
	want = penstock.Decision{Limit: 15, RetryAfter: 2 * time.Second, ResetAfter: 30 * time.Second}
	if got := tr.take(replies()); got != want {
		t.Errorf("one more than 15 at once:\n got %+v\nwant %+v", got, want)
	}
	tr.wait(want.RetryAfter)
	if d := tr.take(replies()); !d.Allowed {
		t.Errorf("after RetryAfter: %+v", d)
	}
}

// 100 a second: one request at the start of a window, and 200 in the second around its
// end.
func TestWindowEdgeCountersAdmitMoreThanLogs(t *testing.T) {
	for _, step := range []struct {
		algorithm penstock.Algorithm
		want      int
	}{
		{penstock.FixedWindow, 199}, {penstock.SlidingWindow, 148}, {penstock.RollingWindow, 100}, {penstock.SlidingLog, 100},
	} {
		tr := newRivalTest(t)
		tr.set(time.Unix(1_800_000_000, 0))
		l := penstock.Limit{Algorithm: step.algorithm, Count: 100, Period: time.Second}
		if l.Algorithm == penstock.FixedWindow {
			l.Align = penstock.AlignClock
		}
		tr.take(l)
		granted := 0
		for _, wait := range []time.Duration{500, 499, 1, 499} {
			tr.wait(wait * time.Millisecond)
			granted += countAdmitted(50, func() bool { return tr.take(l).Allowed })
		}
		if granted != step.want {
			t.Errorf("%s: 200 calls within a second across an edge: %d granted, want %d", l, granted, step.want)
		}
	}
}

// Sentinel's example: a second in 2 and in 10 buckets, with 600 requests in its first
// half and 500 in the second. Long buckets drop many of the 1100 at once. A window
// here counts one bucket more than its Period, so the Period is one bucket shorter.
func TestRollingWindowMoreBucketsExpireSmoothly(t *testing.T) {
	for buckets, want := range map[int]int64{2: 501, 10: 981} {
		tr := newRivalTest(t)
		length := time.Second / time.Duration(buckets)
		l := penstock.Limit{Algorithm: penstock.RollingWindow, Count: 10_000, Period: time.Second - length, Buckets: buckets - 1}
		for tenth := range 10 {
			tr.set(time.Unix(1_800_000_001, 0).Add(time.Duration(tenth) * 100 * time.Millisecond))
			tr.request(penstock.Request{Limit: l, Cost: []int64{120, 100}[tenth/5]})
		}
		if d := tr.request(penstock.Request{Limit: l}); l.Count-d.Remaining != 1100 {
			t.Errorf("%d buckets: %d are counted after a second, want 1100", buckets, l.Count-d.Remaining)
		}
		tr.set(time.Unix(1_800_000_002, 0))
		if d := tr.take(l); l.Count-d.Remaining != want {
			t.Errorf("%d buckets: one more, and %d are counted, want %d", buckets, l.Count-d.Remaining, want)
		}
	}
}

// uber-go/ratelimit: requests leave at an even pace, and a full queue denies.
func TestLeakyBucketDrainsEvenly(t *testing.T) {
	tr := newRivalTest(t)
	l := penstock.Limit{Algorithm: penstock.LeakyBucket, Count: 10, Period: time.Second, Burst: 5}
	for i := range 5 {
		if d := tr.take(l); !d.Allowed || d.Delay != time.Duration(i)*100*time.Millisecond {
			t.Errorf("call %d: %+v, want a delay of %d ms", i, d, 100*i)
		}
	}
	if d := tr.take(l); d.Allowed {
		t.Errorf("one more than the queue holds: %+v", d)
	}
	tr.wait(time.Hour)
	if d := tr.take(l); d.Delay != 0 {
		t.Errorf("after an hour of rest: %+v, want no delay", d)
	}
	if d := tr.take(l); d.Delay != 100*time.Millisecond {
		t.Errorf("and the next: %+v, want 100 ms: idle time is not saved up", d)
	}
}

// x/time/rate: unused units accumulate up to the burst and can be spent at once.
func TestTokenBucketSavesUpToBurst(t *testing.T) {
	tr := newRivalTest(t)
	l := penstock.PerSecond(10).WithBurst(5)
	for _, rest := range []time.Duration{0, 300 * time.Millisecond, time.Hour} {
		tr.wait(rest)
		want := min(5, int(rest/(100*time.Millisecond)))
		if rest == 0 {
			want = 5
		}
		if n := countAdmitted(20, func() bool { return tr.take(l).Allowed }); n != want {
			t.Errorf("20 calls after %v of rest: %d granted, want %d", rest, n, want)
		}
	}
}

// x/time/rate's Reserve, across processes.
func TestReservationsQueueAcrossProcesses(t *testing.T) {
	tr := newRivalTest(t)
	l := penstock.PerSecond(10).WithBurst(1)
	for i := range 4 {
		lim, err := penstock.New(tr.openAnother(), l)
		if err != nil {
			t.Fatal(err)
		}
		r, err := lim.Reserve(context.Background(), "key")
		if err != nil {
			t.Fatal(err)
		}
		if got, want := r.Decision().Delay, time.Duration(i)*100*time.Millisecond; got != want {
			t.Errorf("reservation %d: hold it for %v, want %v", i, got, want)
		}
	}
}
