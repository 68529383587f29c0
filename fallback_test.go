package penstock_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/storetest"
)

// prompt is a store that keeps to a time of its own.
type prompt struct{ *penstock.Memory }

func (prompt) Timeout() time.Duration { return time.Millisecond }

// As long as the first store is there, a fallback is that store.
func TestFallbackIsAStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
		memory := penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond, MaxKeys: 1 << 12})
		return penstock.WithFallback(prompt{memory}, penstock.DenyAll, &penstock.FallbackOptions{Now: clock.Now})
	})
}

// While the first store is away, it is the second one, if the share is all.
func TestFallbackIsAStoreWhileTheFirstIsAway(t *testing.T) {
	storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
		memory := penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond, MaxKeys: 1 << 12})
		gone := &farStore{}
		gone.down.Store(true)
		fallback := penstock.WithFallback(gone, memory, &penstock.FallbackOptions{Failures: 1})
		if d, err := fallback.Take(ctx, penstock.Request{Key: "key", Limit: penstock.PerHour(1)}); err != nil {
			t.Fatal(d, err)
		}
		return sourceless{fallback}
	})
}

// sourceless hides who decided, once it has seen that it is the fallback.
type sourceless struct{ *penstock.Fallback }

func (s sourceless) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	d, err := s.Fallback.Take(ctx, r)
	s.hide(err, &d)
	return d, err
}

func (s sourceless) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	err := s.Fallback.TakeEach(ctx, rs, ds)
	for i := range rs[:min(len(rs), len(ds))] {
		s.hide(err, &ds[i])
	}
	return err
}

func (s sourceless) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	err := s.Fallback.TakeAll(ctx, rs, ds)
	for i := range rs[:min(len(rs), len(ds))] {
		s.hide(err, &ds[i])
	}
	return err
}

func (s sourceless) hide(err error, d *penstock.Decision) {
	if err == nil && d.Source == penstock.SourceFallback {
		d.Source = penstock.SourceStore
	} else if err == nil {
		d.Source = penstock.SourceLease // which nobody expects
	}
}

// An outage is a first store that can be taken away, and a fallback before it, in
// a bubble.
type outage struct {
	*testing.T
	first    *farStore
	fallback *penstock.Fallback
	changes  []penstock.FallbackChange
}

func inOutage(t *testing.T, o penstock.FallbackOptions, story func(*outage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &outage{T: t, first: &farStore{store: penstock.NewMemory(nil), hang: time.Hour}}
		var mu sync.Mutex
		o.OnChange = func(c penstock.FallbackChange) {
			mu.Lock()
			defer mu.Unlock()
			s.changes = append(s.changes, c)
		}
		s.fallback = penstock.WithFallback(s.first, nil, &o)
		story(s)
		time.Sleep(time.Second) // for what is still under way
	})
}

func (s *outage) limiter(text string) *penstock.Limiter {
	s.Helper()
	return limiter(s.T, s.fallback, text)
}

// allow takes units and checks how many of them are granted, and by whom.
func (s *outage) allow(lim *penstock.Limiter, key string, n, want int64, by penstock.Source) penstock.Decision {
	s.Helper()
	d, err := lim.AllowAtMost(ctx, key, n)
	if err != nil || d.Granted != want || d.Source != by {
		s.Errorf("%d of %q: %v, %v, want %d by the %v", n, key, d, err, want, by)
	}
	return d
}

// away takes the first store away, and lets the fallback notice.
func (s *outage) away() {
	s.Helper()
	s.first.down.Store(true)
	lim := s.limiter("1000/1h name=noticing")
	for range 5 {
		if _, err := lim.Allow(ctx, "nobody"); err != nil {
			s.Fatal(err)
		}
	}
	if away, of := s.fallback.Down(); away != 1 || of != 1 {
		s.Fatalf("%d of %d shards are away, want the one", away, of)
	}
}

// back brings the first store back, and lets the fallback notice and settle.
func (s *outage) back() {
	s.Helper()
	s.first.down.Store(false)
	s.first.hung.Store(false)
	lim := s.limiter("1000/1h name=noticing")
	for range 50 {
		time.Sleep(100 * time.Millisecond)
		if _, err := lim.Allow(ctx, "nobody"); err != nil {
			s.Fatal(err)
		}
		synctest.Wait()
		if away, _ := s.fallback.Down(); away == 0 {
			return
		}
	}
	s.Fatal("the first store is back, and nobody has noticed")
}

func TestSecondStoreDecidesWhileTheFirstIsAway(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{Share: 0.25}, func(s *outage) {
		lim := s.limiter("100/1h")
		s.allow(lim, "key", 60, 60, penstock.SourceStore)
		s.away()
		s.allow(lim, "key", 60, 25, penstock.SourceFallback)
		n := s.first.tripsFor(func() { s.allow(lim, "key", 1, 0, penstock.SourceFallback) })
		if n != 0 {
			s.Errorf("%d trips to a store that was given up, want none", n)
		}
		s.back()
		synctest.Wait()
		if len(s.changes) != 2 || !s.changes[0].Down || !errors.Is(s.changes[0].Err, penstock.ErrUnavailable) || s.changes[1].Down {
			s.Errorf("told of %+v, want that it went, why, and that it is back", s.changes)
		}
		s.allow(lim, "key", 60, 15, penstock.SourceStore) // 100 - 60 - 25
	})
}

