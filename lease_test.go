package penstock_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/storetest"
)

// A limit that is not leased passes through unchanged.
func TestLeaseConformsToStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
		memory := penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond, MaxKeys: 1 << 12})
		return penstock.WithLease(memory, &penstock.LeaseOptions{
			Now: clock.Now, Only: func(penstock.Limit) bool { return false },
		})
	})
}

// leaseAge is how long a lease holds units by default.
const leaseAge = time.Second

// A leaseFixture is a store and a few nodes that lease from it, in a synctest bubble.
type leaseFixture struct {
	*testing.T
	store *remoteStore
	nodes []*penstock.Lease
	limit string
}

func withLease(t *testing.T, limit string, nodes int, test func(*leaseFixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &leaseFixture{T: t, limit: limit, store: &remoteStore{store: penstock.NewMemory(nil)}}
		for range nodes {
			l.nodes = append(l.nodes, penstock.WithLease(l.store, &penstock.LeaseOptions{Nodes: nodes, MaxKeys: 1 << 10}))
		}
		test(l)
		for _, node := range l.nodes {
			if err := node.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(2 * leaseAge) // for calls in flight
	})
}

func (l *leaseFixture) limiter(node int) *penstock.Limiter {
	l.Helper()
	return limiter(l.T, l.nodes[node], l.limit)
}

// left returns what the store has left of a key.
func (l *leaseFixture) left(key string) int64 {
	l.Helper()
	d, err := limiter(l.T, l.store.store, l.limit).Peek(ctx, key)
	if err != nil {
		l.Fatal(err)
	}
	return d.Remaining
}

// spend spends some units of a key, one after the other.
func (l *leaseFixture) spend(lim *penstock.Limiter, key string, units int) {
	l.Helper()
	for range units {
		allowOne(l.T, lim, key)
	}
}

// request requests one unit after the other at a rate, and returns how many were
// granted, and how many of those by leased units.
func (l *leaseFixture) request(lim *penstock.Limiter, key string, times int, perSecond int) (granted, leased int64) {
	l.Helper()
	for range times {
		d, err := lim.Allow(ctx, key)
		if err != nil {
			l.Fatal(err)
		}
		if d.Allowed {
			granted++
		}
		if d.Allowed && d.Source == penstock.SourceLease {
			leased++
		}
		time.Sleep(time.Second / time.Duration(perSecond))
	}
	return granted, leased
}

func TestLeaseBusyKeyCostsFewCalls(t *testing.T) {
	withLease(t, "10000/1s burst=1500", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		var granted, held int64
		calls := l.store.callsDuring(func() { granted, held = l.request(lim, "key", 20_000, 5000) })
		if granted != 20_000 || calls > 200 {
			l.Errorf("%d of 20000 were granted in %d calls, want all in at most 200", granted, calls)
		}
		if held < 19_700 {
			l.Errorf("%d were leased, want nearly all", held)
		}
	})
}

// After SetNodes, a process holds its part of a tenth of the burst: here less than two units, so nothing.
func TestLeaseSetNodesBoundsWhatIsHeld(t *testing.T) {
	withLease(t, "10000/1s burst=1500", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		if _, leased := l.request(lim, "key", 1000, 5000); leased == 0 {
			l.Error("alone: nothing was leased")
		}
		l.nodes[0].SetNodes(100)
		time.Sleep(2 * leaseAge)
		if _, leased := l.request(lim, "key", 1000, 5000); leased != 0 {
			l.Errorf("one of 100 nodes: %d were leased, want none", leased)
		}
	})
}

// Eight nodes request far more units than there are, and get nearly all of them with
// few calls.
func TestLeaseSaturatedKeyCostsFewCalls(t *testing.T) {
	const nodes, perSecond, seconds = 8, 4000, 10
	withLease(t, "6000/1s", nodes, func(l *leaseFixture) {
		l.store.requestDelay = fixedDelay(100 * time.Microsecond)
		var granted atomic.Int64
		calls := l.store.callsDuring(func() {
			var wg sync.WaitGroup
			for node := range nodes {
				lim := l.limiter(node)
				wg.Go(func() {
					n, _ := l.request(lim, "key", perSecond*seconds, perSecond)
					granted.Add(n)
				})
			}
			wg.Wait()
		})
		const ideal = 6000 + 6000*seconds
		decisions := int64(nodes * perSecond * seconds)
		if granted.Load() < ideal*97/100 || granted.Load() > ideal+6000/10 {
			l.Errorf("%d were granted, want at least 97%% of %d, and no more than may be held in addition", granted.Load(), ideal)
		}
		if calls*1000 > decisions*15 {
			l.Errorf("%d calls for %d decisions, want at most 1.5 in 100", calls, decisions)
		}
		l.Logf("%d of %d granted in %d calls for %d decisions", granted.Load(), ideal, calls, decisions)
	})
}

