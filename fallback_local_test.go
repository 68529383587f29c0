package penstock_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

// A process never grants more than its share, under any algorithm, and at least one
// unit.
func TestFallbackGrantsAtMostShareOfEveryAlgorithm(t *testing.T) {
	for _, text := range everyAlgorithm {
		for share, want := range map[float64]int64{1: 5, 0.5: 2, 1.0 / 3: 1, 0.2: 1, 0.0001: 1} {
			withFallback(t, penstock.FallbackOptions{Share: share}, func(s *fallbackFixture) {
				s.goDown()
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

// While the primary store is down for a time D, at most share·B + share·r·D units of a
// key are admitted.
func TestFallbackShareBoundsAnOutage(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{Share: 0.5}, func(s *fallbackFixture) {
		s.goDown()
		lim := s.limiter("100/1s burst=40")
		granted := int64(0)
		for range 1000 { // ten seconds
			d, err := lim.AllowAtMost(ctx, "key", 40)
			if err != nil {
				s.Fatal(err)
			}
			granted += d.Granted
			s.sleep(10 * time.Millisecond)
		}
		if granted < 510 || granted > 520 {
			s.Errorf("%d were granted in ten seconds, want 20 + 50 a second", granted)
		}
	})
}

// A bucket that earns one unit at a time, as those of CL.THROTTLE do, is also scaled
// by its rate.
func TestFallbackShareScalesRateOfSlowBucket(t *testing.T) {
	for _, text := range []string{"1/10ms burst=8", "2/20ms burst=8", "1/10ms burst=8 leaky-bucket", "1/10ms burst=8 name=throttle"} {
		withFallback(t, penstock.FallbackOptions{Share: 0.25}, func(s *fallbackFixture) {
			s.goDown()
			lim := s.limiter(text)
			granted := int64(0)
			for range 1000 { // ten seconds
				d, err := lim.AllowAtMost(ctx, "key", 8)
				if err != nil {
					s.Fatal(err)
				}
				granted += d.Granted
				s.sleep(10 * time.Millisecond)
			}
			if granted < 250 || granted > 252 {
				s.Errorf("%s: %d were granted in ten seconds, want 2 + 25 a second", text, granted)
			}
		})
	}
	withFallback(t, penstock.FallbackOptions{Share: 0.25}, func(s *fallbackFixture) {
		s.goDown()
		for _, text := range []string{"1/366d", "1/366d leaky-bucket", "1/366d burst=72"} {
			s.allow(s.limiter(text), "key", 1, 1, penstock.SourceFallback)
		}
	})
}

// A limit so fast that a share of it cannot be represented is cut to one unit, and a
// limit of zero grants nothing.
func TestFallbackShareOfExtremeLimitIsOneUnitOrNone(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{Share: 1.0 / 3}, func(s *fallbackFixture) {
		s.goDown()
		s.allow(s.limiter("500000000/1s"), "fast", 10, 1, penstock.SourceFallback)
		s.allow(s.limiter("0/1s"), "none", 10, 0, penstock.SourceFallback)
	})
}

func TestFallbackFailureModeDecidesWhileDown(t *testing.T) {
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
	withFallback(t, penstock.FallbackOptions{Share: 0.25, OnFailure: mode}, func(s *fallbackFixture) {
		s.goDown()
		quarter, half := s.limiter("8/1h"), s.limiter("8/1h name=half")
		open, closed := s.limiter("8/1h name=open"), s.limiter("8/1h name=closed")
		s.allow(quarter, "key", 8, 2, penstock.SourceFallback)
		s.allow(half, "key", 8, 4, penstock.SourceFallback)
		for range 3 {
			s.allow(open, "key", 8, 8, penstock.SourceFallback)
			d := s.allow(closed, "key", 8, 0, penstock.SourceFallback)
			if d.Allowed || d.RetryAfter <= 0 || d.RetryAfter > time.Second {
				s.Errorf("closed: %v, want a denial until the next probe", d)
			}
		}
		for _, lim := range []*penstock.Limiter{quarter, half, open, closed} {
			if d, err := lim.AllowN(ctx, "key", 9); err != nil || d.Allowed || d.RetryAfter != penstock.Never {
				s.Errorf("%v: more than it can ever grant: %v, %v, want Never", lim.Limit(), d, err)
			}
			if d, err := lim.Peek(ctx, "key"); err != nil || !d.Allowed || d.Limit == 0 {
				s.Errorf("%v: peek: %v, %v", lim.Limit(), d, err)
			}
		}
		s.comeUp()
		s.allow(open, "key", 8, 0, penstock.SourceStore) // all was spent
		s.allow(closed, "key", 8, 8, penstock.SourceStore)
		s.allow(half, "key", 8, 4, penstock.SourceStore)
	})
}

// A caller that is denied for want of the primary store, and keeps to RetryAfter, repeats
// its request a few times a second: before the breaker opens, between probes and during one.
func TestFallbackDenialReachesNextProbe(t *testing.T) {
	const retry = 200 * time.Millisecond
	closed := func(penstock.Limit) (penstock.FailureMode, float64) { return penstock.FailClosed, 0 }
	withFallback(t, penstock.FallbackOptions{Retry: retry, OnFailure: closed}, func(s *fallbackFixture) {
		s.primary.down.Store(true)
		lim := s.limiter("8/1h")
		for i := range 300 {
			d, err := lim.Allow(ctx, "key")
			if err != nil || d.Allowed || d.RetryAfter < retry || d.RetryAfter > retry*6/5 {
				s.Fatalf("call %d: %v, %v, want a denial for %v or a fifth more", i, d, err, retry)
			}
			s.sleep(7 * time.Millisecond)
		}
		d, _ := lim.Allow(ctx, "key")
		s.primary.down.Store(false)
		s.sleep(d.RetryAfter)
		if _, err := lim.Allow(ctx, "key"); err != nil { // probes, at the latest
			s.Fatal(err)
		}
		synctest.Wait()
		s.allow(lim, "key", 1, 1, penstock.SourceStore)
	})
}

// RetryAfter is not Never for a cost that the whole limit can grant.
func TestFallbackCostAboveShareIsNotNever(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{Share: 0.25}, func(s *fallbackFixture) {
		s.goDown()
		d, err := s.limiter("8/1h").AllowN(ctx, "key", 5)
		if err != nil || d.Allowed || d.RetryAfter <= 0 || d.RetryAfter > time.Second {
			s.Errorf("five of eight, by a share of two: %v, %v, want a denial until the next probe", d, err)
		}
	})
}

// RetryAfter is Never for a request behind another in a queue only if the whole limit can never grant both.
func TestFallbackQueueTooSlowByShareIsNotNever(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{Share: 0.25}, func(s *fallbackFixture) {
		s.goDown()
		lim := s.limiter("8/1h leaky-bucket")
		for delay, never := range map[time.Duration]bool{449 * time.Second: true, 450 * time.Second: false} {
			rs := []penstock.Request{lim.Request("key"), lim.Request("key")}
			rs[1].MaxDelay = delay
			ds := make([]penstock.Decision, len(rs))
			err := penstock.TakeAll(ctx, lim.Store(), rs, ds)
			if err != nil || ds[1].Allowed || ds[1].RetryAfter <= 0 || (ds[1].RetryAfter == penstock.Never) != never {
				s.Errorf("one each 450 s, by a share one each 1800 s, the second within %v: %v, %v, want a denial, for ever: %v", delay, ds, err, never)
			}
		}
	})
}

// Two limits whose shares are equal have separate state.
func TestFallbackEqualSharesDoNotShareState(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{Share: 0.1}, func(s *fallbackFixture) {
		s.goDown()
		for _, text := range []string{"15/1h", "12/1h", "12/1h burst=11", "15/1h sliding-log", "12/1h sliding-log"} {
			s.allow(s.limiter(text), "key", 5, 1, penstock.SourceFallback)
		}
	})
}