// A process that has to manage alone never grants more than its share, in any
// algorithm, and at least one unit.
func TestShareIsKept(t *testing.T) {
	for _, text := range everyAlgorithm {
		for share, want := range map[float64]int64{1: 5, 0.5: 2, 1.0 / 3: 1, 0.2: 1, 0.0001: 1} {
			inOutage(t, penstock.FallbackOptions{Share: share}, func(s *outage) {
				s.away()
				lim := s.limiter(text)
				s.allow(lim, "key", 9, want, penstock.SourceFallback)
				d := s.allow(lim, "other", 9, want, penstock.SourceFallback)
				if d.Limit != want {
					s.Errorf("%s, a share of %v: the limit is %d, want %d", text, share, d.Limit, want)
				}
			})
		}
	}
}

// While the first store is away for a time D, at most share·B + share·r·D are
// admitted of a key.
func TestShareBoundsAnOutage(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{Share: 0.5}, func(s *outage) {
		s.away()
		lim := s.limiter("100/1s burst=40")
		granted := int64(0)
		for range 1000 { // ten seconds
			d, err := lim.AllowAtMost(ctx, "key", 40)
			if err != nil {
				s.Fatal(err)
			}
			granted += d.Granted
			time.Sleep(10 * time.Millisecond)
		}
		if granted < 510 || granted > 520 {
			s.Errorf("%d were granted in ten seconds, want 20 + 50 a second", granted)
		}
	})
}

// Also of a bucket that gets one unit at a time, as those of CL.THROTTLE do, a share is
// a share of the rate.
func TestShareOfABucketThatGetsOneUnitAtATime(t *testing.T) {
	for _, text := range []string{"1/10ms burst=8", "2/20ms burst=8", "1/10ms burst=8 leaky-bucket", "1/10ms burst=8 name=throttle"} {
		inOutage(t, penstock.FallbackOptions{Share: 0.25}, func(s *outage) {
			s.away()
			lim := s.limiter(text)
			granted := int64(0)
			for range 1000 { // ten seconds
				d, err := lim.AllowAtMost(ctx, "key", 8)
				if err != nil {
					s.Fatal(err)
				}
				granted += d.Granted
				time.Sleep(10 * time.Millisecond)
			}
			if granted < 250 || granted > 252 {
				s.Errorf("%s: %d were granted in ten seconds, want 2 + 25 a second", text, granted)
			}
		})
	}
	inOutage(t, penstock.FallbackOptions{Share: 0.25}, func(s *outage) {
		s.away()
		for _, text := range []string{"1/366d", "1/366d leaky-bucket", "1/366d burst=72"} {
			s.allow(s.limiter(text), "key", 1, 1, penstock.SourceFallback)
		}
	})
}

// A limit so fast that a share of it cannot be counted is cut to one unit, and
// one that grants nothing grants nothing.
func TestSharesOfOddLimits(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{Share: 1.0 / 3}, func(s *outage) {
		s.away()
		s.allow(s.limiter("500000000/1s"), "fast", 10, 1, penstock.SourceFallback)
		s.allow(s.limiter("0/1s"), "none", 10, 0, penstock.SourceFallback)
	})
}

func TestFailureModes(t *testing.T) {
	mode := func(l penstock.Limit) (penstock.FailureMode, float64) {
		switch l.Name {
		case "open":
			return penstock.FailOpen, 0
		case "closed":
			return penstock.FailClosed, 0
		case "half":
			return penstock.FailLocal, 0.5
		}
		return penstock.FailLocal, 0
	}
	inOutage(t, penstock.FallbackOptions{Share: 0.25, OnFailure: mode}, func(s *outage) {
		s.away()
		quarter, half := s.limiter("8/1h"), s.limiter("8/1h name=half")
		open, closed := s.limiter("8/1h name=open"), s.limiter("8/1h name=closed")
		s.allow(quarter, "key", 8, 2, penstock.SourceFallback)
		s.allow(half, "key", 8, 4, penstock.SourceFallback)
		for range 3 {
			s.allow(open, "key", 8, 8, penstock.SourceFallback)
			d := s.allow(closed, "key", 8, 0, penstock.SourceFallback)
			if d.Allowed || d.RetryAfter <= 0 || d.RetryAfter > time.Second {
				s.Errorf("closed: %v, want a denial until the store is tried again", d)
			}
		}
		for _, lim := range []*penstock.Limiter{quarter, half, open, closed} {
			if d, err := lim.AllowN(ctx, "key", 9); err != nil || d.Allowed || d.RetryAfter != penstock.Never {
				s.Errorf("%v: more than it can ever grant: %v, %v, want never", lim.Limit(), d, err)
			}
			if d, err := lim.Peek(ctx, "key"); err != nil || !d.Allowed || d.Limit == 0 {
				s.Errorf("%v: a look: %v, %v", lim.Limit(), d, err)
			}
		}
		s.back()
		s.allow(open, "key", 8, 0, penstock.SourceStore) // it was all spent
		s.allow(closed, "key", 8, 8, penstock.SourceStore)
		s.allow(half, "key", 8, 4, penstock.SourceStore)
	})
}

