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

// These tests compare Redis with memory in cases that random requests do not find.

func newStorePair(t *testing.T) *storePair {
	w := &storePair{T: t, random: rand.New(rand.NewPCG(1, 2)), redis: openFakeClock(t, redisstore.Options{})}
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

// compareOne sends a request to both stores and compares the decisions.
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
	w.compareOne(penstock.Request{Limit: l, Cost: 0}) // nothing is reserved anymore
	w.wait(-1200 * time.Millisecond)
	w.compareOne(penstock.Request{Limit: l, Cost: 1}) // the debt is more than the whole bucket again
	w.compareOne(penstock.Request{Limit: l, Cost: 0})
	w.wait(1200 * time.Millisecond)
	w.compareOne(penstock.Request{Limit: l, Cost: 1}) // nothing is marked as reserved anymore
	w.wait(-1200 * time.Millisecond)
	w.compareOne(penstock.Request{Limit: l, Cost: 1}) // the debt is the whole bucket
}

func TestBucketDebtSurvivesUnitChange(t *testing.T) {
	w := newStorePair(t)
	short := penstock.Limit{Name: "bucket", Count: 7, Period: time.Second, Burst: 100}
	long := penstock.Limit{Name: "bucket", Count: 10, Period: 300 * 24 * time.Hour}
	for cost := range int64(30) {
		w.newRound()
		w.compareOne(penstock.Request{Limit: short, Cost: cost + 1}) // debt in nanoseconds, not whole microseconds
		w.compareOne(penstock.Request{Limit: long, Cost: 9})         // debt in microseconds
		w.compareOne(penstock.Request{Limit: long, Cost: -1})
		w.wait(29 * 24 * time.Hour)
		w.compareOne(penstock.Request{Limit: long, Cost: 5, MaxDelay: 400 * 24 * time.Hour})
		w.compareOne(penstock.Request{Limit: long, Cost: 0})
		w.compareOne(penstock.Request{Limit: short, Cost: 1}) // the debt is clamped to the smaller bucket
	}
}

// A peek under a limit that counts debt in microseconds does not round a debt in
// nanoseconds.
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

// A charge or refund under a limit that counts debt in microseconds keeps the nanoseconds
// of a debt, for when the limit counts in nanoseconds again.
func TestChargeUnderLongLimitKeepsNanoseconds(t *testing.T) {
	w := newStorePair(t)
	for _, a := range []penstock.Algorithm{penstock.TokenBucket, penstock.LeakyBucket} {
		quick := penstock.Limit{Name: "bucket", Algorithm: a, Count: 1e9, Period: 7 * time.Second, Burst: 6e14}
		long := penstock.Limit{Name: "bucket", Algorithm: a, Count: 100_000, Period: 300 * 24 * time.Hour, Burst: 20_000}
		for cost := range int64(3) {
			w.newRound()
			for _, r := range []penstock.Request{
				{Limit: quick, Cost: 1e9 + cost},
				{Limit: long, Cost: 3},
				{Limit: long, Cost: 2, ID: "x"},
				{Limit: long, Cost: -1, ID: "x"},
				{Limit: long, Cost: -1},
				{Limit: long, Cost: 40_000, Overdraw: true},
				{Limit: long, Cost: -39_000},
			} {
				w.compareOne(r)
				w.wait(time.Millisecond)
				w.compareOne(penstock.Request{Limit: long})
				w.compareOne(penstock.Request{Limit: quick})
			}
			w.compareOne(penstock.Request{Limit: quick, Cost: 1 + cost})
		}
	}
}

// Debts that are paid or clamped have no part of a microsecond left.
func TestBucketDropsPartsOfMicroseconds(t *testing.T) {
	w := newStorePair(t)
	quick := penstock.Limit{Name: "bucket", Count: 1e9, Period: 7 * time.Second, Burst: 6e14}
	long := penstock.Limit{Name: "bucket", Count: 1e6, Period: time.Second, Burst: 1e15}
	short := penstock.Limit{Name: "bucket", Count: 10, Period: 10 * time.Millisecond}
	for _, wait := range []time.Duration{0, time.Millisecond, 11 * time.Millisecond, -time.Hour} {
		for _, clamp := range []penstock.Limit{quick, long, short} {
			w.newRound()
			w.compareOne(penstock.Request{Limit: quick, Cost: 101})
			w.compareOne(penstock.Request{Limit: long, Cost: 999})
			w.wait(wait)
			w.compareOne(penstock.Request{Limit: clamp, Cost: 1})
			w.compareOne(penstock.Request{Limit: long, Cost: 1})
			w.compareOne(penstock.Request{Limit: quick})
		}
	}
}