// Keys with little demand are not leased, however many there are.
func TestLeaseIgnoresQuietKeys(t *testing.T) {
	withLease(t, "1000/1h", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		for i := range 1000 {
			key := strconv.Itoa(i)
			for range 3 {
				allowOne(l.T, lim, key)
			}
			if left := l.left(key); left != 997 {
				l.Fatalf("%s: the store has %d left, want 997: three were taken", key, left)
			}
		}
		_, held := l.request(lim, "slow", 100, 5)
		if left := l.left("slow"); left < 900 || left > 906 || held != 0 {
			l.Errorf("the store has %d left after 100 in 20 seconds, and %d were leased, want 905 and none", left, held)
		}
	})
}

// Units that are not spent in time are refunded, except for those that the bucket has
// earned back since.
func TestLeaseRefundsUnspentUnits(t *testing.T) {
	withLease(t, "6000/1m", 1, func(l *leaseFixture) { // 100 a second
		lim := l.limiter(0)
		l.request(lim, "key", 300, 1000)
		held := 6000 - 300 - l.left("key") + 29 // earned back in about 300ms
		if held < 200 {
			l.Fatalf("%d units are held, want a few hundred", held)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		// 300 were spent and 230 earned back; of the units held, 100 to 150 stay taken.
		if left := l.left("key"); left < 5700+230-150-2 || left > 5700+230-100 {
			l.Errorf("the store has %d left of 6000, want about 5800", left)
		}
		before := l.left("key")
		d, err := lim.Allow(ctx, "key")
		if err != nil || !d.Allowed || d.Source == penstock.SourceLease && l.left("key") == before {
			l.Errorf("after the lease has expired: %v, %v, want a unit of the store", d, err)
		}
	})
}

// Units can be spent right up to the end of a lease, and not after it.
func TestLeaseUnitsExpire(t *testing.T) {
	withLease(t, "100000/1h", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		l.spend(lim, "key", 20)
		for range 3 {
			start := time.Now()
			for d := (penstock.Decision{Source: penstock.SourceStore}); d.Source != penstock.SourceLease; {
				time.Sleep(time.Millisecond)
				d, _ = lim.Allow(ctx, "key")
				start = time.Now()
			}
			time.Sleep(time.Second - 3*time.Millisecond)
			if d, err := lim.Allow(ctx, "key"); err != nil || d.Source != penstock.SourceLease {
				l.Errorf("%v after: %v, %v, want a leased unit", time.Since(start), d, err)
			}
			time.Sleep(4 * time.Millisecond)
			before := l.store.calls.Load()
			if d, err := lim.Allow(ctx, "key"); err != nil || l.store.calls.Load() == before {
				l.Errorf("%v after: %v, %v, want a call to the store", time.Since(start), d, err)
			}
		}
	})
}

func TestLeaseExpiredUnitsAreNotAddedToRefill(t *testing.T) {
	withLease(t, "100000/300d", 1, func(l *leaseFixture) {
		var expired atomic.Bool
		var leases []int64
		l.store.onRequest = func(rs ...penstock.Request) {
			if expired.Load() && rs[0].Cost > 0 { // not a refund
				leases = append(leases, rs[0].Cost)
			}
		}
		lim := l.limiter(0)
		l.spend(lim, "key", 50)
		if held := 100_000 - 50 - l.left("key"); held < 10 {
			l.Fatalf("%d units are held, want more than a few", held)
		}
		time.Sleep(time.Second)
		expired.Store(true) // the sweep may not have run yet
		spent := int64(0)
		for ; len(leases) < 2; spent++ {
			allowOne(l.T, lim, "key")
		}
		if spent != leases[0]+1 { // the last one was of the next lease
			l.Errorf("%d were spent of a lease of %d", spent-1, leases[0])
		}
	})
}