// What the share can never grant, the whole limit can: the answer is not never.
func TestNotNeverForWhatTheWholeLimitCanGrant(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{Share: 0.25}, func(s *outage) {
		s.away()
		d, err := s.limiter("8/1h").AllowN(ctx, "key", 5)
		if err != nil || d.Allowed || d.RetryAfter <= 0 || d.RetryAfter > time.Second {
			s.Errorf("five of eight, by a share of two: %v, %v, want a denial until the store is tried again", d, err)
		}
	})
}

// Nobody waits for a store that hangs once it was given up, and before that no
// longer than the timeout.
func TestHungStoreIsGivenUp(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
		lim := s.limiter("1000000/1h")
		s.first.hung.Store(true)
		var longest, total time.Duration
		for range 1000 {
			start := time.Now()
			spendOne(s.T, lim, "key")
			took := time.Since(start)
			longest, total = max(longest, took), total+took
			time.Sleep(10 * time.Millisecond)
		}
		if longest != 50*time.Millisecond || total != 5*longest {
			s.Errorf("1000 calls took %v together and %v at most, want five of 50ms", total, longest)
		}
		if n := s.first.trips.Load(); n < 30 || n > 60 {
			s.Errorf("%d trips in ten seconds, want five and then about four a second", n)
		}
		s.back()
	})
}

// The store is asked again within a second of being there, and from then on.
func TestBackWithinASecond(t *testing.T) {
	for _, outageLasts := range []time.Duration{700 * time.Millisecond, 3 * time.Second, time.Minute} {
		inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
			lim := s.limiter("1000000/1h")
			s.away()
			for start := time.Now(); time.Since(start) < outageLasts; {
				time.Sleep(7 * time.Millisecond)
				spendOne(s.T, lim, "key")
			}
			s.first.down.Store(false)
			start := time.Now()
			for d := (penstock.Decision{Source: penstock.SourceFallback}); d.Source == penstock.SourceFallback; {
				time.Sleep(7 * time.Millisecond)
				d, _ = lim.Allow(ctx, "key")
			}
			if took := time.Since(start); took > time.Second {
				s.Errorf("after %v away: back after %v", outageLasts, took)
			}
		})
	}
}

// Callers who go away before they are answered say nothing about the store, so it
// is looked at beside them: one that hangs is given up also where nobody waits for
// as long as the timeout, and one that answers is not, whatever the callers do.
func TestWhoseFaultItIs(t *testing.T) {
	cancelled := func(after time.Duration) (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(ctx)
		time.AfterFunc(after, cancel)
		return ctx, cancel
	}
	late := func(after time.Duration) (context.Context, context.CancelFunc) {
		return context.WithTimeout(ctx, after)
	}
	for name, c := range map[string]struct {
		ctx   func(after time.Duration) (context.Context, context.CancelFunc)
		after time.Duration
	}{
		"cancelled":            {cancelled, 20 * time.Millisecond},
		"cancelled in a hurry": {cancelled, time.Millisecond},
		"late in a hurry":      {late, time.Millisecond},
		"late":                 {late, 20 * time.Millisecond},
	} {
		for _, together := range []bool{false, true} {
			t.Run(fmt.Sprint(name, " together ", together), func(t *testing.T) {
				inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
					lim := s.limiter("1000000/1h")
					ask := func() (err error) {
						ctx, cancel := c.ctx(c.after)
						defer cancel()
						if together {
							return penstock.TakeAll(ctx, s.fallback, []penstock.Request{lim.Request("key")}, make([]penstock.Decision, 1))
						}
						_, err = lim.Allow(ctx, "key")
						return err
					}
					s.first.there = after(40 * time.Millisecond) // slow, but there
					for range 100 {
						_ = ask()
					}
					if away, _ := s.fallback.Down(); away != 0 {
						s.Error("impatient callers made a store go away that answers")
					}
					time.Sleep(time.Second)
					s.first.hung.Store(true)
					start := time.Now()
					for ask() != nil {
						if time.Since(start) > 400*time.Millisecond {
							s.Errorf("a store that hangs is still asked after %v", time.Since(start))
							break
						}
					}
				})
			})
		}
	}
}

// Whoever asks whether the first store is away has it tried, so that one who sends
// no requests before it is back learns of it.
func TestAskingBringsItBack(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
		s.away()
		s.first.down.Store(false)
		time.Sleep(time.Second)
		_, _ = s.fallback.Down()
		synctest.Wait()
		if away, _ := s.fallback.Down(); away != 0 {
			s.Error("the first store is back, and nobody has noticed")
		}
	})
}

