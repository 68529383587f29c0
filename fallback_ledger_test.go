package penstock_test

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
)

// Units that came back by time while the primary store was down are not charged, nor
// are keys that spent nothing.
func TestFallbackSettlesOnlyDebts(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		slow, quick := s.limiter("100/1h"), s.limiter("100/10s")
		s.goDown()
		s.allow(slow, "key", 70, 70, penstock.SourceFallback)
		s.allow(slow, "idle", 0, 0, penstock.SourceFallback)
		s.allow(quick, "key", 70, 70, penstock.SourceFallback)
		time.Sleep(5 * time.Second) // earns 50 back
		s.comeUp()
		time.Sleep(time.Second)
		synctest.Wait()
		s.allow(slow, "key", 100, 30, penstock.SourceStore)
		s.allow(slow, "idle", 100, 100, penstock.SourceStore)
		if d, err := quick.Peek(ctx, "key"); err != nil || d.Remaining < 85 || d.Remaining > 95 {
			s.Errorf("after 70 spent and 50 earned back: %v, %v, want about 90", d, err)
		}
	})
}

// A debt settled after one outage is not settled again after the next, although the
// secondary store still counts its units.
func TestFallbackSettlesEachOutageOnce(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		lim := s.limiter("100/1h")
		s.goDown()
		s.allow(lim, "key", 40, 40, penstock.SourceFallback)
		s.comeUp()
		s.goDown()
		s.allow(lim, "key", 10, 10, penstock.SourceFallback)
		s.comeUp()
		s.goDown()
		s.allow(lim, "key", 20, 20, penstock.SourceFallback)
		if d, err := lim.Refund(ctx, "key", 20); err != nil || d.Granted != -20 {
			s.Errorf("refund while down: %v, %v", d, err)
		}
		s.comeUp()
		s.allow(lim, "key", 100, 50, penstock.SourceStore)
	})
}

// A debt that could not be settled, because the store went down again, is settled
// later.
func TestFallbackRetriesSettlement(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		lim := s.limiter("100/1h")
		s.goDown()
		for i := range 300 {
			s.allow(lim, strconv.Itoa(i), 10, 10, penstock.SourceFallback)
		}
		s.primary.refuse = func(r penstock.Request) bool { return r.ID != "" }
		s.primary.down.Store(false)
		time.Sleep(3 * time.Second)
		_, _ = lim.Peek(ctx, "0")
		synctest.Wait()
		s.primary.refuse = nil
		s.comeUp()
		time.Sleep(time.Second)
		_, _ = lim.Peek(ctx, "0")
		synctest.Wait()
		for i := range 300 {
			s.allow(lim, strconv.Itoa(i), 100, 90, penstock.SourceStore)
		}
	})
}

// A debt larger than what the primary store has left is charged as far as there are
// units.
func TestFallbackSettlesAsFarAsUnitsRemain(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		lim := s.limiter("100/1h")
		s.allow(lim, "key", 80, 80, penstock.SourceStore)
		s.goDown()
		s.allow(lim, "key", 80, 80, penstock.SourceFallback)
		s.comeUp()
		s.allow(lim, "key", 1, 0, penstock.SourceStore)
		if d, err := lim.Peek(ctx, "key"); err != nil || d.ResetAfter > time.Hour {
			s.Errorf("after settling: %v, %v, want at most the capacity charged", d, err)
		}
	})
}

// A single failed call, which does not open the breaker, is settled too.
func TestFallbackSettlesSingleFailure(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		lim := s.limiter("100/1h")
		s.primary.down.Store(true)
		s.allow(lim, "key", 40, 40, penstock.SourceFallback)
		s.primary.down.Store(false)
		if d, err := lim.Peek(ctx, "key"); err != nil || d.Remaining != 100 {
			s.Errorf("before it is settled: %v, %v", d, err)
		}
		synctest.Wait()
		s.allow(lim, "key", 100, 60, penstock.SourceStore)
	})
}

