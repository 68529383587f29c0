package penstock_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

// limitsOfTen are a limit of ten for each algorithm.
var limitsOfTen = []string{
	"10/10s", "10/10s leaky-bucket", "10/10s fixed-window", "10/10s fixed-window align=clock",
	"10/10s sliding-window", "10/10s rolling-window buckets=5", "10/10s sliding-log",
}

func TestLimiterKeepFreeLeavesUnitsToOthers(t *testing.T) {
	for _, text := range limitsOfTen {
		t.Run(text, func(t *testing.T) {
			critical := limiter(t, penstock.NewMemory(nil), text)
			batch := critical.KeepFree(4)
			for range 6 {
				allowOne(t, batch, "key")
			}
			if d, err := batch.Allow(ctx, "key"); err != nil || d.Allowed || d.RetryAfter <= 0 {
				t.Errorf("with only the kept units left: %v, %v, want a denial", d, err)
			}
			if d, err := critical.AllowAtMost(ctx, "key", 10); err != nil || d.Granted != 4 {
				t.Errorf("critical: %v, %v, want the four that were kept", d, err)
			}
			if d, err := batch.Refund(ctx, "key", 5); err != nil || d.Granted != -5 {
				t.Errorf("refund: %v, %v, want five, whatever is to be kept", d, err)
			}
			if d, err := batch.AllowAtMost(ctx, "key", 10); err != nil || d.Granted != 1 {
				t.Errorf("at most: %v, %v, want the one above four", d, err)
			}
		})
	}
}

func TestLimiterKeepFreeRejectsNegativeNumber(t *testing.T) {
	lim := limiter(t, penstock.NewMemory(nil), "10/10s")
	_, err := lim.KeepFree(-1).Allow(ctx, "key")
	var field *penstock.FieldError
	if !errors.Is(err, penstock.ErrBadCost) || !errors.As(err, &field) || field.Field != "KeepFree" {
		t.Errorf("%v, want an error about KeepFree", err)
	}
	expectRemaining(t, lim, "key", 10)
}

// Permits are kept free, too, and those that are held are renewed whatever is left.
func TestLimiterKeepFreeLeavesPermits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		critical := limiter(t, penstock.NewMemory(nil), "3/30s concurrent")
		batch := critical.KeepFree(1)
		first, _, err := batch.Acquire(ctx, "key")
		if err != nil || first == nil {
			t.Fatal(err)
		}
		defer first.Release()
		if p, d, err := batch.AcquireN(ctx, "key", 2); err != nil || p != nil || d.RetryAfter != 30*time.Second {
			t.Errorf("two of two: %v, %v, want a denial", d, err)
		}
		second, d, err := critical.AcquireN(ctx, "key", 2)
		if err != nil || second == nil {
			t.Fatalf("critical: %v, %v, want both", d, err)
		}
		defer second.Release()
		time.Sleep(time.Minute)
		if err := first.Context().Err(); err != nil {
			t.Errorf("%v, want the first permit renewed", err)
		}
		expectRemaining(t, critical, "key", 0)
	})
}

// A wait lasts until the units to keep are there as well.
func TestLimiterKeepFreeWaitsForBoth(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"10/10s":              5 * time.Second, // five of ten units
		"10/10s fixed-window": 10 * time.Second,
		"10/10s sliding-log":  10 * time.Second,
	} {
		synctest.Test(t, func(t *testing.T) {
			critical := limiter(t, penstock.NewMemory(nil), text)
			if d, err := critical.AllowN(ctx, "key", 10); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			batch := critical.KeepFree(4)
			short, cancel := context.WithTimeout(ctx, want-time.Millisecond)
			defer cancel()
			if err := batch.Wait(short, "key"); !errors.Is(err, penstock.ErrDeadline) {
				t.Errorf("%s: a deadline a millisecond too soon: %v, want ErrDeadline", text, err)
			}
			enough, cancel := context.WithTimeout(ctx, want+time.Millisecond)
			defer cancel()
			expectWait(t, want, func() error { return batch.Wait(enough, "key") })
			if err := batch.WaitN(ctx, "key", 7); !errors.Is(err, penstock.ErrNever) {
				t.Errorf("%s: seven and four of ten: %v, want ErrNever", text, err)
			}
		})
	}
}

// A reservation would take what is to be kept, so there is none: the call waits, and the
// units are taken when those to keep are there.
func TestLimiterKeepFreeReservesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		critical := limiter(t, penstock.NewMemory(nil), "10/10s")
		if d, err := critical.AllowN(ctx, "key", 8); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		expectWait(t, 3*time.Second, func() error {
			r, err := critical.KeepFree(4).Reserve(ctx, "key")
			if err == nil && r.Delay() != 0 {
				t.Errorf("delay %v, want none", r.Delay())
			}
			return err
		})
		expectRemaining(t, critical, "key", 4)
	})
}