// What is told last is true, also if the store goes away again while somebody is
// being told that it is back.
func TestLastChangeIsTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := &farStore{store: penstock.NewMemory(nil)}
		var changes []bool
		fallback := penstock.WithFallback(first, nil, &penstock.FallbackOptions{OnChange: func(c penstock.FallbackChange) {
			changes = append(changes, c.Down)
			if !c.Down {
				time.Sleep(time.Second) // long enough for everything else
			}
		}})
		lim := limiter(t, fallback, "1000/1h")
		for range 8 {
			first.down.Store(true)
			for range 5 {
				spendOne(t, lim, "key")
			}
			first.down.Store(false)
			time.Sleep(600 * time.Millisecond)
			spendOne(t, lim, "key")
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		away, _ := fallback.Down()
		for i, gone := range changes {
			if gone != (i%2 == 0) {
				t.Fatalf("told of %v: want it to go and to come back in turn", changes)
			}
		}
		if len(changes) < 4 || changes[len(changes)-1] != (away == 1) {
			t.Errorf("told of %v, and %d are away", changes, away)
		}
	})
}

// Shares of two limits that come to the same are still two.
func TestEqualSharesOfDifferentLimits(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{Share: 0.1}, func(s *outage) {
		s.away()
		for _, text := range []string{"15/1h", "12/1h", "12/1h burst=11", "15/1h sliding-log", "12/1h sliding-log"} {
			s.allow(s.limiter(text), "key", 5, 1, penstock.SourceFallback)
		}
	})
}

func TestMalformedRequestsBlameNobody(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
		malformed := []penstock.Request{
			{Limit: penstock.PerHour(1), Cost: 1},
			{Key: "key", Limit: penstock.PerHour(-1), Cost: 1},
			{Key: "key", Limit: penstock.PerHour(1), Cost: 1, MaxDelay: -1},
		}
		check := func(when string) {
			s.Helper()
			for _, r := range malformed {
				for range 10 {
					_, one := s.fallback.Take(ctx, r)
					each := s.fallback.TakeEach(ctx, []penstock.Request{r}, make([]penstock.Decision, 1))
					all := s.fallback.TakeAll(ctx, []penstock.Request{r}, make([]penstock.Decision, 1))
					var field *penstock.FieldError
					if !errors.As(one, &field) || !errors.As(each, &field) || !errors.As(all, &field) {
						s.Fatalf("%s: %+v: got %v, %v, %v, want errors that name the field", when, r, one, each, all)
					}
				}
			}
		}
		check("there")
		if away, _ := s.fallback.Down(); away != 0 {
			s.Error("malformed requests made the store go away")
		}
		s.away()
		check("away")
	})
}

// What came back by itself while the first store was away is not charged to it,
// and what was not spent is not either.
func TestOnlyWhatIsOwedIsSettled(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
		slow, quick := s.limiter("100/1h"), s.limiter("100/10s")
		s.away()
		s.allow(slow, "key", 70, 70, penstock.SourceFallback)
		s.allow(slow, "idle", 0, 0, penstock.SourceFallback)
		s.allow(quick, "key", 70, 70, penstock.SourceFallback)
		time.Sleep(5 * time.Second) // 50 come back
		s.back()
		time.Sleep(time.Second)
		synctest.Wait()
		s.allow(slow, "key", 100, 30, penstock.SourceStore)
		s.allow(slow, "idle", 100, 100, penstock.SourceStore)
		if d, err := quick.Peek(ctx, "key"); err != nil || d.Remaining < 85 || d.Remaining > 95 {
			s.Errorf("after 70 spent and 50 come back: %v, %v, want about 90", d, err)
		}
	})
}

// What was settled after one outage is not settled again after the next, though
// the second store's account still shows it.
func TestNothingIsSettledTwice(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
		lim := s.limiter("100/1h")
		s.away()
		s.allow(lim, "key", 40, 40, penstock.SourceFallback)
		s.back()
		s.away()
		s.allow(lim, "key", 10, 10, penstock.SourceFallback)
		s.back()
		s.away()
		s.allow(lim, "key", 20, 20, penstock.SourceFallback)
		if d, err := lim.Refund(ctx, "key", 20); err != nil || d.Granted != -20 {
			s.Errorf("given back while away: %v, %v", d, err)
		}
		s.back()
		s.allow(lim, "key", 100, 50, penstock.SourceStore)
	})
}

// What could not be settled because the store was away again is settled later.
func TestSettlingIsTriedAgain(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
		lim := s.limiter("100/1h")
		s.away()
		for i := range 300 {
			s.allow(lim, strconv.Itoa(i), 10, 10, penstock.SourceFallback)
		}
		s.first.refuse = func(r penstock.Request) bool { return r.ID != "" }
		s.first.down.Store(false)
		time.Sleep(3 * time.Second)
		_, _ = lim.Peek(ctx, "0")
		synctest.Wait()
		s.first.refuse = nil
		s.back()
		time.Sleep(time.Second)
		_, _ = lim.Peek(ctx, "0")
		synctest.Wait()
		for i := range 300 {
			s.allow(lim, strconv.Itoa(i), 100, 90, penstock.SourceStore)
		}
	})
}

