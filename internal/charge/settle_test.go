package charge_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

func TestSettleCorrectsCharge(t *testing.T) {
	for _, test := range []struct{ taken, cost, remain int64 }{
		{5, 5, 5}, {5, 2, 8}, {5, 0, 10}, {5, -1, 10}, {5, penstock.Reset + 1, 10}, {5, 7, 3}, {5, 1000, 0}, {5, penstock.Reset, 10}, {0, 0, 10}, {0, 3, 7},
	} {
		lim := limiter(t, contextAware(), "10/1h")
		d, err := lim.AllowN(t.Context(), "k", test.taken)
		if err != nil {
			t.Fatal(err)
		}
		gone, leave := context.WithCancel(t.Context())
		leave()
		if err := charge.Settle(gone, lim, &charge.Part{Key: "k", Decision: d}, time.Millisecond, test.cost); err != nil {
			t.Errorf("%+v: %v", test, err)
		}
		if got := remaining(t, lim); got != test.remain {
			t.Errorf("%+v: %d remain", test, got)
		}
	}
}

// A clock moves only when a test advances it.
type clock struct{ now time.Time }

func (c *clock) store() penstock.Store {
	return penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return c.now }})
}

// Units that have refilled are not refunded again: that would exceed the bound.
func TestSettleLateRefundsOnlyWhatIsCharged(t *testing.T) {
	const after = time.Second
	for _, test := range []struct {
		limit  string
		before int64 // taken before the estimate
		age    time.Duration
		later  int64 // taken after it
		remain int64
	}{
		{"10/10s", 0, 0, 4, 6},
		{"10/10s", 0, 3 * after, 4, 6},               // of 5, 2 are left, and are refunded
		{"10/10s", 0, 5 * after, 4, 6},               // nothing is left
		{"10/10s", 0, time.Hour, 10, 0},              // nothing is left
		{"10/10s", 5, 3 * after, 2, 6},               // earlier units refill first: 7+2−5
		{"10/10s", 5, 7 * after, 2, 8},               // 3+2−3
		{"10/10s", 5, 9500 * time.Millisecond, 9, 1}, // half a unit counts as one: 9.5−1, rounded up
		{"10/10s leaky-bucket", 5, 7 * after, 2, 8},
		{"10/10s fixed-window", 2, 9 * after, 3, 5},
		{"10/10s fixed-window", 2, 10 * after, 3, 7}, // another window
		{"10/10s sliding-log", 2, 9 * after, 3, 5},
		{"10/10s sliding-log", 2, 10 * after, 3, 7},
		{"10/10s rolling-window", 2, 30 * after, 3, 7},
		{"10/10s sliding-window", 2, 30 * after, 3, 7},
	} {
		c := &clock{time.Unix(1e9, 0)}
		lim := limiter(t, c.store(), test.limit)
		take := func(n int64) penstock.Decision {
			d, err := lim.AllowN(t.Context(), "k", n)
			if err != nil || !d.Allowed {
				t.Fatalf("%+v: %v, %v", test, d, err)
			}
			return d
		}
		take(test.before)
		p := &charge.Part{Key: "k", Decision: take(5)}
		c.now = c.now.Add(test.age)
		take(test.later)
		if err := charge.Settle(t.Context(), lim, p, test.age, 0); err != nil {
			t.Error(err)
		}
		if got := remaining(t, lim); got != test.remain {
			t.Errorf("%+v: %d remain", test, got)
		}
	}
}

// A job takes an estimate and settles it when it is done.
type job struct {
	at, done time.Duration // since the beginning
	part     charge.Part
	cost     int64
}