// A denial because of KeepFree is that of a request for both, and answers no other.
func TestDenyCacheKeepFreeDenialAnswersNoOtherRequest(t *testing.T) {
	for _, text := range limitsOfTen {
		synctest.Test(t, func(t *testing.T) {
			behind := &remoteStore{store: penstock.NewMemory(nil)}
			critical := limiter(t, penstock.WithDenyCache(behind, nil), text)
			batch := critical.KeepFree(4)
			if d, err := critical.AllowN(ctx, "key", 6); err != nil || !d.Allowed {
				t.Fatal(d, err)
			}
			for _, by := range []penstock.Source{penstock.SourceStore, penstock.SourceDenyCache} {
				if d, err := batch.Allow(ctx, "key"); err != nil || d.Allowed || d.Source != by || d.Remaining != 4 {
					t.Errorf("%s: %v, %v, want a denial by the %v", text, d, err, by)
				}
			}
			if d, err := critical.AllowN(ctx, "key", 4); err != nil || !d.Allowed {
				t.Errorf("%s: critical: %v, %v, want the four that were kept", text, d, err)
			}
		})
	}
}

// The denial of a plain request answers those that would have to leave even more.
func TestDenyCacheDenialAnswersRequestsWithKeepFree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		behind := &remoteStore{store: penstock.NewMemory(nil)}
		lim := limiter(t, penstock.WithDenyCache(behind, nil), "10/10s")
		if d, err := lim.AllowN(ctx, "key", 10); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		d, err := lim.KeepFree(4).Allow(ctx, "key")
		if err != nil || d.Allowed || d.Source != penstock.SourceDenyCache || d.RetryAfter != 5*time.Second {
			t.Errorf("%v, %v, want a cached denial for five seconds", d, err)
		}
	})
}

// Leased units are taken units: a request with KeepFree goes to the store, whatever this
// process holds.
func TestLeaseKeepFreeGoesToStore(t *testing.T) {
	withLease(t, "100/1h", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		l.spend(lim, "key", 20)
		left := l.left("key")
		if left >= 80 {
			t.Fatalf("%d left, want some units leased", left)
		}
		d, err := lim.KeepFree(left).Allow(ctx, "key")
		if err != nil || d.Allowed || d.Source != penstock.SourceStore {
			l.Errorf("keeping all that the store has: %v, %v, want a denial by the store", d, err)
		}
		d, err = lim.KeepFree(left-1).AllowAtMost(ctx, "key", 10)
		if err != nil || d.Granted != 1 || d.Source != penstock.SourceStore {
			l.Errorf("keeping all but one: %v, %v, want one from the store", d, err)
		}
	})
}

// While the primary store is down, the same part of the share is kept, rounded up.
func TestFallbackKeepsShareFree(t *testing.T) {
	for _, text := range limitsOfTen {
		withFallback(t, penstock.FallbackOptions{Share: 0.5}, func(s *fallbackFixture) {
			critical := s.limiter(text)
			batch := critical.KeepFree(3) // of ten: two of five
			s.goDown()
			s.allow(batch, "key", 5, 3, penstock.SourceFallback)
			if d, err := batch.Allow(ctx, "key"); err != nil || d.Allowed || d.RetryAfter <= 0 || d.RetryAfter == penstock.Never {
				s.Errorf("%s: %v, %v, want a denial for a while", text, d, err)
			}
			s.allow(critical, "key", 5, 2, penstock.SourceFallback)
			ds := make([]penstock.Decision, 1)
			err := s.fallback.TakeAll(ctx, []penstock.Request{critical.KeepFree(9).Request("other")}, ds)
			if err != nil || ds[0].Allowed || ds[0].RetryAfter == penstock.Never {
				s.Errorf("%s: keeping the whole share: %v, %v, want a denial for the outage", text, ds[0], err)
			}
			s.comeUp()
			s.allow(critical, "key", 10, 5, penstock.SourceStore)
		})
	}
}

// A store that takes requests in turn leaves what each of them keeps, too.
func TestTakeAllOverPlainStoreKeepsFree(t *testing.T) {
	memory := penstock.NewMemory(nil)
	plain := penstock.StoreFunc(memory.Take)
	lim := limiter(t, plain, "10/1h")
	take := func(cost, keep int64) penstock.Request {
		r := lim.KeepFree(keep).Request("key")
		r.Cost = cost
		return r
	}
	ds := make([]penstock.Decision, 2)
	for _, c := range []struct {
		rs      []penstock.Request
		allowed bool
		never   bool
	}{
		{[]penstock.Request{take(2, 7), take(2, 0)}, false, true},
		{[]penstock.Request{take(2, 6), take(2, 0)}, true, false},
		{[]penstock.Request{take(2, 3), take(2, 0)}, false, false},
		{[]penstock.Request{take(2, 0), take(2, 3)}, false, false},
		{[]penstock.Request{take(0, 9), take(2, 2)}, true, false},
	} {
		before, _ := lim.Peek(ctx, "key")
		if err := penstock.TakeAll(ctx, plain, c.rs, ds); err != nil {
			t.Fatal(err)
		}
		d := penstock.Tightest(ds)
		if d.Allowed != c.allowed || (d.RetryAfter == penstock.Never) != c.never {
			t.Errorf("%+v: %v, want allowed=%v, never=%v", c.rs, ds, c.allowed, c.never)
		}
		if !c.allowed {
			expectRemaining(t, lim, "key", before.Remaining)
		}
	}
}