// More than the first store has left is charged as far as there is room.
func TestSettlingTakesWhatIsThere(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
		lim := s.limiter("100/1h")
		s.allow(lim, "key", 80, 80, penstock.SourceStore)
		s.away()
		s.allow(lim, "key", 80, 80, penstock.SourceFallback)
		s.back()
		s.allow(lim, "key", 1, 0, penstock.SourceStore)
		if d, err := lim.Peek(ctx, "key"); err != nil || d.ResetAfter > time.Hour {
			s.Errorf("after settling: %v, %v, want no more than the capacity owed", d, err)
		}
	})
}

// A single call that fails, without the store being given up, is settled too.
func TestSingleFailureIsSettled(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
		lim := s.limiter("100/1h")
		s.first.down.Store(true)
		s.allow(lim, "key", 40, 40, penstock.SourceFallback)
		s.first.down.Store(false)
		if d, err := lim.Peek(ctx, "key"); err != nil || d.Remaining != 100 {
			s.Errorf("before it is settled: %v, %v", d, err)
		}
		synctest.Wait()
		s.allow(lim, "key", 100, 60, penstock.SourceStore)
	})
}

// Every debt of every key is settled, once, however often the store goes away in
// between.
func TestSettlingChargesOnce(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
		lim := s.limiter("100/1h")
		const keys = 500
		s.away()
		for i := range keys {
			s.allow(lim, strconv.Itoa(i), 10, 10, penstock.SourceFallback)
		}
		var settled atomic.Int64
		s.first.lost = func(rs []penstock.Request) bool { // the answer to the first three batches
			return rs[0].ID != "" && settled.Add(1) <= 3
		}
		for range 5 {
			s.back()
			time.Sleep(2 * time.Second)
			spendOne(s.T, s.limiter("1000/1h name=noticing"), "nobody")
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		for i := range keys {
			s.allow(lim, strconv.Itoa(i), 100, 90, penstock.SourceStore)
		}
		if settled.Load() < 4 {
			s.Errorf("%d batches were settled: nothing was lost on the way", settled.Load())
		}
	})
}

// What was granted by the second store, and is given back before it was charged
// to the first, is not charged.
func TestGivingBackWhatIsNotSettled(t *testing.T) {
	give := map[string]func(*penstock.Limiter) (int64, error){
		"refund": func(lim *penstock.Limiter) (int64, error) {
			d, err := lim.Refund(ctx, "key", 30)
			return d.Granted, err
		},
		"among others": func(lim *penstock.Limiter) (int64, error) {
			r := lim.Request("key")
			r.Cost = -30
			ds := make([]penstock.Decision, 2)
			err := penstock.TakeEach(ctx, lim.Store(), []penstock.Request{lim.Request("else"), r}, ds)
			return ds[1].Granted, err
		},
	}
	for name, give := range give {
		for _, away := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " away ", away), func(t *testing.T) {
				inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
					lim := s.limiter("100/1h")
					s.allow(lim, "key", 20, 20, penstock.SourceStore)
					s.first.down.Store(true)
					s.allow(lim, "key", 20, 20, penstock.SourceFallback)
					s.first.down.Store(away)
					back, err := give(lim)
					if want := map[bool]int64{true: -20, false: -30}[away]; err != nil || back != want {
						s.Errorf("gave back %d, %v, want %d", back, err, want)
					}
					s.first.down.Store(false)
					_, _ = lim.Peek(ctx, "key")
					synctest.Wait()
					want := map[bool]int64{true: 80, false: 90}[away]
					s.allow(lim, "key", 100, want, penstock.SourceStore)
				})
			})
		}
	}
}

func TestResetForgetsWhatIsNotSettled(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
		lim := s.limiter("100/1h")
		s.first.down.Store(true)
		s.allow(lim, "key", 20, 20, penstock.SourceFallback)
		s.first.down.Store(false)
		if err := lim.Reset(ctx, "key"); err != nil {
			s.Fatal(err)
		}
		synctest.Wait()
		s.allow(lim, "key", 100, 100, penstock.SourceStore)
	})
}

// An outage and a flood of made-up keys together take no more memory than either.
func TestLedgerIsBounded(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{MaxKeys: 100}, func(s *outage) {
		lim := s.limiter("100/1h")
		s.away()
		for i := range 10_000 {
			s.allow(lim, strconv.Itoa(i), 50, 50, penstock.SourceFallback)
		}
		s.back()
		time.Sleep(time.Second)
		synctest.Wait()
		settled := 0
		for i := range 10_000 {
			if d, err := lim.Peek(ctx, strconv.Itoa(i)); err != nil {
				s.Fatal(err)
			} else if d.Remaining == 50 {
				settled++
			}
		}
		if settled < 90 || settled > 100 { // some of the places were the noticing's
			s.Errorf("%d keys were settled, want the hundred that there is room for", settled)
		}
	})
}