// When the store has few units left, only what is requested is taken, so other nodes
// get the rest.
func TestLeaseScarceKeyIsTakenOneByOne(t *testing.T) {
	withLease(t, "10000/300d", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		if _, err := limiter(l.T, l.store.store, l.limit).AllowN(ctx, "key", 9900); err != nil {
			l.Fatal(err)
		}
		l.request(lim, "key", 30, 100) // learns that units are scarce
		for range 30 {
			before := l.left("key")
			d, err := lim.Allow(ctx, "key")
			if err != nil || !d.Allowed || before-l.left("key") != 1 {
				l.Fatalf("%v, %v, of %d left in the store, and now there are %d: want one to be taken", d, err, before, l.left("key"))
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// A request that may be delayed goes to the store, even while other requests are
// denied locally.
func TestLeaseDelayedRequestIsNotDeniedLocally(t *testing.T) {
	withLease(t, "1000/1s", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		for d := (penstock.Decision{Allowed: true}); d.Allowed || d.Source != penstock.SourceLease; {
			d, _ = lim.Allow(ctx, "key") // until it is denied locally
			time.Sleep(10 * time.Microsecond)
		}
		r := lim.Request("key")
		r.MaxDelay = time.Second
		if d, err := lim.Store().Take(ctx, r); err != nil || !d.Allowed || d.Delay == 0 {
			l.Errorf("%v, %v, want a grant with a delay", d, err)
		}
	})
}

// A lease ages from before the store was called.
func TestLeaseAgeCountsFromBeforeTheCall(t *testing.T) {
	withLease(t, "100000/1h", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		l.spend(lim, "key", 20)
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()                                            // for refunds
		l.store.responseDelay = fixedDelay(900 * time.Millisecond) // a slow response
		sent := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { allowOne(l.T, lim, "key") })
		wg.Wait()
		synctest.Wait()
		l.store.responseDelay = nil
		before := l.store.calls.Load()
		for time.Since(sent) < time.Second {
			allowOne(l.T, lim, "key")
			time.Sleep(10 * time.Millisecond)
		}
		if n := l.store.calls.Load() - before; n != 0 {
			l.Errorf("%d calls while the lease was valid, want none", n)
		}
		allowOne(l.T, lim, "key")
		if n := l.store.calls.Load() - before; n == 0 {
			l.Error("no call a second after the refill was sent, want one: the lease has expired")
		}
	})
}

func TestLeaseCloseRefundsUnits(t *testing.T) {
	withLease(t, "100000/1h", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		const keys, times = 300, 50
		for i := range keys {
			for range times {
				allowOne(l.T, lim, strconv.Itoa(i))
			}
		}
		held := int64(0)
		for i := range keys {
			held += 100_000 - times - l.left(strconv.Itoa(i))
		}
		if held < 50*keys {
			l.Fatalf("%d units are held of %d keys, want fifty of each at least", held, keys)
		}
		if err := l.nodes[0].Close(ctx); err != nil {
			l.Fatal(err)
		}
		for i := range keys {
			if left := l.left(strconv.Itoa(i)); left < 100_000-times-1 || left > 100_000-times+2 {
				l.Fatalf("%d: the store has %d left after Close, want %d", i, left, 100_000-times)
			}
		}
		for range 100 {
			if d, err := lim.Allow(ctx, "0"); err != nil || d.Source != penstock.SourceStore {
				l.Fatalf("after Close: %v, %v, want the store's", d, err)
			}
		}
	})
}

// delayedRefunds lets a refund take half of the age of units to reach the store.
func delayedRefunds(r penstock.Request) time.Duration {
	if r.Cost < 0 {
		return leaseAge / 2
	}
	return 0
}

// After Close the caller closes the store, which would cut off a refund in flight.
func TestLeaseCloseWaitsForRefunds(t *testing.T) {
	withLease(t, "100000/300d", 1, func(l *leaseFixture) {
		l.store.requestDelay = delayedRefunds
		l.spend(l.limiter(0), "key", 50)
		if held := 100_000 - 50 - l.left("key"); held < 10 {
			l.Fatalf("%d units are held, want ten at least", held)
		}
		time.Sleep(leaseAge * 5 / 4) // the units have expired, and their refund is on its way
		if left := l.left("key"); left > 100_000-50-10 {
			l.Fatalf("%d are left before Close, want a refund in flight", left)
		}
		if err := l.nodes[0].Close(ctx); err != nil {
			l.Error(err)
		}
		if left := l.left("key"); left < 100_000-50-2 {
			l.Errorf("%d are left after Close, want all but those spent", left)
		}
	})
}

