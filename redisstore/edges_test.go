package redisstore_test

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
)

// These are the agreements that chance does not find.

func newStorePair(t *testing.T) *storePair {
	w := &storePair{T: t, random: rand.New(rand.NewPCG(1, 2)), redis: open(t, fakeClockServer, redisstore.Options{})}
	w.memory = penstock.NewMemory(&penstock.MemoryOptions{
		Now: func() time.Time { return w.now }, Tick: time.Millisecond,
	})
	w.newRound()
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.trace.String())
		}
	})
	return w
}

// compareOne asks both stores, and compares.
func (w *storePair) compareOne(r penstock.Request) {
	w.Helper()
	if r.Key == "" {
		r.Key = w.keys[0]
	}
	if w.compare(w.take(r)); w.Failed() {
		w.FailNow()
	}
}

func (w *storePair) wait(d time.Duration) { w.setClock(w.now.Add(d.Truncate(time.Millisecond))) }

func TestReservationEndSurvivesClockStepBack(t *testing.T) {
	w := newStorePair(t)
	l := penstock.PerSecond(10)
	w.compareOne(penstock.Request{Limit: l, Cost: 10})
	w.compareOne(penstock.Request{Limit: l, Cost: 10, MaxDelay: time.Minute})
	w.wait(1500 * time.Millisecond)
	w.compareOne(penstock.Request{Limit: l, Cost: 0}) // nothing is reserved any more
	w.wait(-1200 * time.Millisecond)
	w.compareOne(penstock.Request{Limit: l, Cost: 1}) // so this owes what the bucket holds
	w.compareOne(penstock.Request{Limit: l, Cost: 0})
}

func TestBucketDebtSurvivesUnitChange(t *testing.T) {
	w := newStorePair(t)
	short := penstock.Limit{Name: "bucket", Count: 7, Period: time.Second, Burst: 100}
	long := penstock.Limit{Name: "bucket", Count: 10, Period: 300 * 24 * time.Hour}
	for cost := range int64(30) {
		w.newRound()
		w.compareOne(penstock.Request{Limit: short, Cost: cost + 1}) // in nanoseconds, not in whole microseconds
		w.compareOne(penstock.Request{Limit: long, Cost: 9})         // in microseconds
		w.compareOne(penstock.Request{Limit: long, Cost: -1})
		w.wait(29 * 24 * time.Hour)
		w.compareOne(penstock.Request{Limit: long, Cost: 5, MaxDelay: 400 * 24 * time.Hour})
		w.compareOne(penstock.Request{Limit: long, Cost: 0})
		w.compareOne(penstock.Request{Limit: short, Cost: 1}) // owes what the shorter one holds
	}
}

// A look under a limit whose debt is counted in microseconds does not round what
// was owed in nanoseconds.
func TestPeekUnderLongLimitKeepsNanoseconds(t *testing.T) {
	w := newStorePair(t)
	for _, a := range []penstock.Algorithm{penstock.TokenBucket, penstock.LeakyBucket} {
		quick := penstock.Limit{Name: "bucket", Algorithm: a, Count: 50_000_000, Period: 27 * time.Second, Burst: 600}
		long := penstock.Limit{Name: "bucket", Algorithm: a, Count: 9138, Period: 190 * time.Hour, Burst: 476_774}
		for cost := range int64(40) {
			w.newRound()
			w.compareOne(penstock.Request{Limit: quick, Cost: cost + 1})
			w.compareOne(penstock.Request{Limit: long, Cost: 0})
			w.compareOne(penstock.Request{Limit: long, Cost: 476_774}) // which does not fit
			w.compareOne(penstock.Request{Limit: quick, Cost: 0})
		}
	}
}

// What was granted under an ID may be more than the limit that has taken its place
// can count to. All of it is given back, and then it is as if it had never been.
func TestRefundByIDUnderLoweredLimit(t *testing.T) {
	w := newStorePair(t)
	for a := range penstock.SlidingLog + 1 {
		high := penstock.Limit{Name: "lowered", Algorithm: a, Count: 10_000, Period: time.Minute}
		low := high
		low.Count = 3
		for _, delay := range []time.Duration{0, time.Minute} {
			w.newRound()
			w.compareOne(penstock.Request{Limit: high, Cost: 5000})
			w.compareOne(penstock.Request{Limit: high, Cost: 4999, ID: "y", MaxDelay: delay})
			w.compareOne(penstock.Request{Limit: low, Cost: -1, ID: "z"})
			w.compareOne(penstock.Request{Limit: low, Cost: -9000, ID: "y"})
			w.compareOne(penstock.Request{Limit: low, Cost: 2, ID: "y"})
			w.compareOne(penstock.Request{Limit: low, Cost: -1, ID: "y"})
			w.compareOne(penstock.Request{Limit: low, Cost: -1, ID: "y"}) // which can be done once
			w.compareOne(penstock.Request{Limit: low, Cost: 0})
		}
	}
}