// A first store that answers looks and cannot write is not taken for well, even where
// nothing waits to be written.
func TestProbeWrites(t *testing.T) {
	for _, mode := range []penstock.FailureMode{penstock.FailLocal, penstock.FailOpen, penstock.FailClosed} {
		onFailure := func(penstock.Limit) (penstock.FailureMode, float64) { return mode, 0 }
		inOutage(t, penstock.FallbackOptions{OnFailure: onFailure}, func(s *outage) {
			lim := s.limiter("1000/1h")
			s.first.refuse = func(r penstock.Request) bool { return r.Cost > 0 }
			for range 500 {
				if _, err := lim.Allow(ctx, "key"); err != nil {
					s.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond)
			}
			synctest.Wait()
			if len(s.changes) != 1 {
				s.Errorf("mode %d: %d changes in five seconds, want that it went away once", mode, len(s.changes))
			}
		})
	}
}

// Requests that are taken together are decided by one store, all or none.
func TestTakeAllWhileAway(t *testing.T) {
	mode := func(l penstock.Limit) (penstock.FailureMode, float64) {
		return map[string]penstock.FailureMode{"open": penstock.FailOpen, "closed": penstock.FailClosed}[l.Name], 0
	}
	inOutage(t, penstock.FallbackOptions{OnFailure: mode}, func(s *outage) {
		s.away()
		local, open, closed := s.limiter("10/1h"), s.limiter("10/1h name=open"), s.limiter("10/1h name=closed")
		takeAll := func(lims ...*penstock.Limiter) (ds []penstock.Decision) {
			s.Helper()
			var rs []penstock.Request
			for _, lim := range lims {
				r := lim.Request("key")
				r.Cost = 4
				rs = append(rs, r)
			}
			ds = make([]penstock.Decision, len(rs))
			if err := penstock.TakeAll(ctx, s.fallback, rs, ds); err != nil {
				s.Fatal(err)
			}
			return ds
		}
		remaining := func(want ...int64) {
			s.Helper()
			var got []int64
			for _, lim := range []*penstock.Limiter{local, open} {
				d, err := lim.Peek(ctx, "key")
				if err != nil {
					s.Fatal(err)
				}
				got = append(got, d.Remaining)
			}
			if !slices.Equal(got, want) {
				s.Errorf("remaining: %d, want %d", got, want)
			}
		}
		if d := penstock.Tightest(takeAll(local, open)); !d.Allowed || d.Source != penstock.SourceFallback {
			s.Errorf("local and open: %v, want a grant by the fallback", d)
		}
		remaining(6, 6)
		ds := takeAll(local, open, closed)
		if !ds[0].Allowed || ds[0].Granted != 0 || !ds[1].Allowed || ds[1].Granted != 0 || ds[2].Allowed {
			s.Errorf("with one that is closed: %v, want looks and its refusal", ds)
		}
		remaining(6, 6)
		takeAll(local, open)
		ds = takeAll(open, local) // two are left of the local one
		if !ds[0].Allowed || ds[0].Granted != 0 || ds[1].Allowed || ds[1].RetryAfter <= 0 {
			s.Errorf("with one that is spent: %v, want a look and its refusal", ds)
		}
		remaining(2, 2)
		s.back()
		s.allow(local, "key", 10, 2, penstock.SourceStore)
	})
}

// sharded is a store of three shards, which can be away one by one.
type sharded struct {
	*farStore
	away [3]atomic.Bool
}

func newSharded() *sharded {
	s := &sharded{farStore: &farStore{store: penstock.NewMemory(nil)}}
	return s
}

func (s *sharded) Shards() int            { return len(s.away) }
func (s *sharded) ShardOf(key string) int { return int(key[0] - '0') }

func (s *sharded) reach(rs ...penstock.Request) error {
	for i, r := range rs {
		if s.away[s.ShardOf(r.Key)].Load() {
			return &penstock.RequestError{Index: i, Err: fmt.Errorf("shard: %w", penstock.ErrUnavailable)}
		}
	}
	return nil
}

func (s *sharded) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	if err := s.reach(r); err != nil {
		return penstock.Decision{}, err
	}
	return s.farStore.Take(ctx, r)
}

func (s *sharded) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	if err := s.reach(rs...); err != nil {
		return err
	}
	return s.farStore.TakeEach(ctx, rs, ds)
}

func (s *sharded) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	if err := s.reach(rs...); err != nil {
		return err
	}
	return s.farStore.TakeAll(ctx, rs, ds)
}

