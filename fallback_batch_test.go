package penstock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

// A refund in a batch is postponed as a single one is, while the primary store is being told of its
// ID: a refund that came first would refund nothing, and the charge after it would stay.
func TestFallbackTakeEachPostponesRefundOfDebtInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := &remoteStore{store: penstock.NewMemory(nil)}
		fallback := penstock.WithFallback(primary, nil, &penstock.FallbackOptions{Failures: 1})
		lim := limiter(t, fallback, "100/1h fixed-window")
		primary.down.Store(true)
		var refunds []penstock.Request
		for _, id := range []string{"a", "b"} { // a probe settles one of them, and a batch the other
			r := lim.Request("key")
			r.ID, r.Cost = id, 5
			if d, err := fallback.Take(ctx, r); err != nil || d.Source != penstock.SourceFallback {
				t.Fatal(d, err)
			}
			r.Cost = -5
			refunds = append(refunds, r)
		}
		primary.down.Store(false)
		primary.requestDelay = func(r penstock.Request) time.Duration {
			if r.Cost > 0 {
				return 20 * time.Millisecond
			}
			return 0
		}
		time.Sleep(time.Second)
		fallback.Down()                   // a probe, of two calls
		time.Sleep(50 * time.Millisecond) // the batch is in flight
		ds, postponed := make([]penstock.Decision, 2), 0
		if err := penstock.TakeEach(ctx, fallback, refunds, ds); err != nil {
			t.Fatal(err)
		}
		for i, d := range ds {
			if d.Granted == 0 {
				postponed++
			}
			if d.Granted == 0 && d.Source == penstock.SourceStore {
				t.Errorf("%s: %v, want a refund that the caller has to repeat", refunds[i].ID, d)
			}
		}
		if postponed != 1 {
			t.Errorf("%d refunds were postponed, want that of the debt in flight", postponed)
		}
		time.Sleep(time.Second)
		if err := penstock.TakeEach(ctx, fallback, refunds, ds); err != nil {
			t.Fatal(err)
		}
		expectRemaining(t, lim, "key", 100)
	})
}

// A refund does not shorten how long the primary store remembers the rest of the grant.
func TestFallbackRefundKeepsHoldOfID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := penstock.NewMemory(nil)
		primary := &remoteStore{store: memory}
		fallback := penstock.WithFallback(primary, nil, &penstock.FallbackOptions{Failures: 1})
		r := limiter(t, fallback, "100/1s").Request("key")
		r.ID, r.Cost, r.Hold = "a", 50, time.Hour
		primary.down.Store(true)
		refund := r
		refund.Cost, refund.Hold = -5, 0
		for _, r := range []penstock.Request{r, refund} {
			if d, err := fallback.Take(ctx, r); err != nil || d.Granted != r.Cost {
				t.Fatal(d, err)
			}
		}
		primary.down.Store(false)
		for range 4 { // the debt is charged before time pays it back
			time.Sleep(100 * time.Millisecond)
			fallback.Down()
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		r.Cost, r.Settle = 10, true
		if d, err := memory.Take(ctx, r); err != nil {
			t.Errorf("a settlement within the hold: %v, %v", d, err)
		}
	})
}

// A refund whose response was lost is not made a second time, of units that the secondary granted.
func TestFallbackRefundsOnceAfterLostResponse(t *testing.T) {
	for _, inBatch := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			primary, secondary := &remoteStore{store: penstock.NewMemory(nil)}, penstock.NewMemory(nil)
			fallback := penstock.WithFallback(primary, secondary, nil)
			lim, local := limiter(t, fallback, "100/1h fixed-window"), limiter(t, secondary, "100/1h fixed-window")
			if d, err := lim.AllowN(ctx, "key", 20); err != nil || d.Source != penstock.SourceStore {
				t.Fatal(d, err)
			}
			primary.loseResponse = func([]penstock.Request) bool {
				// Meanwhile, another call fails, and the secondary decides it.
				if _, err := local.AllowN(ctx, "key", 10); err != nil {
					t.Error(err)
				}
				return true
			}
			refund, ds := lim.Request("key"), make([]penstock.Decision, 1)
			refund.Cost = -10
			var err error
			if inBatch {
				err = penstock.TakeEach(ctx, fallback, []penstock.Request{refund}, ds)
			} else {
				ds[0], err = fallback.Take(ctx, refund)
			}
			if err != nil || !ds[0].Allowed || ds[0].Granted != 0 {
				t.Errorf("batch=%v: %v, %v, want none that is known to be refunded", inBatch, ds[0], err)
			}
			expectRemaining(t, local, "key", 90)
		})
	}
}
