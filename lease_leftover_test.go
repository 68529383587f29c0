package penstock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

// demandTen makes a key nearly busy enough for a refill, by seven units, and leaves so many units
// of it in the store. A request for ten then causes a refill of ten.
func (l *leaseFixture) demandTen(key string, left int64) {
	l.Helper()
	l.spend(l.limiter(0), key, 7)
	direct := limiter(l.T, l.store.store, l.limit)
	if d, err := direct.AllowN(ctx, key, l.left(key)-left); err != nil || !d.Allowed {
		l.Fatal(d, err)
	}
}

// Units of a refill that are too few for its request are held, and refunded as any others.
func TestLeaseRefundsUnitsThatAreTooFew(t *testing.T) {
	withLease(t, "100/300d", 1, func(l *leaseFixture) {
		l.demandTen("key", 7)
		if d, err := l.limiter(0).AllowN(ctx, "key", 10); err != nil || d.Allowed {
			l.Fatalf("ten of seven: %v, %v, want a denial", d, err)
		}
		if left := l.left("key"); left != 0 {
			l.Fatalf("%d left, want all seven to be held", left)
		}
		time.Sleep(3 * leaseAge)
		synctest.Wait()
		if left := l.left("key"); left != 6 {
			l.Errorf("%d left after the units have expired, want all but the one that time pays back", left)
		}
	})
}

// Beside an error, only decisions that were made are not zero.
func TestLeaseTakeEachErrorLeavesNoRefillAsDecision(t *testing.T) {
	withLease(t, "100/300d", 1, func(l *leaseFixture) {
		l.demandTen("few", 7)
		l.demandTen("fails", 50)
		l.store.refuse = func(r penstock.Request) bool { return r.Key == "fails" }
		lim := l.limiter(0)
		rs := []penstock.Request{lim.Request("few"), lim.Request("fails")}
		rs[0].Cost, rs[1].Cost = 10, 10
		ds := make([]penstock.Decision, 2)
		if err := penstock.TakeEach(ctx, l.nodes[0], rs, ds); err == nil || l.left("few") != 0 {
			l.Fatalf("%v, %d left, want an error after a refill", err, l.left("few"))
		}
		if ds[0] != (penstock.Decision{}) {
			l.Errorf("%v for a request that was not decided, want no decision", ds[0])
		}
	})
}

// A TakeAll that is denied does not make older units young: they are not held beyond MaxAge.
func TestLeaseDeniedTakeAllKeepsAgeOfOldUnits(t *testing.T) {
	withLease(t, "10000/300d", 1, func(l *leaseFixture) {
		l.store.requestDelay = delayedRefunds // what is refilled is counted before the old units come back
		busy, other := l.limiter(0), limiter(l.T, l.nodes[0], "3/1h sliding-log")
		l.request(busy, "key", 100, 1000)
		left := func() (units int64) {
			d, err := busy.Peek(ctx, "key")
			if err != nil {
				l.Fatal(err)
			}
			return d.Remaining - l.left("key")
		}
		for left() > 5 {
			allowOne(l.T, busy, "key")
		}
		old := left()
		time.Sleep(leaseAge * 8 / 10)
		before := l.left("key")
		rs := []penstock.Request{busy.Request("key"), other.Request("key")}
		rs[0].Cost, rs[1].Cost = old+1, 4
		ds := make([]penstock.Decision, 2)
		if err := penstock.TakeAll(ctx, l.nodes[0], rs, ds); err != nil || !ds[0].Allowed || ds[1].Allowed {
			l.Fatalf("%v, %v, want the second to deny", ds, err)
		}
		refilled := before - l.left("key")
		if old == 0 || refilled < old {
			l.Fatalf("%d units were held and %d refilled, want a refill beside old units", old, refilled)
		}
		time.Sleep(leaseAge / 2)
		l.store.down.Store(true)
		spent := int64(0)
		for {
			if d, err := busy.Allow(ctx, "key"); err != nil || !d.Allowed {
				break
			}
			spent++
		}
		l.store.down.Store(false)
		if spent > refilled {
			l.Errorf("%d units were spent when only %d were not too old", spent, refilled)
		}
	})
}

// A reset erases the debt for units that wait for their refund. Refunding them would return what
// was taken since.
func TestLeaseResetDropsUnitsThatAreReturned(t *testing.T) {
	withLease(t, "100000/300d name=n", 1, func(l *leaseFixture) {
		l.spend(l.limiter(0), "key", 100)
		lower := limiter(l.T, l.nodes[0], "10000/300d name=n")
		if _, err := lower.Peek(ctx, "key"); err != nil {
			l.Fatal(err)
		}
		allowOne(l.T, lower, "key") // the units of the other limit are returned soon
		if err := lower.Reset(ctx, "key"); err != nil {
			l.Fatal(err)
		}
		direct := limiter(l.T, l.store.store, "10000/300d name=n")
		if d, err := direct.AllowN(ctx, "key", 9000); err != nil || !d.Allowed {
			l.Fatal(d, err)
		}
		time.Sleep(3 * leaseAge)
		synctest.Wait()
		expectRemaining(l.T, direct, "key", 1000)
	})
}

// The same holds for units that a TakeAll puts back after a reset.
func TestLeaseResetDropsUnitsOfTakeAllInFlight(t *testing.T) {
	withLease(t, "100000/300d", 1, func(l *leaseFixture) {
		busy, other := l.limiter(0), limiter(l.T, l.nodes[0], "3/1h sliding-log")
		l.spend(busy, "key", 100)
		l.store.responseDelay = func(r penstock.Request) time.Duration {
			if r.Limit.Algorithm == penstock.SlidingLog {
				return 100 * time.Millisecond
			}
			return 0
		}
		rs := []penstock.Request{busy.Request("key"), other.Request("key")}
		rs[0].Cost, rs[1].Cost = 50, 4
		ds := make([]penstock.Decision, 2)
		done := make(chan error)
		go func() { done <- penstock.TakeAll(ctx, l.nodes[0], rs, ds) }()
		time.Sleep(10 * time.Millisecond)
		if err := busy.Reset(ctx, "key"); err != nil {
			l.Fatal(err)
		}
		direct := limiter(l.T, l.store.store, l.limit)
		if d, err := direct.AllowN(ctx, "key", 1000); err != nil || !d.Allowed {
			l.Fatal(d, err)
		}
		if err := <-done; err != nil || ds[1].Allowed {
			l.Fatal(ds, err)
		}
		time.Sleep(3 * leaseAge)
		synctest.Wait()
		expectRemaining(l.T, direct, "key", 99_000)
	})
}

// A store that panics ends its refill, so that the key is leased again.
func TestLeaseEndsRefillOfPanickingStore(t *testing.T) {
	withLease(t, "10000/300d", 1, func(l *leaseFixture) {
		l.store.onRequest = func(rs ...penstock.Request) {
			if rs[0].AtMost {
				panic("refill")
			}
		}
		lim := l.limiter(0)
		recovered := 0
		for range 20 {
			func() {
				defer func() {
					if recover() != nil {
						recovered++
					}
				}()
				_, _ = lim.Allow(context.WithoutCancel(ctx), "key")
			}()
		}
		if recovered == 0 {
			l.Fatal("no refill")
		}
		l.store.onRequest = nil
		if granted, leased := l.request(lim, "key", 50, 1000); granted != 50 || leased < 40 {
			l.Errorf("%d granted, %d of them leased, want nearly all of 50", granted, leased)
		}
	})
}