// After a long step back, a debt in nanoseconds exceeds what a double holds exactly.
func TestLongLimitReadsNanosecondsExactlyAfterStepBack(t *testing.T) {
	w := newStorePair(t)
	quick := penstock.Limit{Name: "bucket", Count: 1e9, Period: 7 * time.Second, Burst: 6e14}
	long := penstock.Limit{Name: "bucket", Count: 1e6, Period: time.Second, Burst: 2e15}
	for cost := int64(140); cost < 150; cost++ { // 7 · 143 is 1001
		for days := time.Duration(200); days < 1000; days += 300 {
			w.newRound()
			w.compareOne(penstock.Request{Limit: quick, Cost: cost})
			w.wait(-days * 24 * time.Hour)
			w.compareOne(penstock.Request{Limit: long})
			w.compareOne(penstock.Request{Limit: long, Cost: 1})
			w.compareOne(penstock.Request{Limit: long})
		}
	}
}

// Twice the time to fill the largest bucket in nanoseconds is next to the largest number
// that a double holds exactly.
func TestLargestBucketInNanosecondsIsExact(t *testing.T) {
	w := newStorePair(t)
	largest := penstock.Limit{Count: 1e9, Period: 7 * time.Second, Burst: (1<<52 - 1) / 7}
	for _, a := range []penstock.Algorithm{penstock.TokenBucket, penstock.LeakyBucket} {
		largest.Algorithm = a
		w.newRound()
		for _, cost := range []int64{1, 2, -1, largest.Burst - 2, -largest.Burst + 5} {
			w.compareOne(penstock.Request{Limit: largest, Cost: cost})
			w.compareOne(penstock.Request{Limit: largest})
		}
	}
}

// A window counts to fourteen digits, and as many of debt. All of them can be refunded.
func TestLargestWindowRefundsCountAndDebt(t *testing.T) {
	w := newStorePair(t)
	const most = mostCounted
	for _, align := range []penstock.Align{penstock.AlignFirst, penstock.AlignClock} {
		l := penstock.Limit{Algorithm: penstock.FixedWindow, Count: most, Debt: most, Period: time.Hour, Align: align}
		for _, id := range []string{"", "x"} {
			w.newRound()
			w.compareOne(penstock.Request{Limit: l, Cost: 2 * most, Overdraw: true, ID: id})
			w.compareOne(penstock.Request{Limit: l, Cost: -2*most + 5, ID: id})
			w.compareOne(penstock.Request{Limit: l})
			w.compareOne(penstock.Request{Limit: l, Cost: penstock.Reset})
		}
	}
}

// A grant under an ID can exceed the lowered limit. The refund returns all of it.
func TestRefundByIDReturnsMoreThanLoweredLimit(t *testing.T) {
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
			w.compareOne(penstock.Request{Limit: low, Cost: -1, ID: "y"}) // the second refund has no effect
			w.compareOne(penstock.Request{Limit: low, Cost: 0})
		}
	}
}

// Permits that would expire with their key leave no room for the mark of a partial release.
func TestPartialReleaseWhereKeyAndPermitsExpireTogether(t *testing.T) {
	w := newStorePair(t)
	for _, period := range []time.Duration{time.Millisecond, 2 * time.Millisecond, 30 * time.Second} {
		l := penstock.Limit{Algorithm: penstock.Concurrent, Count: 5, Period: period}
		for wait := range 4 {
			w.newRound()
			w.compareOne(penstock.Request{Limit: l, Cost: 1, ID: "first"}) // the key lives for one and a half periods
			w.wait(period/2 + time.Duration(wait-1)*time.Millisecond)
			for range 2 {
				w.compareOne(penstock.Request{Limit: l, Cost: 3, ID: "x"})
				w.compareOne(penstock.Request{Limit: l, Cost: -1, ID: "x"})
				w.compareOne(penstock.Request{Limit: l, Cost: 5, ID: "y"})
				w.compareOne(penstock.Request{Limit: l})
			}
		}
	}
}