// The requests of a TakeAll are decided by one store, all or nothing.
func TestFallbackTakeAllWhileDownUsesOneStore(t *testing.T) {
	mode := func(l penstock.Limit) (penstock.FailureMode, float64) {
		return map[string]penstock.FailureMode{"open": penstock.FailOpen, "closed": penstock.FailClosed}[l.Name], 0
	}
	withFallback(t, penstock.FallbackOptions{OnFailure: mode}, func(s *fallbackFixture) {
		s.goDown()
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
			s.Errorf("with one that is closed: %v, want peeks and its denial", ds)
		}
		remaining(6, 6)
		takeAll(local, open)
		ds = takeAll(open, local) // two are left of the local one
		if !ds[0].Allowed || ds[0].Granted != 0 || ds[1].Allowed || ds[1].RetryAfter <= 0 {
			s.Errorf("with one that is spent: %v, want a peek and its denial", ds)
		}
		remaining(2, 2)
		s.comeUp()
		s.allow(local, "key", 10, 2, penstock.SourceStore)
	})
}

// The secondary store knows the IDs that it granted.
func TestFallbackIDsWhileDownAreChargedOnce(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		s.goDown()
		lim := s.limiter("10/1h")
		r := lim.Request("key")
		r.Cost, r.ID = 4, "id"
		for range 3 {
			if d, err := s.fallback.Take(ctx, r); err != nil || d.Granted != 4 || d.Remaining != 6 {
				s.Errorf("under an ID: %v, %v, want it charged once", d, err)
			}
		}
		s.comeUp()
		if d, err := lim.Peek(ctx, "key"); err != nil || d.Remaining != 6 {
			s.Errorf("settled: %v, %v, want 6 left", d, err)
		}
	})
}

// Units of a lease were granted by the primary store. Returning them while it is down
// must not refund the secondary, which would then grant more than its share.
func TestFallbackIgnoresReturnedLeasesWhileDown(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{Share: 0.5}, func(s *fallbackFixture) {
		lease := penstock.WithLease(s.fallback, &penstock.LeaseOptions{MaxAge: time.Minute})
		direct := s.limiter("10000/1h burst=10000")
		hot, err := penstock.New(lease, direct.Limit())
		if err != nil {
			s.Fatal(err)
		}
		leased := false
		for range 1000 {
			d, err := hot.Allow(ctx, "key")
			if err != nil {
				s.Fatal(err)
			}
			leased = leased || d.Source == penstock.SourceLease
		}
		if !leased {
			s.Fatal("no units were leased")
		}
		s.goDown()
		if d, err := direct.AllowAtMost(ctx, "key", 10_000); err != nil || d.Granted != 5_000 {
			s.Fatalf("while down: %v, %v, want a share of 5000", d, err)
		}
		if err := lease.Close(ctx); err != nil {
			s.Fatal(err)
		}
		if d, err := direct.AllowAtMost(ctx, "key", 10_000); err != nil || d.Granted != 0 {
			s.Errorf("after the lease was returned: %v, %v, want nothing: the share is spent", d, err)
		}
	})
}
