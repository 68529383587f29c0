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
	"github.com/penstock-io/penstock/storetest"
)

// What is not to be leased, a lease lets pass unchanged.
func TestLeaseIsAStore(t *testing.T) {
	storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
		memory := penstock.NewMemory(&penstock.MemoryOptions{Now: clock.Now, Tick: time.Millisecond, MaxKeys: 1 << 12})
		return penstock.WithLease(memory, &penstock.LeaseOptions{
			Now: clock.Now, Only: func(penstock.Limit) bool { return false },
		})
	})
}

// A landlord is a store that is leased from by a few nodes, in a bubble.
type landlord struct {
	*testing.T
	store *farStore
	nodes []*penstock.Lease
	limit string
}

func leasing(t *testing.T, limit string, nodes int, story func(*landlord)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		l := &landlord{T: t, limit: limit, store: &farStore{store: penstock.NewMemory(nil)}}
		for range nodes {
			l.nodes = append(l.nodes, penstock.WithLease(l.store, &penstock.LeaseOptions{Nodes: nodes, MaxKeys: 1 << 10}))
		}
		story(l)
		for _, node := range l.nodes {
			if err := node.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(2 * leaseAge) // for what is still under way
	})
}

func (l *landlord) limiter(node int) *penstock.Limiter {
	l.Helper()
	return limiter(l.T, l.nodes[node], l.limit)
}

// left returns what the store has left of a key.
func (l *landlord) left(key string) int64 {
	l.Helper()
	d, err := limiter(l.T, l.store.store, l.limit).Peek(ctx, key)
	if err != nil {
		l.Fatal(err)
	}
	return d.Remaining
}

// spend spends some units of a key, one after the other.
func (l *landlord) spend(lim *penstock.Limiter, key string, units int) {
	l.Helper()
	for range units {
		spendOne(l.T, lim, key)
	}
}

// ask asks for one unit after the other, so many a second, and returns how many
// were granted, and how many of those from what was held.
func (l *landlord) ask(lim *penstock.Limiter, key string, times int, perSecond int) (granted, held int64) {
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
			held++
		}
		time.Sleep(time.Second / time.Duration(perSecond))
	}
	return granted, held
}

func TestBusyKeyCostsFewTrips(t *testing.T) {
	leasing(t, "10000/1s burst=1500", 1, func(l *landlord) {
		lim := l.limiter(0)
		var granted, held int64
		trips := l.store.tripsFor(func() { granted, held = l.ask(lim, "key", 20_000, 5000) })
		if granted != 20_000 || trips > 200 {
			l.Errorf("%d of 20000 were granted in %d trips, want all in at most 200", granted, trips)
		}
		if held < 19_700 {
			l.Errorf("%d were spent of what was held, want nearly all", held)
		}
	})
}

// Eight nodes ask for far more than there is, and get nearly all of it with few
// trips.
func TestSaturatedKeyCostsFewTrips(t *testing.T) {
	const nodes, perSecond, seconds = 8, 4000, 10
	leasing(t, "6000/1s", nodes, func(l *landlord) {
		l.store.there = after(100 * time.Microsecond)
		var granted atomic.Int64
		trips := l.store.tripsFor(func() {
			var wg sync.WaitGroup
			for node := range nodes {
				lim := l.limiter(node)
				wg.Go(func() {
					n, _ := l.ask(lim, "key", perSecond*seconds, perSecond)
					granted.Add(n)
				})
			}
			wg.Wait()
		})
		const ideal = 6000 + 6000*seconds
		decisions := int64(nodes * perSecond * seconds)
		if granted.Load() < ideal*97/100 || granted.Load() > ideal+6000/10 {
			l.Errorf("%d were granted, want at least 97%% of %d, and no more than may be held beyond", granted.Load(), ideal)
		}
		if trips*1000 > decisions*15 {
			l.Errorf("%d trips for %d decisions, want at most 1.5 in 100", trips, decisions)
		}
		l.Logf("%d of %d granted in %d trips for %d decisions", granted.Load(), ideal, trips, decisions)
	})
}