// Every debt is charged once, however many responses are lost.
func TestFallbackSettlesOnceDespiteLostResponses(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		lim := s.limiter("100/1h")
		const keys = 500
		s.goDown()
		for i := range keys {
			s.allow(lim, strconv.Itoa(i), 10, 10, penstock.SourceFallback)
		}
		var settled atomic.Int64
		s.primary.loseResponse = func(rs []penstock.Request) bool { // the responses to the first three batches
			return rs[0].ID != "" && settled.Add(1) <= 3
		}
		for range 5 {
			s.comeUp()
			time.Sleep(2 * time.Second)
			allowOne(s.T, s.limiter("1000/1h name=detect"), "detect")
			synctest.Wait()
		}
		time.Sleep(2 * time.Second)
		for i := range keys {
			s.allow(lim, strconv.Itoa(i), 100, 90, penstock.SourceStore)
		}
		if settled.Load() < 4 {
			s.Errorf("%d batches were settled: no response was lost", settled.Load())
		}
	})
}

// Units that the secondary store granted, and that are refunded before they were
// charged to the primary, are not charged.
func TestFallbackRefundBeforeSettlementIsNotCharged(t *testing.T) {
	refunds := map[string]func(*penstock.Limiter) (int64, error){
		"refund": func(lim *penstock.Limiter) (int64, error) {
			d, err := lim.Refund(ctx, "key", 30)
			return d.Granted, err
		},
		"in a batch": func(lim *penstock.Limiter) (int64, error) {
			r := lim.Request("key")
			r.Cost = -30
			ds := make([]penstock.Decision, 2)
			// The refund is first: after a take the store settles concurrently.
			err := penstock.TakeEach(ctx, lim.Store(), []penstock.Request{r, lim.Request("else")}, ds)
			return ds[0].Granted, err
		},
	}
	for name, refund := range refunds {
		for _, down := range []bool{true, false} {
			t.Run(fmt.Sprint(name, " down ", down), func(t *testing.T) {
				withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
					lim := s.limiter("100/1h")
					s.allow(lim, "key", 20, 20, penstock.SourceStore)
					s.primary.down.Store(true)
					s.allow(lim, "key", 20, 20, penstock.SourceFallback)
					s.primary.down.Store(down)
					refunded, err := refund(lim)
					if want := map[bool]int64{true: -20, false: -30}[down]; err != nil || refunded != want {
						s.Errorf("refunded %d, %v, want %d", refunded, err, want)
					}
					s.primary.down.Store(false)
					_, _ = lim.Peek(ctx, "key")
					synctest.Wait()
					want := map[bool]int64{true: 80, false: 90}[down]
					s.allow(lim, "key", 100, want, penstock.SourceStore)
				})
			})
		}
	}
}

func TestFallbackResetDropsDebts(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		lim := s.limiter("100/1h")
		s.primary.down.Store(true)
		s.allow(lim, "key", 20, 20, penstock.SourceFallback)
		s.primary.down.Store(false)
		if err := lim.Reset(ctx, "key"); err != nil {
			s.Fatal(err)
		}
		synctest.Wait()
		s.allow(lim, "key", 100, 100, penstock.SourceStore)
	})
}

func TestFallbackLedgerIsBounded(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{MaxKeys: 100}, func(s *fallbackFixture) {
		lim := s.limiter("100/1h")
		s.goDown()
		for i := range 10_000 {
			s.allow(lim, strconv.Itoa(i), 50, 50, penstock.SourceFallback)
		}
		s.comeUp()
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
		if settled < 90 || settled > 100 { // some places are taken by goDown's requests
			s.Errorf("%d keys were settled, want MaxKeys, about 100", settled)
		}
	})
}