// work runs random jobs on a test clock, and returns those that were admitted, in the
// order of arrival.
func work(t *testing.T, l penstock.Limit, rng *rand.Rand) (jobs []*job) {
	t.Helper()
	c := &clock{time.Unix(1e9, 0)}
	lim, err := penstock.New(c.store(), l)
	if err != nil {
		t.Fatal(err)
	}
	var inFlight []*job
	now := time.Duration(0)
	for range 400 {
		now += time.Duration(rng.Int64N(int64(l.Period) / 10))
		for _, j := range inFlight {
			if j.done <= now {
				c.now = time.Unix(1e9, 0).Add(j.done)
				if err := charge.Settle(t.Context(), lim, &j.part, j.done-j.at, j.cost); err != nil {
					t.Fatal(err)
				}
			}
		}
		inFlight = slices.DeleteFunc(inFlight, func(j *job) bool { return j.done <= now })
		c.now = time.Unix(1e9, 0).Add(now)
		n := 1 + rng.Int64N(5)
		d, err := lim.AllowN(t.Context(), "k", n)
		if err != nil {
			t.Fatal(err)
		}
		if d.Allowed {
			j := &job{at: now, done: now + time.Duration(rng.Int64N(3*int64(l.Period))), part: charge.Part{Key: "k", Decision: d}, cost: rng.Int64N(n + 1)}
			jobs = append(jobs, j)
			inFlight = append(inFlight, j)
			slices.SortFunc(inFlight, func(a, b *job) int { return int(a.done - b.done) })
		}
	}
	return jobs
}

// However late estimates are settled, the jobs admitted within a window cost no more
// than its Count.
func TestSettleKeepsWindowBound(t *testing.T) {
	l := penstock.Limit{Count: 10, Period: 10 * time.Second, Algorithm: penstock.FixedWindow, Align: penstock.AlignClock}
	for seed := range uint64(50) {
		costs := map[time.Duration]int64{}
		for _, j := range work(t, l, rand.New(rand.NewPCG(seed, 1))) {
			window := j.at / l.Period
			if costs[window] += j.cost; costs[window] > l.Count {
				t.Fatalf("seed %d: window %d has jobs of %d", seed, window, costs[window])
			}
		}
	}
}

// Within any interval, jobs cost no more than the limit admits plus what concurrent
// jobs refund, and no longer than a key takes to refill.
func TestSettleKeepsBounds(t *testing.T) {
	for _, l := range []penstock.Limit{
		{Count: 10, Period: 10 * time.Second},
		{Count: 10, Period: 10 * time.Second, Burst: 5},
		{Count: 10, Period: 10 * time.Second, Algorithm: penstock.LeakyBucket},
		{Count: 10, Period: 10 * time.Second, Algorithm: penstock.SlidingLog},
	} {
		for seed := range uint64(50) {
			jobs := work(t, l, rand.New(rand.NewPCG(seed, 2)))
			for i := range jobs {
				if err := withinBound(l, jobs, i); err != nil {
					t.Fatalf("%v, seed %d: %v", l, seed, err)
				}
			}
		}
	}
}

func withinBound(l penstock.Limit, jobs []*job, first int) error {
	start, given, cost := jobs[first].at, int64(0), int64(0)
	for _, j := range jobs[:first] {
		if j.done >= start && start < j.at+j.part.Decision.ResetAfter {
			given += j.part.Decision.Granted - j.cost
		}
	}
	for _, j := range jobs[first:] {
		bound := l.Count + given
		if l.Algorithm == penstock.SlidingLog {
			if j.at >= start+l.Period {
				break
			}
		} else {
			bound = l.Normal().Burst + given + l.Count*int64(j.at-start)/int64(l.Period) + 1
		}
		if cost += j.cost; cost > bound {
			return fmt.Errorf("jobs from %v to %v cost %d, want at most %d", start, j.at, cost, bound)
		}
	}
	return nil
}

// What was used beyond the estimate is a debt, unless the limit cannot owe.
func TestSettleChargesMoreThanIsLeft(t *testing.T) {
	for _, c := range []struct {
		limit penstock.Limit
		want  time.Duration // until one unit is available
	}{
		{penstock.PerHour(60), 31 * time.Minute},
		{penstock.PerHour(60).WithAlgorithm(penstock.SlidingLog), time.Hour},
	} {
		now := time.Date(2026, 3, 2, 9, 0, 0, 0, time.UTC)
		store := penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }})
		lim, err := penstock.New(store, c.limit)
		if err != nil {
			t.Fatal(err)
		}
		p := charge.Part{Key: "key", Cost: 50}
		if p.Decision, err = lim.AllowN(t.Context(), p.Key, p.Cost); err != nil {
			t.Fatal(err)
		}
		if err = charge.Settle(t.Context(), lim, &p, 0, 90); err != nil {
			t.Fatal(err)
		}
		if d, err := lim.Allow(t.Context(), "key"); err != nil || d.Allowed || d.RetryAfter != c.want {
			t.Errorf("%v, after 90 of an estimated 50: got %v, %v, want a denial for %v", c.limit, d, err, c.want)
		}
	}
}