// Keys that are hardly asked for are not leased, however many there are.
func TestQuietKeysAreNotLeased(t *testing.T) {
	leasing(t, "1000/1h", 1, func(l *landlord) {
		lim := l.limiter(0)
		for i := range 1000 {
			key := strconv.Itoa(i)
			for range 3 {
				spendOne(l.T, lim, key)
			}
			if left := l.left(key); left != 997 {
				l.Fatalf("%s: the store has %d left, want 997: three were asked for", key, left)
			}
		}
		_, held := l.ask(lim, "slow", 100, 5)
		if left := l.left("slow"); left < 900 || left > 906 || held != 0 {
			l.Errorf("the store has %d left after 100 in 20 seconds, and %d were spent of what was held, want 905 and none", left, held)
		}
	})
}

// What is not spent in time is not spent at all, and goes back, but for what has
// come back to the bucket by itself meanwhile.
func TestUnspentUnitsGoBack(t *testing.T) {
	leasing(t, "6000/1m", 1, func(l *landlord) { // 100 a second
		lim := l.limiter(0)
		l.ask(lim, "key", 300, 1000)
		held := 6000 - 300 - l.left("key") + 29 // that came back in 300ms, nearly
		if held < 200 {
			l.Fatalf("%d units are held, want a few hundred", held)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		// 300 were spent and 230 came back; of what was held, 100 to 150 stay taken.
		if left := l.left("key"); left < 5700+230-150-2 || left > 5700+230-100 {
			l.Errorf("the store has %d left of 6000, want about 5800", left)
		}
		before := l.left("key")
		d, err := lim.Allow(ctx, "key")
		if err != nil || !d.Allowed || d.Source == penstock.SourceLease && l.left("key") == before {
			l.Errorf("after the lease has expired: %v, %v, want it taken of the store", d, err)
		}
	})
}

// Spending right up to the end of a lease is fine; after it nothing of it is spent.
func TestNothingIsSpentAfterItsTime(t *testing.T) {
	leasing(t, "100000/1h", 1, func(l *landlord) {
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
				l.Errorf("%v after: %v, %v, want it of what is held", time.Since(start), d, err)
			}
			time.Sleep(4 * time.Millisecond)
			before := l.store.trips.Load()
			if d, err := lim.Allow(ctx, "key"); err != nil || l.store.trips.Load() == before {
				l.Errorf("%v after: %v, %v, want the store to be asked", time.Since(start), d, err)
			}
		}
	})
}

// What has expired is not added to what is leased next.
func TestExpiredUnitsAreNotKept(t *testing.T) {
	leasing(t, "100000/300d", 1, func(l *landlord) {
		var expired atomic.Bool
		var leases []int64
		l.store.seen = func(rs ...penstock.Request) {
			if expired.Load() && rs[0].Cost > 0 { // or else it is what was left
				leases = append(leases, rs[0].Cost)
			}
		}
		lim := l.limiter(0)
		l.spend(lim, "key", 50)
		if held := 100_000 - 50 - l.left("key"); held < 10 {
			l.Fatalf("%d units are held, want more than a few", held)
		}
		time.Sleep(time.Second)
		expired.Store(true) // and perhaps nobody has looked yet
		spent := int64(0)
		for ; len(leases) < 2; spent++ {
			spendOne(l.T, lim, "key")
		}
		if spent != leases[0]+1 { // the last one was of the next lease
			l.Errorf("%d were spent of a lease of %d", spent-1, leases[0])
		}
	})
}