// A count times a time may be more than a double holds. It shows where the
// quotient is next to a whole number: previous · left ≡ 1 (mod period).
func TestSlidingWindowWeightsExactly(t *testing.T) {
	w := newStorePair(t)
	l := penstock.Limit{Algorithm: penstock.SlidingWindow, Count: 1<<26 - 1, Period: yearly}
	for range 200 {
		w.newRound()
		previous := w.coprime()
		share := previous - inverse(int64(yearly/time.Millisecond), previous)
		left := time.Duration((share*int64(yearly/time.Millisecond) + 1) / previous)
		w.compareOne(penstock.Request{Limit: l, Cost: previous})
		w.wait(2*yearly - left*time.Millisecond)
		w.compareOne(penstock.Request{Limit: l, Cost: 0})
		w.compareOne(penstock.Request{Limit: l, Cost: 1<<26 - 1 - share}) // one too many
		w.compareOne(penstock.Request{Limit: l, Cost: 1<<26 - 2 - share})
	}
}

// The same where a limit is lowered: count · period ≡ -1 (mod left).
func TestSlidingWindowClampsExactly(t *testing.T) {
	w := newStorePair(t)
	l := penstock.Limit{Name: "lowered", Algorithm: penstock.SlidingWindow, Count: 1<<26 - 1, Period: yearly}
	for range 200 {
		w.newRound()
		above := w.coprime()
		lower := l
		lower.Count = above - inverse(int64(yearly/time.Millisecond), above)
		left := time.Duration((lower.Count*int64(yearly/time.Millisecond) + 1) / above)
		w.compareOne(penstock.Request{Limit: l, Cost: 1<<26 - 1})
		w.wait(2*yearly - left*time.Millisecond)
		w.compareOne(penstock.Request{Limit: lower, Cost: 1})
		w.wait(time.Hour)
		w.compareOne(penstock.Request{Limit: lower, Cost: 0})
	}
}

const yearly = 347 * 24 * time.Hour

// coprime returns a large count that shares no divisor with the period.
func (w *storePair) coprime() int64 {
	for {
		n := 1<<25 + w.random.Int64N(1<<25-1)
		if inverse(int64(yearly/time.Millisecond), n) != 0 {
			return n
		}
	}
}

// inverse returns x such that a · x ≡ 1 (mod n), or 0 if there is none.
func inverse(a, n int64) int64 {
	x := new(big.Int).ModInverse(big.NewInt(a), big.NewInt(n))
	if x == nil {
		return 0
	}
	return x.Int64()
}

// A grant is reversed by as many units as are asked back, also when the limit has
// become much smaller since than what was granted.
func TestRefundByIDUnderSmallerBucket(t *testing.T) {
	w := newStorePair(t)
	large := penstock.Limit{Name: "bucket", Count: 1000, Period: 786 * time.Hour}
	for _, small := range []penstock.Limit{
		{Name: "bucket", Count: 58, Period: 125 * time.Hour, Burst: 1},
		{Name: "bucket", Count: 1, Period: 366 * 24 * time.Hour},
	} {
		w.newRound()
		w.compareOne(penstock.Request{Limit: large, Cost: 900, ID: "y"})
		w.compareOne(penstock.Request{Limit: small, Cost: -700, ID: "y"})
		w.compareOne(penstock.Request{Limit: small, Cost: 1, ID: "y"}) // 200 are still granted
	}
}

// The ends of aligned windows are written in ten digits of seconds, or otherwise
// where those do not hold them.
func TestAlignedWindowDistantYears(t *testing.T) {
	l := penstock.PerMinute(10).WithAlgorithm(penstock.FixedWindow)
	l.Align = penstock.AlignClock
	for _, year := range []int{1975, 2000, 2002, 2261, 2270} {
		store := open(t, fakeClockServer, redisstore.Options{})
		fakeClockServer.Clock.Set(time.Date(year, 5, 6, 7, 8, 9, 0, time.UTC))
		for _, want := range []int64{9, 8, 7} {
			if d := take(t, store, penstock.Request{Key: "k", Limit: l, Cost: 1}); d.Remaining != want || d.ResetAfter != 51*time.Second {
				t.Errorf("in %d: got %+v, want %d left for 51 s", year, d, want)
			}
		}
	}
}

// A window that is over counts again when the clock steps back into it, unless
// everything was given back meanwhile.
func TestResetClearsEndedWindow(t *testing.T) {
	store, now := open(t, fakeClockServer, redisstore.Options{}), time.Date(2034, 5, 6, 7, 8, 9, 0, time.UTC)
	l := penstock.PerHour(10).WithAlgorithm(penstock.FixedWindow)
	l.Align = penstock.AlignClock
	kept := 0
	for i := range 100 { // of which one in eleven expires with its window
		forgotten, other := fmt.Sprint("forgotten", i), fmt.Sprint("other", i)
		fakeClockServer.Clock.Set(now)
		take(t, store, penstock.Request{Key: forgotten, Limit: l, Cost: 4})
		take(t, store, penstock.Request{Key: other, Limit: l, Cost: 4})
		fakeClockServer.Clock.Set(now.Truncate(time.Hour).Add(time.Hour))
		take(t, store, penstock.Request{Key: forgotten, Limit: l, Cost: penstock.Reset})
		take(t, store, penstock.Request{Key: other, Limit: l, Cost: -1})
		fakeClockServer.Clock.Set(now)
		if d := take(t, store, penstock.Request{Key: forgotten, Limit: l}); d.Remaining != 10 {
			t.Fatalf("got %+v, want all of it back", d)
		}
		if d := take(t, store, penstock.Request{Key: other, Limit: l}); d.Remaining == 6 {
			kept++
		}
	}
	if kept < 50 {
		t.Errorf("%d of 100 windows counted again, want most of them", kept)
	}
}