// A grant under an ID is charged once, whichever store decides, however often, and
// whatever responses are lost.
func TestFallbackIDIsChargedOnceAcrossAnOutage(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		lim := s.limiter("100/1h")
		take := func(by penstock.Source) {
			s.Helper()
			r := lim.Request("key")
			r.Cost, r.ID = 10, "id"
			if d, err := s.fallback.Take(ctx, r); err != nil || d.Granted != 10 || d.Source != by {
				s.Errorf("under an ID: %v, %v, want ten by the %v", d, err, by)
			}
		}
		s.primary.loseResponse = func(rs []penstock.Request) bool { return rs[0].ID == "id" }
		take(penstock.SourceFallback) // the primary has granted it too, but the response was lost
		s.primary.loseResponse = nil
		s.goDown()
		take(penstock.SourceFallback)
		s.comeUp()
		take(penstock.SourceStore)
		s.goDown()
		take(penstock.SourceFallback)
		s.allow(lim, "key", 5, 5, penstock.SourceFallback) // without an ID
		s.comeUp()
		if d, err := lim.Peek(ctx, "key"); err != nil || d.Remaining != 85 {
			s.Errorf("after all that: %v, %v, want fifteen taken", d, err)
		}
		s.primary.down.Store(true)
		r := lim.Request("key")
		r.Cost, r.ID = 10, "another"
		if _, err := s.fallback.Take(ctx, r); err != nil {
			s.Fatal(err)
		}
		s.primary.down.Store(false)
		if err := lim.Reset(ctx, "key"); err != nil {
			s.Fatal(err)
		}
		synctest.Wait()
		if d, err := lim.Peek(ctx, "key"); err != nil || d.Remaining != 100 {
			s.Errorf("after a reset: %v, %v, want nothing charged", d, err)
		}
	})
}

// A debt that the primary store rejects does not keep the other debts from being
// settled.
func TestFallbackRejectedDebtDoesNotBlockOthers(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		lim, odd := s.limiter("100/1h"), s.limiter("100/1h name=odd")
		s.goDown()
		s.allow(odd, "key", 10, 10, penstock.SourceFallback)
		for i := range 20 {
			s.allow(lim, strconv.Itoa(i), 10, 10, penstock.SourceFallback)
		}
		s.primary.store = rejectingStore{s.primary.store}
		s.comeUp()
		time.Sleep(time.Second)
		allowOne(s.T, s.limiter("1000/1h name=detect"), "detect")
		synctest.Wait()
		for i := range 20 {
			s.allow(lim, strconv.Itoa(i), 100, 90, penstock.SourceStore)
		}
	})
}

// A rejectingStore rejects limits named "odd".
type rejectingStore struct{ penstock.Store }

func (s rejectingStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	if r.Limit.Name == "odd" {
		return penstock.Decision{}, &penstock.FieldError{Field: "Name", Problem: "is odd", Kind: penstock.ErrBadLimit}
	}
	return s.Store.Take(ctx, r)
}

// Units that are not charged yet are refunded once, even if the secondary store
// fails.
func TestFallbackRefundsDebtOnceWhenSecondaryFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := &remoteStore{store: penstock.NewMemory(nil)}
		secondary := &remoteStore{store: penstock.NewMemory(nil), refuse: func(r penstock.Request) bool { return r.Cost < 0 }}
		lim := limiter(t, penstock.WithFallback(primary, secondary, nil), "100/1h")
		if _, err := lim.AllowN(ctx, "key", 20); err != nil {
			t.Fatal(err)
		}
		primary.down.Store(true)
		if d, err := lim.AllowN(ctx, "key", 20); err != nil || d.Source != penstock.SourceFallback {
			t.Fatal(d, err)
		}
		primary.down.Store(false)
		if d, err := lim.Refund(ctx, "key", 20); err != nil || d.Granted != -20 {
			t.Errorf("refund: %v, %v, want 20", d, err)
		}
		_, _ = lim.Peek(ctx, "key")
		synctest.Wait()
		if d, err := lim.Peek(ctx, "key"); err != nil || d.Remaining != 80 {
			t.Errorf("%v, %v, want 80 left: the 20 that were taken first", d, err)
		}
	})
}

// A charge during an outage is charged to the primary store as a debt when it is up
// again, also beyond what the primary has left.
func TestFallbackSettlesChargesAsDebt(t *testing.T) {
	for _, text := range []string{"100/1h", "100/1h leaky-bucket", "100/1h fixed-window", "100/1h sliding-window"} {
		t.Run(text, func(t *testing.T) {
			withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
				lim := s.limiter(text)
				s.allow(lim, "key", 20, 20, penstock.SourceStore)
				s.goDown()
				for _, n := range []int64{100, 40} {
					d, err := lim.Charge(ctx, "key", n)
					if err != nil || d.Granted != n || d.Source != penstock.SourceFallback {
						s.Errorf("charge of %d while down: %v, %v", n, d, err)
					}
				}
				s.comeUp()
				// 20 were taken and 140 charged: 40 of a debt of 100 are left, or what little
				// a bucket has paid since.
				d, err := lim.Charge(ctx, "key", 1000)
				if err != nil || d.Granted < 40 || d.Granted > 41 || d.Source != penstock.SourceStore {
					s.Errorf("charge after it came up: %v, %v, want 40 or 41 granted", d, err)
				}
			})
		})
	}
}