// Of a key of which little is left, what is asked for is taken and no more, so
// that others get the rest.
func TestLittleIsTakenOneByOne(t *testing.T) {
	leasing(t, "10000/300d", 1, func(l *landlord) {
		lim := l.limiter(0)
		if _, err := limiter(l.T, l.store.store, l.limit).AllowN(ctx, "key", 9900); err != nil {
			l.Fatal(err)
		}
		l.ask(lim, "key", 30, 100) // finds out
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

// Who is willing to wait is not denied for a moment with the rest, but gets in
// line.
func TestWaitersAreNotDeniedUnasked(t *testing.T) {
	leasing(t, "1000/1s", 1, func(l *landlord) {
		lim := l.limiter(0)
		for d := (penstock.Decision{Allowed: true}); d.Allowed || d.Source != penstock.SourceLease; {
			d, _ = lim.Allow(ctx, "key") // until it is denied unasked
			time.Sleep(10 * time.Microsecond)
		}
		r := lim.Request("key")
		r.MaxDelay = time.Second
		if d, err := lim.Store().Take(ctx, r); err != nil || !d.Allowed || d.Delay == 0 {
			l.Errorf("%v, %v, want it granted for later", d, err)
		}
	})
}

// A lease ages from before the store was asked for it.
func TestLeaseAgesFromBeforeItWasAsked(t *testing.T) {
	leasing(t, "100000/1h", 1, func(l *landlord) {
		lim := l.limiter(0)
		l.spend(lim, "key", 20)
		time.Sleep(1100 * time.Millisecond)
		synctest.Wait()                              // for what is given back
		l.store.back = after(900 * time.Millisecond) // a slow answer
		sent := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { spendOne(l.T, lim, "key") })
		wg.Wait()
		synctest.Wait()
		l.store.back = nil
		before := l.store.trips.Load()
		for time.Since(sent) < time.Second {
			spendOne(l.T, lim, "key")
			time.Sleep(10 * time.Millisecond)
		}
		if n := l.store.trips.Load() - before; n != 0 {
			l.Errorf("%d trips while the lease was good, want none", n)
		}
		spendOne(l.T, lim, "key")
		if n := l.store.trips.Load() - before; n == 0 {
			l.Error("no trip a second after the store was asked, want one: the lease is over")
		}
	})
}

func TestCloseGivesBackAndEndsTheLease(t *testing.T) {
	leasing(t, "100000/1h", 1, func(l *landlord) {
		lim := l.limiter(0)
		const keys, times = 300, 50
		for i := range keys {
			for range times {
				spendOne(l.T, lim, strconv.Itoa(i))
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

// What arrives after Close goes back at once.
func TestLeaseThatArrivesAfterClose(t *testing.T) {
	leasing(t, "100000/300d", 1, func(l *landlord) {
		lim := l.limiter(0)
		l.spend(lim, "key", 50)
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		before := l.left("key")
		l.store.back = after(100 * time.Millisecond)
		var wg sync.WaitGroup
		wg.Go(func() { spendOne(l.T, lim, "key") })
		time.Sleep(10 * time.Millisecond)
		if before-l.left("key") < 10 {
			l.Fatal("nothing is on its way")
		}
		if err := l.nodes[0].Close(ctx); err != nil {
			l.Error(err)
		}
		wg.Wait()
		time.Sleep(time.Second)
		if got := before - l.left("key"); got != 2 {
			l.Errorf("%d units stay taken, want the one that was asked for, and one that time was paying back", got)
		}
	})
}

func TestOtherRequestsPassThroughALease(t *testing.T) {
	leasing(t, "100000/1h", 1, func(l *landlord) {
		lim := l.limiter(0)
		l.spend(lim, "key", 100)
		held := 100_000 - 100 - l.left("key")
		if held < 10 {
			l.Fatal("nothing is held")
		}
		if d, err := lim.Peek(ctx, "key"); err != nil || d.Remaining != 99_900 || d.Source != penstock.SourceStore {
			l.Errorf("a look: %v, %v, want what the store has and what is held: 99900", d, err)
		}
		if d, err := lim.Refund(ctx, "key", 5); err != nil || d.Granted != -5 {
			l.Errorf("a refund: %v, %v", d, err)
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
			l.Errorf("all that is left: %v, %v, want all of the store's and all that is held: %d", d, err, want)
		}
		denied(l.T, lim, "key")
		for range 2 {
			if err := lim.Reset(ctx, "key"); err != nil {
				l.Fatal(err)
			}
			for range 100 {
				spendOne(l.T, lim, "key")
			}
		}
		if d, err := lim.AllowAtMost(ctx, "key", 1000_000); err != nil || d.Granted != 99_900 {
			l.Errorf("after a reset: %v, %v, want all of it, and nothing that was held before", d, err)
		}
	})
}

// Under a lower limit of the same name nothing is spent that the higher one held.
func TestChangedLimitEndsTheLease(t *testing.T) {
	leasing(t, "100000/300d name=n", 1, func(l *landlord) {
		lim := l.limiter(0)
		l.spend(lim, "key", 100)
		held, given := 100_000-100-l.left("key"), int64(0)
		l.store.seen = func(rs ...penstock.Request) { given -= min(rs[0].Cost, 0) }
		lower := limiter(l.T, l.nodes[0], "1000/300d name=n")
		d, err := lower.Allow(ctx, "key")
		if err != nil || d.Source != penstock.SourceStore || d.Limit != 1000 {
			l.Errorf("under the lower limit: %v, %v, want the store's answer", d, err)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if given < held*8/10 || given > held {
			l.Errorf("%d of %d units that were held were given back, want nearly all", given, held)
		}
		for range 100 {
			if d, err := lower.Allow(ctx, "key"); err != nil || d.Limit != 1000 {
				l.Errorf("%v, %v", d, err)
			}
		}
	})
}

// Takes together spend what is held only if all of them pass.
func TestTakeAllWithALease(t *testing.T) {
	leasing(t, "100000/1h", 1, func(l *landlord) {
		busy, other := l.limiter(0), limiter(l.T, l.nodes[0], "3/1h sliding-log")
		for range 100 {
			spendOne(l.T, busy, "key")
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
				l.Errorf("take %d: %v, want three that pass", i, ds)
			}
			if i < 3 && ds[0].Source != penstock.SourceLease {
				l.Errorf("take %d: %v, want what is held to be spent", i, ds[0])
			}
			if i >= 3 && (!ds[0].Allowed || ds[0].Granted != 0 || ds[1].Allowed || ds[1].RetryAfter <= 0) {
				l.Errorf("take %d: %v, want looks, and a refusal", i, ds)
			}
		}
		if got := before - total(); got != 6 {
			l.Errorf("%d units are gone after three that passed and two that did not, want 6", got)
		}
		l.store.down.Store(true)
		if err := penstock.TakeAll(ctx, l.nodes[0], rs, ds); !errors.Is(err, penstock.ErrUnavailable) {
			l.Errorf("without the store: %v", err)
		}
		l.store.down.Store(false)
		if got := before - total(); got != 6 {
			l.Errorf("%d units are gone after one that failed as well, want 6", got)
		}
	})
}

func TestTakeEachWithALease(t *testing.T) {
	leasing(t, "100000/1h", 1, func(l *landlord) {
		busy, other := l.limiter(0), limiter(l.T, l.nodes[0], "3/1h sliding-log")
		for range 100 {
			spendOne(l.T, busy, "key")
		}
		rs := []penstock.Request{busy.Request("key"), other.Request("key"), busy.Request("quiet"), busy.Request("key")}
		ds := make([]penstock.Decision, len(rs))
		trips := l.store.tripsFor(func() {
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
		if trips != 1 {
			l.Errorf("%d trips, want one", trips)
		}
	})
}

// What is asked for behind a reset is taken of the key as it is then.
func TestTakeEachBehindAReset(t *testing.T) {
	leasing(t, "100000/300d", 1, func(l *landlord) {
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

// Units that were not enough for what was asked, together with the few that the
// store had left, do not become younger by them.
func TestOldUnitsStayOld(t *testing.T) {
	leasing(t, "1000/300d", 1, func(l *landlord) {
		lim, direct := l.limiter(0), limiter(l.T, l.store.store, l.limit)
		l.ask(lim, "key", 200, 1000)
		held := 1000 - 200 - l.left("key")
		if _, err := direct.AllowN(ctx, "key", l.left("key")-1); err != nil || held < 5 {
			l.Fatal(held, err)
		}
		for range held - 3 {
			spendOne(l.T, lim, "key")
		}
		time.Sleep(800 * time.Millisecond)
		trips := l.store.tripsFor(func() {
			if d, err := lim.AllowN(ctx, "key", 5); err != nil || d.Allowed {
				l.Errorf("five, with three held and one in the store: %v, %v", d, err)
			}
		})
		if trips != 2 || l.left("key") != 0 {
			l.Fatalf("%d trips, and %d left: want the last one to be leased in vain", trips, l.left("key"))
		}
		time.Sleep(200 * time.Millisecond) // the three are more than a second old
		if d, err := lim.Allow(ctx, "key"); err != nil || d.Allowed {
			l.Errorf("after the lease has expired: %v, %v, want a denial", d, err)
		}
	})
}

// One caller asks for more, and the others wait for it; a store that hangs keeps
// nobody much longer than itself.
func TestOneRefillAtATime(t *testing.T) {
	leasing(t, "100000/1s burst=10000", 1, func(l *landlord) {
		lim := l.limiter(0)
		l.ask(lim, "key", 500, 10_000)
		time.Sleep(2 * time.Second)
		l.ask(lim, "key", 20, 10_000)
		l.store.there = after(time.Millisecond)
		time.Sleep(1100 * time.Millisecond)
		trips := l.store.tripsFor(func() { crowd(20, func() { spendOne(l.T, lim, "key") }) })
		if trips > 2 {
			l.Errorf("%d trips for 20 at once, want one, or two", trips)
		}
		l.store.there = nil
		time.Sleep(1100 * time.Millisecond)
		l.store.hang = 50 * time.Millisecond
		l.store.hung.Store(true)
		start := time.Now()
		crowd(100, func() {
			if d, err := lim.Allow(ctx, "key"); err == nil && d.Source != penstock.SourceLease {
				l.Errorf("%v of a store that hangs", d)
			}
		})
		if took := time.Since(start); took > 55*time.Millisecond {
			l.Errorf("100 callers took %v, want at most 55ms", took)
		}
		l.store.hung.Store(false)
	})
}

// However long the store takes, what a node has taken ahead of it and not spent is
// never more than a node may hold.
func TestSlowStoreIsAskedForMoreOnce(t *testing.T) {
	leasing(t, "4000/300d", 1, func(l *landlord) {
		const callers, most = 8, 400
		lim := l.limiter(0)
		l.store.there, l.store.back = after(10*time.Millisecond), after(15*time.Millisecond)
		var granted, held atomic.Int64
		crowd(callers, func() {
			for range 200 {
				d, err := lim.Allow(ctx, "key")
				if err != nil {
					l.Error(err)
				}
				if granted.Add(d.Granted); d.Source == penstock.SourceLease {
					held.Add(1)
				}
				// Each of the other callers may have one unit on its way.
				if ahead := 4000 - l.left("key") - granted.Load(); ahead > most+callers {
					l.Errorf("%d units are taken ahead, want at most %d", ahead, most)
				}
				time.Sleep(time.Millisecond)
			}
		})
		if held.Load() < 800 {
			l.Errorf("%d units came from what was held: this has tested nothing", held.Load())
		}
		if err := l.nodes[0].Close(ctx); err != nil {
			l.Error(err)
		}
		if lost := 4000 - l.left("key") - granted.Load(); lost > 20 { // one for every time that it asked
			l.Errorf("%d units are lost", lost)
		}
	})
}

// Units that were on their way while their key was reset were paid for by a debt
// that is forgotten, or may have been, and are nobody's.
func TestResetWhileMoreIsAskedFor(t *testing.T) {
	for _, back := range []time.Duration{0, 100 * time.Millisecond} {
		leasing(t, "100000/300d", 1, func(l *landlord) {
			lim := l.limiter(0)
			for range 50 {
				spendOne(l.T, lim, "key")
			}
			time.Sleep(1500 * time.Millisecond)
			synctest.Wait()
			l.store.there = func(r penstock.Request) time.Duration {
				if r.Cost == penstock.Reset {
					return 20 * time.Millisecond
				}
				return 0
			}
			l.store.back = func(r penstock.Request) time.Duration {
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
					spendOne(l.T, lim, "key")
					if i > 25 {
						late.Add(1) // than the reset, which the store has seen after 22
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

// Whoever asks for more and goes away leaves it to the others.
func TestCallerWhoGoesAwayWastesNothing(t *testing.T) {
	leasing(t, "10000/300d", 1, func(l *landlord) {
		lim := l.limiter(0)
		l.ask(lim, "key", 300, 1000)
		time.Sleep(1500 * time.Millisecond)
		synctest.Wait()
		l.store.back = after(5 * time.Millisecond)
		hurried, cancel := context.WithTimeout(ctx, time.Millisecond)
		defer cancel()
		start := time.Now()
		if _, err := lim.Allow(hurried, "key"); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > time.Millisecond {
			l.Errorf("%v after %v, want that the caller's time was up", err, time.Since(start))
		}
		time.Sleep(10 * time.Millisecond)
		trips := l.store.tripsFor(func() {
			if granted, held := l.ask(lim, "key", 50, 1000); granted != 50 || held != 50 {
				l.Errorf("%d granted, %d of them held, want all of 50", granted, held)
			}
		})
		if trips != 0 {
			l.Errorf("%d trips, want none: more was taken than the one who asked could use", trips)
		}
	})
}

// What a fallback grants in the store's place is not held.
func TestFallbackIsNotLeasedFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first := &farStore{store: penstock.NewMemory(nil)}
		second := penstock.NewMemory(nil)
		lease := penstock.WithLease(penstock.WithFallback(first, second, nil), nil)
		lim := limiter(t, lease, "100000/1h")
		for range 100 {
			spendOne(t, lim, "key")
		}
		first.down.Store(true)
		time.Sleep(1100 * time.Millisecond) // the lease is over
		for range 500 {
			d, err := lim.Allow(ctx, "key")
			if err != nil || !d.Allowed || d.Source != penstock.SourceFallback || d.Granted != 1 {
				t.Fatalf("while the store is away: %v, %v, want the fallback's", d, err)
			}
			time.Sleep(5 * time.Millisecond)
		}
		d, err := limiter(t, second, "100000/1h").Peek(ctx, "key")
		if err != nil || d.Remaining < 99_430 || d.Remaining > 99_600 {
			t.Errorf("500 were granted, and the second store has %v left, %v", d, err)
		}
		if err := lease.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestOnlyChosenLimitsAreLeased(t *testing.T) {
	memory := penstock.NewMemory(nil)
	lease := penstock.WithLease(memory, &penstock.LeaseOptions{
		Only: func(l penstock.Limit) bool { return strings.HasPrefix(l.Name, "leased") },
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

// Close says so when units could not be given back.
func TestCloseWithoutTheStore(t *testing.T) {
	store := &farStore{store: penstock.NewMemory(nil)}
	lease := penstock.WithLease(store, nil)
	lim := limiter(t, lease, "100000/1h")
	for range 100 {
		spendOne(t, lim, "key")
	}
	store.down.Store(true)
	if err := lease.Close(ctx); !errors.Is(err, penstock.ErrUnavailable) {
		t.Errorf("got %v, want that the store is unavailable", err)
	}
	if err := lease.Close(ctx); err != nil {
		t.Errorf("a second time: %v, want nothing left to give back", err)
	}
}

// However many spend at once, no unit is spent twice and none is lost.
func TestLeaseInACrowd(t *testing.T) {
	const workers, times = 32, 2000
	store := &farStore{store: penstock.NewMemory(nil)}
	lease := penstock.WithLease(store, &penstock.LeaseOptions{MaxAge: time.Hour})
	lim := limiter(t, lease, "10000000/1h name=n burst=40000")
	var granted atomic.Int64
	crowd(workers, func() {
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
	// What time has brought meanwhile can be any number, but never less than none.
	if spent := 40_000 - d.Remaining; granted.Load() < spent {
		t.Errorf("%d were granted, and the store misses %d", granted.Load(), spent)
	}
	if granted.Load() < 40_000 {
		t.Errorf("%d were granted of 64000 asked for and 40000 there", granted.Load())
	}
}

// Nodes that ask for a little now and then, so that what they lease goes back
// unspent, and then for all there is, never spend more in any interval than a lease
// promises.
func TestLeaseBounds(t *testing.T) {
	var given atomic.Int64
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 3))
		nodes := 1 + rng.IntN(8)
		limit := penstock.Per(1+rng.Int64N(30), time.Second).WithBurst(200 + rng.Int64N(1000))
		leasing(t, limit.String(), nodes, func(l *landlord) {
			b := &bounds{limit: limit, held: limit.Burst / int64(10*nodes) * int64(nodes)}
			l.store.seen = func(rs ...penstock.Request) {
				if rs[0].Cost < 0 {
					given.Add(int64(len(rs)))
				}
			}
			take := func(node int, times int64) {
				lim := l.limiter(node)
				for range times {
					d, err := lim.AllowN(ctx, "key", 1+rng.Int64N(2))
					if err != nil {
						l.Fatal(err)
					}
					if complaint := b.spend(d.Granted); complaint != "" {
						l.Fatalf("seed %d: %v by %d nodes: %s", seed, limit, nodes, complaint)
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
				time.Sleep(time.Duration(rng.Int64N(limit.Burst)) * time.Duration(intervalOf(limit)))
			}
		})
	}
	if given.Load() < 150 {
		t.Errorf("%d times units were given back: this has tested nothing", given.Load())
	}
}

// bounds are what any interval may spend. Each is a bucket that never denies,
// whose level is the most that an interval until now has spent beyond the rate.
type bounds struct {
	limit penstock.Limit
	held  int64
	level int64
	at    time.Time
}

func (b *bounds) spend(units int64) (complaint string) {
	interval := intervalOf(b.limit)
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
		spendOne(t, lim, "key")
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = lim.Allow(ctx, "key") }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
	if err := lease.Close(ctx); err != nil {
		t.Error(err)
	}
}

func TestLeaseWithoutAStore(t *testing.T) {
	lease := penstock.WithLease(nil, nil)
	if _, err := lease.Take(ctx, penstock.Request{Key: "k", Limit: penstock.PerSecond(1), Cost: 1}); err == nil {
		t.Error("a lease from no store: want an error")
	}
}