// A shard that is away takes only its own keys along.
func TestShardsAreAwayOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := newSharded()
		var changes []penstock.FallbackChange
		fallback := penstock.WithFallback(first, nil, &penstock.FallbackOptions{
			OnChange: func(c penstock.FallbackChange) { changes = append(changes, c) },
		})
		lim := limiter(t, fallback, "100/1h")
		sources := func(keys string) string {
			t.Helper()
			var rs []penstock.Request
			for _, key := range keys {
				rs = append(rs, lim.Request(string(key)))
			}
			ds := make([]penstock.Decision, len(rs))
			if err := penstock.TakeEach(ctx, fallback, rs, ds); err != nil {
				t.Fatal(err)
			}
			var by []string
			for _, d := range ds {
				by = append(by, d.Source.String())
			}
			return strings.Join(by, " ")
		}
		first.away[1].Store(true)
		for range 5 {
			if got := sources("0121"); got != "fallback fallback fallback fallback" {
				t.Errorf("one of them failed: by %s, want all by the fallback", got)
			}
		}
		synctest.Wait()
		if away, of := fallback.Down(); away != 1 || of != 3 || len(changes) != 1 || changes[0].Shard != 1 {
			t.Errorf("%d of %d away, told of %+v, want shard 1 alone", away, of, changes)
		}
		if got := sources("0121"); got != "store fallback store fallback" {
			t.Errorf("by %s, want only shard 1's by the fallback", got)
		}
		ds := make([]penstock.Decision, 2)
		if err := penstock.TakeAll(ctx, fallback, []penstock.Request{lim.Request("0"), lim.Request("1")}, ds); err != nil ||
			ds[0].Source != penstock.SourceFallback || ds[1].Source != penstock.SourceFallback {
			t.Errorf("together: %v, %v, want one store to decide both", ds, err)
		}
		first.away[2].Store(true)
		for range 5 {
			sources("012")
		}
		synctest.Wait()
		if away, of := fallback.Down(); away != 2 || of != 3 || len(changes) != 2 || changes[1].Shard != 2 {
			t.Errorf("%d of %d away, told of %+v, want shards 1 and 2", away, of, changes)
		}
		first.away[1].Store(false)
		first.away[2].Store(false)
		time.Sleep(time.Second)
		sources("12")
		synctest.Wait()
		if got := sources("0121"); got != "store store store store" {
			t.Errorf("back: by %s, want the store", got)
		}
		synctest.Wait()
		// One was taken of it in each of twelve batches, and in the one together.
		if d, err := lim.Peek(ctx, "0"); err != nil || d.Remaining != 100-13 {
			t.Errorf("shard 0 after all was settled: %v, %v, want 13 taken", d, err)
		}
	})
}

// What was granted under an ID is charged once, whichever store is asked, however
// often, and whatever answers are lost.
func TestIDsAcrossAnOutage(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
		lim := s.limiter("100/1h")
		take := func(by penstock.Source) {
			s.Helper()
			r := lim.Request("key")
			r.Cost, r.ID = 10, "id"
			if d, err := s.fallback.Take(ctx, r); err != nil || d.Granted != 10 || d.Source != by {
				s.Errorf("under an ID: %v, %v, want ten by the %v", d, err, by)
			}
		}
		s.first.lost = func(rs []penstock.Request) bool { return rs[0].ID == "id" }
		take(penstock.SourceFallback) // the first store has granted it too, but who knows
		s.first.lost = nil
		s.away()
		take(penstock.SourceFallback)
		s.back()
		take(penstock.SourceStore)
		s.away()
		take(penstock.SourceFallback)
		s.allow(lim, "key", 5, 5, penstock.SourceFallback) // which has none
		s.back()
		if d, err := lim.Peek(ctx, "key"); err != nil || d.Remaining != 85 {
			s.Errorf("after all that: %v, %v, want fifteen taken", d, err)
		}
		s.first.down.Store(true)
		r := lim.Request("key")
		r.Cost, r.ID = 10, "another"
		if _, err := s.fallback.Take(ctx, r); err != nil {
			s.Fatal(err)
		}
		s.first.down.Store(false)
		if err := lim.Reset(ctx, "key"); err != nil {
			s.Fatal(err)
		}
		synctest.Wait()
		if d, err := lim.Peek(ctx, "key"); err != nil || d.Remaining != 100 {
			s.Errorf("after a reset: %v, %v, want nothing charged any more", d, err)
		}
	})
}

// A debt that the first store does not understand keeps no other from being
// settled.
func TestOneDebtThatCannotBeSettled(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
		lim, odd := s.limiter("100/1h"), s.limiter("100/1h name=odd")
		s.away()
		s.allow(odd, "key", 10, 10, penstock.SourceFallback)
		for i := range 20 {
			s.allow(lim, strconv.Itoa(i), 10, 10, penstock.SourceFallback)
		}
		s.first.store = choosy{s.first.store}
		s.back()
		time.Sleep(time.Second)
		spendOne(s.T, s.limiter("1000/1h name=noticing"), "nobody")
		synctest.Wait()
		for i := range 20 {
			s.allow(lim, strconv.Itoa(i), 100, 90, penstock.SourceStore)
		}
	})
}

// A choosy store does not understand some limits.
type choosy struct{ penstock.Store }