// Close waits no longer than its context.
func TestLeaseCloseEndsWithContext(t *testing.T) {
	withLease(t, "100000/300d", 1, func(l *leaseFixture) {
		l.store.requestDelay = delayedRefunds
		l.spend(l.limiter(0), "key", 50)
		time.Sleep(leaseAge * 5 / 4)
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		if err := l.nodes[0].Close(short); !errors.Is(err, context.DeadlineExceeded) {
			l.Errorf("Close: %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

// Units that arrive after Close are refunded at once.
func TestLeaseRefillAfterCloseIsRefunded(t *testing.T) {
	withLease(t, "100000/300d", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		l.spend(lim, "key", 50)
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		before := l.left("key")
		l.store.responseDelay = fixedDelay(100 * time.Millisecond)
		var wg sync.WaitGroup
		wg.Go(func() { allowOne(l.T, lim, "key") })
		time.Sleep(10 * time.Millisecond)
		if before-l.left("key") < 10 {
			l.Fatal("no refill is in flight")
		}
		if err := l.nodes[0].Close(ctx); err != nil {
			l.Error(err)
		}
		wg.Wait()
		time.Sleep(time.Second)
		if got := before - l.left("key"); got != 2 {
			l.Errorf("%d units stay taken, want the one that was requested, and one that was earned back", got)
		}
	})
}

func TestLeasePassesOtherRequests(t *testing.T) {
	withLease(t, "100000/1h", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		l.spend(lim, "key", 100)
		held := 100_000 - 100 - l.left("key")
		if held < 10 {
			l.Fatal("nothing is held")
		}
		if d, err := lim.Peek(ctx, "key"); err != nil || d.Remaining != 99_900 || d.Source != penstock.SourceStore {
			l.Errorf("peek: %v, %v, want the units in the store and those held: 99900", d, err)
		}
		if d, err := lim.Refund(ctx, "key", 5); err != nil || d.Granted != -5 {
			l.Errorf("refund: %v, %v", d, err)
		}
		once := lim.Request("key")
		once.ID = "id"
		for range 3 {
			if d, err := lim.Store().Take(ctx, once); err != nil || d.Granted != 1 || d.Source != penstock.SourceStore {
				l.Errorf("under an ID: %v, %v, want the store's", d, err)
			}
		}
		if d, err := lim.AllowN(ctx, "key", 20_000); err != nil || !d.Allowed || d.Source != penstock.SourceStore {
			l.Errorf("more than may be held: %v, %v, want the store's", d, err)
		}
		want := int64(100_000 - 100 - 20_000 - 1 + 5)
		if l.left("key") != want-held {
			l.Errorf("the store has %d left, want %d", l.left("key"), want-held)
		}
		if d, err := lim.AllowAtMost(ctx, "key", 1000_000); err != nil || d.Granted != want || l.left("key") != 0 {
			l.Errorf("all that is left: %v, %v, want all units in the store and all held: %d", d, err, want)
		}
		expectDenied(l.T, lim, "key")
		for range 2 {
			if err := lim.Reset(ctx, "key"); err != nil {
				l.Fatal(err)
			}
			for range 100 {
				allowOne(l.T, lim, "key")
			}
		}
		if d, err := lim.AllowAtMost(ctx, "key", 1000_000); err != nil || d.Granted != 99_900 {
			l.Errorf("after a reset: %v, %v, want all units, and none that was held before", d, err)
		}
	})
}

// A charge goes to the store, whatever is held. Units that are held were charged
// before, and can be spent while the key owes; there are no more of them.
func TestLeaseChargeGoesToStore(t *testing.T) {
	withLease(t, "1000/1h", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		l.spend(lim, "key", 100)
		held := 1000 - 100 - l.left("key")
		if held < 5 {
			l.Fatal("nothing is held")
		}
		d, err := lim.Charge(ctx, "key", 1500)
		if err != nil || d.Granted != 1500 || d.Remaining != 0 || d.Source != penstock.SourceStore {
			l.Fatalf("charge: %v, %v, want it charged by the store", d, err)
		}
		l.spend(lim, "key", int(held))
		expectDenied(l.T, lim, "key")
		if d, err := lim.Peek(ctx, "key"); err != nil || d.Remaining != 0 || d.ResetAfter < 95*time.Minute {
			l.Errorf("after all: %v, %v, want 1600 units owed", d, err)
		}
	})
}

// Units leased under a higher limit of the same name are not spent under the lower
// one.
func TestLeaseChangedLimitReturnsUnits(t *testing.T) {
	withLease(t, "100000/300d name=n", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		l.spend(lim, "key", 100)
		held, refunded := 100_000-100-l.left("key"), int64(0)
		l.store.onRequest = func(rs ...penstock.Request) { refunded -= min(rs[0].Cost, 0) }
		lower := limiter(l.T, l.nodes[0], "1000/300d name=n")
		d, err := lower.Allow(ctx, "key")
		if err != nil || d.Source != penstock.SourceStore || d.Limit != 1000 {
			l.Errorf("under the lower limit: %v, %v, want the store's decision", d, err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if refunded < held*8/10 || refunded > held {
			l.Errorf("%d of %d units held were refunded, want nearly all", refunded, held)
		}
		for range 100 {
			if d, err := lower.Allow(ctx, "key"); err != nil || d.Limit != 1000 {
				l.Errorf("%v, %v", d, err)
			}
		}
	})
}

func TestLeaseTakeAllSpendsOnlyIfAllAllowed(t *testing.T) {
	withLease(t, "100000/1h", 1, func(l *leaseFixture) {
		busy, other := l.limiter(0), limiter(l.T, l.nodes[0], "3/1h sliding-log")
		for range 100 {
			allowOne(l.T, busy, "key")
		}
		total := func() int64 {
			d, err := busy.Peek(ctx, "key")
			if err != nil {
				l.Fatal(err)
			}
			return d.Remaining
		}
		before := total()
		rs := []penstock.Request{busy.Request("key"), other.Request("key"), busy.Request("key")}
		ds := make([]penstock.Decision, len(rs))
		for i := range 5 {
			if err := penstock.TakeAll(ctx, l.nodes[0], rs, ds); err != nil {
				l.Fatal(err)
			}
			if allowed := penstock.Tightest(ds).Allowed; allowed != (i < 3) {
				l.Errorf("take %d: %v, want three that are allowed", i, ds)
			}
			if i < 3 && ds[0].Source != penstock.SourceLease {
				l.Errorf("take %d: %v, want leased units", i, ds[0])
			}
			if i >= 3 && (!ds[0].Allowed || ds[0].Granted != 0 || ds[1].Allowed || ds[1].RetryAfter <= 0) {
				l.Errorf("take %d: %v, want peeks, and a denial", i, ds)
			}
		}
		if got := before - total(); got != 6 {
			l.Errorf("%d units are gone after three that were allowed and two that were not, want 6", got)
		}
		l.store.down.Store(true)
		if err := penstock.TakeAll(ctx, l.nodes[0], rs, ds); !errors.Is(err, penstock.ErrUnavailable) {
			l.Errorf("without the store: %v", err)
		}
		l.store.down.Store(false)
		if got := before - total(); got != 6 {
			l.Errorf("%d units are gone after another that failed, want 6", got)
		}
	})
}

func TestLeaseTakeEachSpendsLeasedUnits(t *testing.T) {
	withLease(t, "100000/1h", 1, func(l *leaseFixture) {
		busy, other := l.limiter(0), limiter(l.T, l.nodes[0], "3/1h sliding-log")
		for range 100 {
			allowOne(l.T, busy, "key")
		}
		rs := []penstock.Request{busy.Request("key"), other.Request("key"), busy.Request("quiet"), busy.Request("key")}
		ds := make([]penstock.Decision, len(rs))
		calls := l.store.callsDuring(func() {
			if err := penstock.TakeEach(ctx, l.nodes[0], rs, ds); err != nil {
				l.Fatal(err)
			}
		})
		want := []penstock.Source{penstock.SourceLease, penstock.SourceStore, penstock.SourceStore, penstock.SourceLease}
		for i, d := range ds {
			if !d.Allowed || d.Granted != 1 || d.Source != want[i] {
				l.Errorf("%d: %v, want a grant by the %v", i, d, want[i])
			}
		}
		if calls != 1 {
			l.Errorf("%d calls, want one", calls)
		}
	})
}

// A request after a reset in the same batch sees the key as it is after the reset.
func TestLeaseTakeEachSeesEarlierReset(t *testing.T) {
	withLease(t, "100000/300d", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		l.spend(lim, "key", 100)
		rs := []penstock.Request{lim.Request("key"), lim.Request("key")}
		rs[0].Cost = penstock.Reset
		if err := penstock.TakeEach(ctx, l.nodes[0], rs, make([]penstock.Decision, 2)); err != nil {
			l.Fatal(err)
		}
		if left := l.left("key"); left != 99_999 {
			l.Errorf("the store has %d left, want 99999", left)
		}
	})
}

// Old units and a small refill that together do not suffice for a request expire when
// the old units do.
func TestLeaseRefillKeepsAgeOfOldUnits(t *testing.T) {
	withLease(t, "1000/300d", 1, func(l *leaseFixture) {
		lim, direct := l.limiter(0), limiter(l.T, l.store.store, l.limit)
		l.request(lim, "key", 200, 1000)
		held := 1000 - 200 - l.left("key")
		if _, err := direct.AllowN(ctx, "key", l.left("key")-1); err != nil || held < 5 {
			l.Fatal(held, err)
		}
		for range held - 3 {
			allowOne(l.T, lim, "key")
		}
		time.Sleep(800 * time.Millisecond)
		calls := l.store.callsDuring(func() {
			if d, err := lim.AllowN(ctx, "key", 5); err != nil || d.Allowed {
				l.Errorf("five, with three held and one in the store: %v, %v", d, err)
			}
		})
		if calls != 2 || l.left("key") != 0 {
			l.Fatalf("%d calls, and %d left: want the last one to be leased", calls, l.left("key"))
		}
		time.Sleep(200 * time.Millisecond) // the three are more than a second old
		if d, err := lim.Allow(ctx, "key"); err != nil || d.Allowed {
			l.Errorf("after the lease has expired: %v, %v, want a denial", d, err)
		}
	})
}

// One caller refills and the others wait for it. A store that hangs delays them by
// little more than the call itself.
func TestLeaseCoalescesRefills(t *testing.T) {
	withLease(t, "100000/1s burst=10000", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		l.request(lim, "key", 500, 10_000)
		time.Sleep(2 * time.Second)
		l.request(lim, "key", 20, 10_000)
		l.store.requestDelay = fixedDelay(time.Millisecond)
		time.Sleep(1100 * time.Millisecond)
		calls := l.store.callsDuring(func() { concurrently(20, func() { allowOne(l.T, lim, "key") }) })
		if calls > 2 {
			l.Errorf("%d calls for 20 concurrent requests, want one or two", calls)
		}
		l.store.requestDelay = nil
		time.Sleep(1100 * time.Millisecond)
		l.store.hang = 50 * time.Millisecond
		l.store.hung.Store(true)
		start := time.Now()
		concurrently(100, func() {
			if d, err := lim.Allow(ctx, "key"); err == nil && d.Source != penstock.SourceLease {
				l.Errorf("%v by a hung store", d)
			}
		})
		if took := time.Since(start); took > 55*time.Millisecond {
			l.Errorf("100 callers took %v, want at most 55ms", took)
		}
		l.store.hung.Store(false)
	})
}

// However slow the store is, a node never holds more units than it may.
func TestLeaseSlowStoreKeepsMaxHeld(t *testing.T) {
	withLease(t, "4000/300d", 1, func(l *leaseFixture) {
		const callers, most = 8, 400
		lim := l.limiter(0)
		l.store.requestDelay, l.store.responseDelay = fixedDelay(10*time.Millisecond), fixedDelay(15*time.Millisecond)
		var granted, held atomic.Int64
		concurrently(callers, func() {
			for range 200 {
				d, err := lim.Allow(ctx, "key")
				if err != nil {
					l.Error(err)
				}
				if granted.Add(d.Granted); d.Source == penstock.SourceLease {
					held.Add(1)
				}
				// Each of the other callers may have one unit in flight.
				if ahead := 4000 - l.left("key") - granted.Load(); ahead > most+callers {
					l.Errorf("%d units are held, want at most %d", ahead, most)
				}
				time.Sleep(time.Millisecond)
			}
		})
		if held.Load() < 800 {
			l.Errorf("%d units were leased: too few for the test to mean anything", held.Load())
		}
		if err := l.nodes[0].Close(ctx); err != nil {
			l.Error(err)
		}
		if lost := 4000 - l.left("key") - granted.Load(); lost > 20 { // one for every refill
			l.Errorf("%d units are lost", lost)
		}
	})
}

// Units of a refill that was in flight during a reset are dropped, because the reset
// may have erased the debt that paid for them.
func TestLeaseResetDropsRefillInFlight(t *testing.T) {
	for _, back := range []time.Duration{0, 100 * time.Millisecond} {
		withLease(t, "100000/300d", 1, func(l *leaseFixture) {
			lim := l.limiter(0)
			for range 50 {
				allowOne(l.T, lim, "key")
			}
			time.Sleep(1500 * time.Millisecond)
			synctest.Wait()
			l.store.requestDelay = func(r penstock.Request) time.Duration {
				if r.Cost == penstock.Reset {
					return 20 * time.Millisecond
				}
				return 0
			}
			l.store.responseDelay = func(r penstock.Request) time.Duration {
				if r.AtMost {
					return back
				}
				return 10 * time.Millisecond
			}
			var wg sync.WaitGroup
			var late atomic.Int64
			for i := range 40 {
				wg.Go(func() {
					time.Sleep(time.Duration(i) * time.Millisecond)
					allowOne(l.T, lim, "key")
					if i > 25 {
						late.Add(1) // after the reset, which reaches the store at 22ms
					}
				})
			}
			time.Sleep(2 * time.Millisecond)
			if err := lim.Reset(ctx, "key"); err != nil {
				l.Fatal(err)
			}
			wg.Wait()
			time.Sleep(time.Second)
			d, err := lim.AllowAtMost(ctx, "key", 1_000_000)
			if err != nil || d.Granted+late.Load() > 100_000 {
				l.Errorf("%d after a reset, %v, want at most 100000", d.Granted+late.Load(), err)
			}
		})
	}
}

func TestLeaseCancelledCallerLeavesRefillToOthers(t *testing.T) {
	withLease(t, "10000/300d", 1, func(l *leaseFixture) {
		lim := l.limiter(0)
		l.request(lim, "key", 300, 1000)
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		l.store.responseDelay = fixedDelay(5 * time.Millisecond)
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		start := time.Now()
		if _, err := lim.Allow(short, "key"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > time.Millisecond {
			l.Errorf("%v after %v, want the context's error", err, time.Since(start))
		}
		time.Sleep(10 * time.Millisecond)
		calls := l.store.callsDuring(func() {
			if granted, held := l.request(lim, "key", 50, 1000); granted != 50 || held != 50 {
				l.Errorf("%d granted, %d of them leased, want all of 50", granted, held)
			}
		})
		if calls != 0 {
			l.Errorf("%d calls, want none: the refill of the cancelled caller suffices", calls)
		}
	})
}

// Units that a fallback grants are not held.
func TestLeaseHoldsNoUnitsOfAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		primary := &remoteStore{store: penstock.NewMemory(nil)}
		secondary := penstock.NewMemory(nil)
		lease := penstock.WithLease(penstock.WithFallback(primary, secondary, nil), nil)
		lim := limiter(t, lease, "100000/1h")
		for range 100 {
			allowOne(t, lim, "key")
		}
		primary.down.Store(true)
		time.Sleep(1100 * time.Millisecond) // the lease expires
		for range 500 {
			d, err := lim.Allow(ctx, "key")
			if err != nil || !d.Allowed || d.Source != penstock.SourceFallback || d.Granted != 1 {
				t.Fatalf("while the store is down: %v, %v, want the fallback's", d, err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		d, err := limiter(t, secondary, "100000/1h").Peek(ctx, "key")
		if err != nil || d.Remaining < 99_430 || d.Remaining > 99_600 {
			t.Errorf("500 were granted, and the secondary store has %v left, %v", d, err)
		}
		if err := lease.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// A TakeAll that is denied leaves nothing charged at either store, even if a fallback
// granted the units of one of its requests.
func TestLeaseDeniedTakeAllReturnsUnitsOfAFallback(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refills atomic.Int64
		memory, secondary := penstock.NewMemory(nil), penstock.NewMemory(nil)
		primary := &remoteStore{store: memory}
		fallback := penstock.WithFallback(primary, secondary, nil)
		lease := penstock.WithLease(penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
			if r.AtMost && primary.down.Load() {
				refills.Add(1)
			}
			return fallback.Take(ctx, r)
		}), nil)
		busy, other := limiter(t, lease, "100000/1h"), limiter(t, lease, "3/1h sliding-log")
		left := func(s penstock.Store) int64 {
			t.Helper()
			d, err := limiter(t, s, "100000/1h").Peek(ctx, "key")
			if err != nil {
				t.Fatal(err)
			}
			return d.Remaining
		}
		for range 100 {
			allowOne(t, busy, "key")
		}
		time.Sleep(2 * leaseAge) // the lease expires
		synctest.Wait()
		before := left(memory)
		primary.down.Store(true)
		rs := []penstock.Request{busy.Request("key"), other.Request("key")}
		rs[0].Cost, rs[1].Cost = 50, 4
		ds := make([]penstock.Decision, len(rs))
		if err := penstock.TakeAll(ctx, lease, rs, ds); err != nil || !ds[0].Allowed || ds[1].Allowed || refills.Load() != 1 {
			t.Fatalf("%v, %v after %d refills, want one that is granted, and a denial", ds, err, refills.Load())
		}
		synctest.Wait() // the units are returned
		if got := left(secondary); got != 100_000 {
			t.Errorf("%d left at the secondary after a denial, want 100000", got)
		}
		primary.down.Store(false)
		allowOne(t, busy, "another key") // debts are settled
		synctest.Wait()
		if got := left(memory); got != before {
			t.Errorf("%d left at the primary after a denial, want %d", got, before)
		}
		if err := lease.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestLeaseOnlySelectsLimits(t *testing.T) {
	memory := penstock.NewMemory(nil)
	lease := penstock.WithLease(memory, &penstock.LeaseOptions{
		Only:   func(l penstock.Limit) bool { return strings.HasPrefix(l.Name, "leased") },
		MaxAge: time.Hour,
	})
	for text, want := range map[string]penstock.Source{
		"100000/1h name=leased":                    penstock.SourceLease,
		"100000/1h name=exact":                     penstock.SourceStore,
		"100000/1h leaky-bucket name=leased-leaky": penstock.SourceStore,
		"15/1h name=leased-small":                  penstock.SourceStore, // too small
	} {
		lim := limiter(t, lease, text)
		var d penstock.Decision
		for range 15 {
			var err error
			if d, err = lim.Allow(ctx, "key"); err != nil {
				t.Fatal(err)
			}
		}
		if d.Source != want {
			t.Errorf("%s: decided by the %v, want the %v", text, d.Source, want)
		}
	}
	if err := lease.Close(ctx); err != nil {
		t.Error(err)
	}
}

// Close returns the error if units could not be refunded.
func TestLeaseCloseReturnsStoreError(t *testing.T) {
	store := &remoteStore{store: penstock.NewMemory(nil)}
	lease := penstock.WithLease(store, &penstock.LeaseOptions{MaxAge: time.Hour})
	lim := limiter(t, lease, "100000/1h")
	for range 100 {
		allowOne(t, lim, "key")
	}
	store.down.Store(true)
	if err := lease.Close(ctx); !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("got %v, want ErrUnavailable", err)
	}
	if err := lease.Close(ctx); err != nil {
		t.Errorf("a second time: %v, want nothing left to refund", err)
	}
}

// With any number of concurrent callers, no unit is spent twice and none is lost.
func TestLeaseConcurrentSpendingLosesNoUnit(t *testing.T) {
	const workers, times = 32, 2000
	store := &remoteStore{store: penstock.NewMemory(nil)}
	lease := penstock.WithLease(store, &penstock.LeaseOptions{MaxAge: time.Hour})
	lim := limiter(t, lease, "10000000/1h name=n burst=40000")
	var granted atomic.Int64
	concurrently(workers, func() {
		for range times {
			d, err := lim.Allow(ctx, "key")
			if err != nil {
				t.Error(err)
			} else if d.Allowed {
				granted.Add(1)
			}
		}
	})
	if err := lease.Close(ctx); err != nil {
		t.Fatal(err)
	}
	d, err := limiter(t, store.store, "10000000/1h name=n burst=40000").Peek(ctx, "key")
	if err != nil {
		t.Fatal(err)
	}
	// The units earned back meanwhile can be any number, but not negative.
	if spent := 40_000 - d.Remaining; granted.Load() < spent {
		t.Errorf("%d were granted, and the store lacks %d", granted.Load(), spent)
	}
	// A caller that is suspended during a refill keeps its units from the others.
	if granted.Load() < 30_000 {
		t.Errorf("%d were granted of 64000 requested and 40000 available", granted.Load())
	}
}

// Nodes that request a little now and then, so that leased units are refunded, and
// then all there is, never spend more in any interval than the bounds of a lease.
func TestLeaseKeepsItsBounds(t *testing.T) {
	var refunds atomic.Int64
	seeds := fixedseed.FewerUnderRace(40)
	for seed := range uint64(seeds) {
		rng := rand.New(rand.NewPCG(seed, 3))
		nodes := 1 + rng.IntN(8)
		limit := penstock.Per(1+rng.Int64N(30), time.Second).WithBurst(200 + rng.Int64N(1000))
		withLease(t, limit.String(), nodes, func(l *leaseFixture) {
			b := &bounds{limit: limit, held: limit.Burst / int64(10*nodes) * int64(nodes)}
			l.store.onRequest = func(rs ...penstock.Request) {
				if rs[0].Cost < 0 {
					refunds.Add(int64(len(rs)))
				}
			}
			take := func(node int, times int64) {
				lim := l.limiter(node)
				for range times {
					d, err := lim.AllowN(ctx, "key", 1+rng.Int64N(2))
					if err != nil {
						l.Fatal(err)
					}
					if violation := b.spend(d.Granted); violation != "" {
						l.Fatalf("seed %d: %v by %d nodes: %s", seed, limit, nodes, violation)
					}
				}
			}
			for range 3 {
				for range rng.IntN(60) {
					take(rng.IntN(nodes), rng.Int64N(20))
					time.Sleep(time.Duration(rng.Int64N(int64(4*time.Second))) / time.Duration(nodes))
				}
				for node := range nodes {
					take(node, limit.Burst/int64(nodes)+10)
				}
				time.Sleep(time.Duration(rng.Int64N(limit.Burst)) * time.Duration(unitInterval(limit)))
			}
		})
	}
	if refunds.Load() < int64(3*seeds) {
		t.Errorf("%d refunds: too few for the test to mean anything", refunds.Load())
	}
}

// bounds check what any interval may spend. The level is that of a bucket that never
// denies: the most that an interval until now has spent beyond the rate.
type bounds struct {
	limit penstock.Limit
	held  int64
	level int64
	at    time.Time
}

func (b *bounds) spend(units int64) (violation string) {
	interval := unitInterval(b.limit)
	b.level = max(b.level-int64(time.Since(b.at)), 0) + units*interval
	b.at = time.Now()
	switch beyond := b.level / interval; {
	case b.level > (b.limit.Burst+b.held)*interval:
		return fmt.Sprintf("%d units beyond the rate, and at most B + N·q = %d may be", beyond, b.limit.Burst+b.held)
	case b.level > b.limit.Burst*interval+int64(leaseAge):
		return fmt.Sprintf("%d units beyond the rate, and at most B + r·τ = %d may be", beyond, b.limit.Burst+int64(leaseAge)/interval)
	}
	return ""
}

func TestLeaseAllocatesNothing(t *testing.T) {
	lease := penstock.WithLease(penstock.NewMemory(nil), &penstock.LeaseOptions{MaxAge: time.Hour})
	lim := limiter(t, lease, "1000000000/1h burst=100000000")
	for range 1000 {
		allowOne(t, lim, "key")
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = lim.Allow(ctx, "key") }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
	if err := lease.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestLeaseWithoutStoreReturnsError(t *testing.T) {
	lease := penstock.WithLease(nil, nil)
	if _, err := lease.Take(ctx, penstock.Request{Key: "k", Limit: penstock.PerSecond(1), Cost: 1}); err == nil {
		t.Error("no store: want an error")
	}
}

// unitInterval returns how long a bucket takes to earn one unit.
func unitInterval(l penstock.Limit) int64 {
	return (int64(l.Period) + l.Count - 1) / l.Count
}

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