// Of two charges at once, the first that the secondary decides may be the last that is recorded.
func TestFallbackSettlesConcurrentCharges(t *testing.T) {
	for _, text := range []string{"100/1h", "100/1h fixed-window", "100/1h sliding-window"} {
		withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
			memory, passed := penstock.NewMemory(nil), make(chan struct{})
			s.fallback = penstock.WithFallback(s.primary, penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
				d, err := memory.Take(ctx, r)
				if r.Cost == 3 {
					<-passed
				}
				return d, err
			}), nil)
			lim := s.limiter(text)
			s.goDown()
			go func() {
				synctest.Wait()
				_, _ = lim.Charge(ctx, "key", 9)
				close(passed)
			}()
			if d, err := lim.Charge(ctx, "key", 3); err != nil || d.Granted != 3 {
				s.Fatal(d, err)
			}
			s.comeUp()
			if charged := usedOf(s.T, s.primary.store, lim); charged != 12 {
				s.Errorf("%s: %d units are charged, want 12", text, charged)
			}
		})
	}
}

// A window that has ended during the outage leaves no debt.
func TestFallbackDropsDebtOfEndedWindow(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		lim := s.limiter("100/1m fixed-window")
		s.goDown()
		if d, err := lim.Charge(ctx, "key", 150); err != nil || d.Granted != 150 {
			s.Fatal(d, err)
		}
		s.sleep(time.Minute)
		if d, err := lim.Charge(ctx, "key", 10); err != nil || d.Granted != 10 {
			s.Fatal(d, err)
		}
		s.comeUp()
		s.allow(lim, "key", 100, 90, penstock.SourceStore)
	})
}

// A refund during the outage pays the charges first, and they are not settled.
func TestFallbackRefundedChargeIsNotSettled(t *testing.T) {
	withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
		lim := s.limiter("100/1h")
		s.goDown()
		s.allow(lim, "key", 10, 10, penstock.SourceFallback)
		if d, err := lim.Charge(ctx, "key", 150); err != nil || d.Granted != 150 {
			s.Fatal(d, err)
		}
		if d, err := lim.Refund(ctx, "key", 155); err != nil || d.Granted != -155 {
			s.Fatal(d, err)
		}
		s.comeUp()
		s.allow(lim, "key", 100, 95, penstock.SourceStore)
	})
}

// Under FailClosed there is no place for a charge: it is allowed, and Granted says that
// nothing was charged. It denies no other request of a TakeAll.
func TestFallbackChargeIsNeverDenied(t *testing.T) {
	for _, mode := range []penstock.FailureMode{penstock.FailLocal, penstock.FailOpen, penstock.FailClosed} {
		charged := int64(150)
		if mode == penstock.FailClosed {
			charged = 0
		}
		o := penstock.FallbackOptions{OnFailure: func(l penstock.Limit) (penstock.FailureMode, float64) {
			if l.Name == "other" {
				return penstock.FailLocal, 0
			}
			return mode, 0
		}}
		withFallback(t, o, func(s *fallbackFixture) {
			lim, other := s.limiter("100/1h"), s.limiter("100/1h name=other")
			s.goDown()
			if d, err := lim.Charge(ctx, "key", 150); err != nil || !d.Allowed || d.Granted != charged {
				s.Errorf("mode %d: %v, %v, want %d granted", mode, d, err, charged)
			}
			charge := lim.Request("more")
			charge.Cost, charge.Overdraw = 150, true
			ds := make([]penstock.Decision, 2)
			err := s.fallback.TakeAll(ctx, []penstock.Request{charge, other.Request("key")}, ds)
			if err != nil || !ds[0].Allowed || ds[0].Granted != charged || ds[1].Granted != 1 {
				s.Errorf("mode %d, all or nothing: %v, %v, want %d and 1 granted", mode, ds, err, charged)
			}
		})
	}
}