// A count times a time can exceed a double. The error shows where the quotient is next
// to a whole number: previous · left ≡ 1 (mod period).
func TestSlidingWindowWeightsExactly(t *testing.T) {
	w := newStorePair(t)
	l := penstock.Limit{Algorithm: penstock.SlidingWindow, Count: 1<<26 - 1, Period: yearly}
	for range 100 {
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

const yearly = 347 * 24 * time.Hour

// coprime returns a large count that is coprime to the period.
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

// A refund by ID returns as many units as requested, also when the limit is now much
// smaller than the grant.
func TestRefundByIDReturnsMoreThanSmallerBucket(t *testing.T) {
	w := newStorePair(t)
	large := penstock.Limit{Name: "bucket", Count: 1000, Period: 786 * time.Hour}
	for _, small := range []penstock.Limit{
		{Name: "bucket", Count: 58, Period: 125 * time.Hour, Burst: 1},
		{Name: "bucket", Count: 1, Period: 366 * 24 * time.Hour},
	} {
		w.newRound()
		w.compareOne(penstock.Request{Limit: large, Cost: 900, ID: "y"})
		w.compareOne(penstock.Request{Limit: small, Cost: -700, ID: "y"})
		w.compareOne(penstock.Request{Limit: small, Cost: 1, ID: "y"}) // 200 of the grant remain
	}
}

// A reply of one number is exact up to the largest that a double holds, as is what it is
// computed from.
func TestAlignedWindowRepliesExactlyNearLargestDouble(t *testing.T) {
	w := newStorePair(t)
	l := penstock.Limit{
		Algorithm: penstock.FixedWindow, Count: 1e10, Period: 71*time.Hour + 55*time.Minute + 44*time.Second, Align: penstock.AlignClock,
	}
	most := int64(1<<53) / int64(l.Period/time.Millisecond+1) // units that fit beside the time left
	for used := most - 3; used <= most+1; used++ {
		w.newRound()
		w.setClock(time.Date(2031, 5, 4, 12, 6, 15, 833_000_000, time.UTC))
		w.compareOne(penstock.Request{Limit: l, Cost: used})
		for range 4 {
			w.compareOne(penstock.Request{Limit: l})
			w.wait(time.Millisecond)
		}
	}
}

// The end of an aligned window is stored as ten digits of seconds, or in another
// encoding where ten digits are too few or too many.
func TestAlignedWindowHandlesDistantYears(t *testing.T) {
	l := penstock.PerMinute(10).WithAlgorithm(penstock.FixedWindow)
	l.Align = penstock.AlignClock
	for _, year := range []int{1975, 2000, 2002, 2261, 2270} {
		store := openFakeClock(t, redisstore.Options{})
		fakeClockServer.Clock.Set(time.Date(year, 5, 6, 7, 8, 9, 0, time.UTC))
		for _, want := range []int64{9, 8, 7} {
			if d := take(t, store, penstock.Request{Key: "k", Limit: l, Cost: 1}); d.Remaining != want || d.ResetAfter != 51*time.Second {
				t.Errorf("in %d: got %+v, want %d left for 51 s", year, d, want)
			}
		}
	}
}

// An ended window counts again when the clock steps back into it, unless it was reset.
func TestResetClearsEndedWindow(t *testing.T) {
	store, now := openFakeClock(t, redisstore.Options{}), time.Date(2034, 5, 6, 7, 8, 9, 0, time.UTC)
	l := penstock.PerHour(10).WithAlgorithm(penstock.FixedWindow)
	l.Align = penstock.AlignClock
	kept := 0
	for i := range 100 { // one in eleven expires with its window
		reset, other := fmt.Sprint("reset", i), fmt.Sprint("other", i)
		fakeClockServer.Clock.Set(now)
		take(t, store, penstock.Request{Key: reset, Limit: l, Cost: 4})
		take(t, store, penstock.Request{Key: other, Limit: l, Cost: 4})
		fakeClockServer.Clock.Set(now.Truncate(time.Hour).Add(time.Hour))
		take(t, store, penstock.Request{Key: reset, Limit: l, Cost: penstock.Reset})
		take(t, store, penstock.Request{Key: other, Limit: l, Cost: -1})
		fakeClockServer.Clock.Set(now)
		if d := take(t, store, penstock.Request{Key: reset, Limit: l}); d.Remaining != 10 {
			t.Fatalf("got %+v, want it full", d)
		}
		if d := take(t, store, penstock.Request{Key: other, Limit: l}); d.Remaining == 6 {
			kept++
		}
	}
	if kept < 50 {
		t.Errorf("%d of 100 windows counted again, want most of them", kept)
	}
}