func (s choosy) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	if r.Limit.Name == "odd" {
		return penstock.Decision{}, &penstock.FieldError{Field: "Name", Problem: "is odd", Kind: penstock.ErrBadLimit}
	}
	return s.Store.Take(ctx, r)
}

// What is given back, and not charged yet, is given back once, even if the second
// store cannot.
func TestGivingBackWhenTheSecondStoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := &farStore{store: penstock.NewMemory(nil)}
		second := &farStore{store: penstock.NewMemory(nil), refuse: func(r penstock.Request) bool { return r.Cost < 0 }}
		lim := limiter(t, penstock.WithFallback(first, second, nil), "100/1h")
		if _, err := lim.AllowN(ctx, "key", 20); err != nil {
			t.Fatal(err)
		}
		first.down.Store(true)
		if d, err := lim.AllowN(ctx, "key", 20); err != nil || d.Source != penstock.SourceFallback {
			t.Fatal(d, err)
		}
		first.down.Store(false)
		if d, err := lim.Refund(ctx, "key", 20); err != nil || d.Granted != -20 {
			t.Errorf("gave back: %v, %v, want 20", d, err)
		}
		_, _ = lim.Peek(ctx, "key")
		synctest.Wait()
		if d, err := lim.Peek(ctx, "key"); err != nil || d.Remaining != 80 {
			t.Errorf("%v, %v, want 80 left: the 20 that were taken first", d, err)
		}
	})
}

// An ID is known to the store that granted it.
func TestIDsWhileAway(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{}, func(s *outage) {
		s.away()
		lim := s.limiter("10/1h")
		r := lim.Request("key")
		r.Cost, r.ID = 4, "id"
		for range 3 {
			if d, err := s.fallback.Take(ctx, r); err != nil || d.Granted != 4 || d.Remaining != 6 {
				s.Errorf("under an ID: %v, %v, want it charged once", d, err)
			}
		}
		s.back()
		if d, err := lim.Peek(ctx, "key"); err != nil || d.Remaining != 6 {
			s.Errorf("settled: %v, %v, want 6 left", d, err)
		}
	})
}

// Many callers, while the store comes and goes, see no error, and never get more
// than both stores allow together.
func TestFallbackInACrowd(t *testing.T) {
	inOutage(t, penstock.FallbackOptions{Share: 0.5, Retry: 50 * time.Millisecond}, func(s *outage) {
		lim := s.limiter("1000/1h")
		var granted [2]atomic.Int64 // by the store, by the fallback
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range 40 {
				s.first.down.Store(i%2 == 0)
				time.Sleep(100 * time.Millisecond)
			}
		})
		for worker := range 20 {
			wg.Go(func() {
				for range 400 {
					d, err := lim.Allow(ctx, "key")
					if err != nil {
						s.Errorf("a caller saw %v", err)
					}
					if d.Allowed {
						granted[d.Source/penstock.SourceFallback].Add(1)
					}
					time.Sleep(time.Duration(9+worker%3) * time.Millisecond)
				}
			})
		}
		wg.Wait()
		synctest.Wait() // for whoever reports the last change
		store, fallback := granted[0].Load(), granted[1].Load()
		if store+fallback > 1502 || fallback > 501 || store == 0 || fallback < 100 {
			s.Errorf("%d by the store and %d by the fallback, want at most 1000 and 500, and some of each", store, fallback)
		}
		if len(s.changes) < 10 {
			s.Errorf("%d changes: this has tested nothing", len(s.changes))
		}
		for i, c := range s.changes {
			if c.Down != (i%2 == 0) {
				s.Fatalf("change %d of %+v: want it to go and to come back in turn", i, s.changes)
			}
		}
	})
}

func TestFallbackAllocatesNothing(t *testing.T) {
	lim := limiter(t, penstock.WithFallback(prompt{penstock.NewMemory(nil)}, nil, nil), "1000000/1h")
	if n := testing.AllocsPerRun(100, func() { _, _ = lim.Allow(ctx, "key") }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
	rs, ds := []penstock.Request{lim.Request("a"), lim.Request("b")}, make([]penstock.Decision, 2)
	memory := prompt{penstock.NewMemory(nil)}
	plain := testing.AllocsPerRun(100, func() { _ = penstock.TakeAll(ctx, memory, rs, ds) })
	store := penstock.WithFallback(memory, nil, nil)
	if n := testing.AllocsPerRun(100, func() { _ = penstock.TakeAll(ctx, store, rs, ds) }); n > plain+1 {
		t.Errorf("TakeAll: %v allocations, want one more than the %v of the store", n, plain)
	}
}

func TestFallbackWithoutAStore(t *testing.T) {
	store := penstock.WithFallback(nil, nil, nil)
	r := penstock.Request{Key: "k", Limit: penstock.PerSecond(1), Cost: 1}
	if _, err := store.Take(ctx, r); err == nil {
		t.Error("a fallback from no store: want an error")
	}
	if err := store.TakeAll(ctx, []penstock.Request{r}, make([]penstock.Decision, 1)); err == nil {
		t.Error("a fallback from no store: want an error")
	}
}