// After a long outage, what many IDs of one key were granted is charged only as far as time has
// not paid it back. A sliding window counts what its last window was granted in full.
func TestFallbackChargesUnderIDsWhatTimeHasNotPaidBack(t *testing.T) {
	for _, algorithm := range []string{"token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "rolling-window", "sliding-log"} {
		for _, kind := range []string{"take", "overdraw", "settle"} {
			t.Run(algorithm+" "+kind, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					primary, secondary := penstock.NewMemory(nil), penstock.NewMemory(nil)
					remote := &remoteStore{store: primary}
					fallback := penstock.WithFallback(remote, secondary, &penstock.FallbackOptions{Failures: 1})
					lim := limiter(t, fallback, "100/100s "+algorithm)
					remote.down.Store(true)
					for i := range fixedseed.FewerUnderRace(500) { // twenty-five in each period
						takeDuringOutage(t, lim, strconv.Itoa(i), kind, 1)
						time.Sleep(4 * time.Second)
					}
					takeDuringOutage(t, lim, "last", kind, 30)
					remote.down.Store(false)
					waitUntilUp(t, fallback)
					time.Sleep(time.Second)
					allowOne(t, lim, "else") // lets the ledger try again
					synctest.Wait()
					owed, charged := usedOf(t, secondary, lim), usedOf(t, primary, lim)
					most := owed + 1 // a unit of which time has paid a part
					if lim.Limit().Algorithm == penstock.SlidingWindow {
						most = owed + 25
					}
					if owed < 25 || charged < owed || charged > most {
						t.Errorf("%d units are charged, want from %d to %d", charged, owed, most)
					}
				})
			})
		}
	}
}

// takeDuringOutage takes units under an ID, and settles them, or overdraws the key by them if the
// limit has debt.
func takeDuringOutage(t *testing.T, lim *penstock.Limiter, id, kind string, units int64) {
	t.Helper()
	a := lim.Limit().Algorithm
	r := lim.Request("key")
	r.ID, r.Cost = id, units
	r.Overdraw = kind == "overdraw" && a != penstock.RollingWindow && a != penstock.SlidingLog
	if d, err := lim.Store().Take(ctx, r); err != nil || d.Granted != units || d.Source != penstock.SourceFallback {
		t.Fatalf("take: %v, %v", d, err)
	}
	if kind == "settle" {
		settleDuringOutage(t, lim, id, units)
	}
}

func settleDuringOutage(t *testing.T, lim *penstock.Limiter, id string, units int64) {
	t.Helper()
	r := lim.Request("key")
	r.ID, r.Cost, r.Settle = id, units, true
	if d, err := lim.Store().Take(ctx, r); err != nil || d.Granted != units || d.Source != penstock.SourceFallback {
		t.Fatalf("settle: %v, %v", d, err)
	}
}

// A settlement that charges no more does not put off when time has paid back its ID.
func TestFallbackSettlementKeepsWhenTimePaysBack(t *testing.T) {
	for _, amount := range []int64{10, 8} {
		withFallback(t, penstock.FallbackOptions{}, func(s *fallbackFixture) {
			lim := s.limiter("100/100s")
			s.goDown()
			takeDuringOutage(s.T, lim, "first", "take", 10)
			takeDuringOutage(s.T, lim, "second", "take", 30)
			settleDuringOutage(s.T, lim, "first", amount)
			s.sleep(15 * time.Second)
			s.comeUp()
			s.sleep(time.Second)
			allowOne(s.T, lim, "else")
			synctest.Wait()
			if charged := usedOf(s.T, s.primary.store, lim); charged < 10 || charged > 25 {
				s.Errorf("settled to %d: %d units are charged, want those of the second ID, at most 25", amount, charged)
			}
		})
	}
}

// usedOf returns how many units of a key a store counts as used.
func usedOf(t *testing.T, store penstock.Store, lim *penstock.Limiter) int64 {
	t.Helper()
	d, err := store.Take(ctx, penstock.Request{Key: "key", Limit: lim.Limit()})
	if err != nil {
		t.Fatal(err)
	}
	return d.Limit - d.Remaining
}
