package regions_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/regions"
)

// A regionTest is one of two regions, in which each limit with a name is global.
type regionTest struct {
	*testing.T
	*regions.Store
	local, home *penstock.Memory
	pools       *regions.MemoryPools
	homeDown    atomic.Bool
	homeAlone   atomic.Bool // home is a daemon that decides without its store
	poolsDown   atomic.Bool
	homeCalls   atomic.Int64
	badKey      string                   // which home cannot decide
	slowDeposit map[string]time.Duration // by key
}

func newRegionTest(t *testing.T, s regions.Settings) *regionTest {
	tr := &regionTest{T: t, local: penstock.NewMemory(nil), home: penstock.NewMemory(nil), pools: regions.NewMemoryPools(nil)}
	home := new(penstock.BatchFunc(func(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
		tr.homeCalls.Add(1)
		if tr.homeDown.Load() {
			return penstock.ErrUnavailable
		}
		time.Sleep(100 * time.Millisecond)
		err := penstock.TakeBatch(ctx, tr.home, rs, ds, all)
		for i := range ds {
			if tr.homeAlone.Load() {
				ds[i].Source = penstock.SourceFallback
			}
			if rs[i].Key == tr.badKey {
				ds[i], err = penstock.Decision{}, &penstock.RequestError{Index: i, Err: &penstock.KeyError{Err: penstock.ErrUnavailable}}
			}
		}
		return err
	}))
	var err error
	tr.Store, err = regions.New(tr.local, failingPools{tr}, home, &regions.Options{
		Regions: 2, RoundTrip: 100 * time.Millisecond,
		Global: func(l penstock.Limit) (regions.Settings, bool) { return s, l.Name != "" },
	})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

type failingPools struct{ tr *regionTest }

func (p failingPools) Spend(ctx context.Context, key string, a regions.Ask) (regions.Spent, error) {
	if p.tr.poolsDown.Load() {
		return regions.Spent{}, penstock.ErrUnavailable
	}
	return p.tr.pools.Spend(ctx, key, a)
}

func (p failingPools) Deposit(ctx context.Context, key string, l regions.Lot) (bool, error) {
	_, name, _ := strings.Cut(key, ":")
	time.Sleep(p.tr.slowDeposit[name])
	return p.tr.pools.Deposit(ctx, key, l)
}

var (
	global = penstock.PerMinute(1000).WithName("global") // each of two regions holds 40, and home keeps 80 free
	own    = penstock.PerMinute(10)
)

func (tr *regionTest) take(r penstock.Request) penstock.Decision {
	tr.Helper()
	if r.Key == "" {
		r.Key = "key"
	}
	d, err := tr.Take(ctx, r)
	if err != nil {
		tr.Fatalf("%+v: %v", r, err)
	}
	return d
}

// atHome returns what home has left of the global limit.
func (tr *regionTest) atHome() int64 {
	tr.Helper()
	d, err := tr.home.Take(ctx, penstock.Request{Key: "key", Limit: global})
	if err != nil {
		tr.Fatal(err)
	}
	return d.Remaining
}

func inBubble(t *testing.T, s regions.Settings, test func(tr *regionTest)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		test(newRegionTest(t, s))
		time.Sleep(time.Minute) // what is in flight ends
	})
}

func TestStoreDecidesInTheRegion(t *testing.T) {
	inBubble(t, regions.Settings{}, func(tr *regionTest) {
		began := time.Now()
		if d := tr.take(penstock.Request{Limit: global, Cost: 1}); !d.Allowed || d.Granted != 1 || d.Limit != 1000 || time.Since(began) != 100*time.Millisecond {
			t.Errorf("the first request: %v after %v, want one trip to home", d, time.Since(began))
		}
		began = time.Now()
		for i := range 4 {
			if d := tr.take(penstock.Request{Limit: global, Cost: 1}); !d.Allowed || d.Remaining != 995-80+int64(3-i) {
				t.Errorf("request %d: %v", i, d)
			}
		}
		if calls := tr.homeCalls.Load(); time.Since(began) != 0 || calls > 2 {
			t.Errorf("four more took %v and %d calls to home", time.Since(began), calls)
		}
		if d := tr.take(penstock.Request{Limit: own, Cost: 10}); d.Remaining != 0 || tr.homeCalls.Load() > 2 {
			t.Errorf("a limit of the region alone: %v", d)
		}
	})
}

// What needs more than units of a pool is decided at home, which keeps free what regions hold.
func TestStoreLetsHomeDecide(t *testing.T) {
	for _, test := range []struct {
		name    string
		request penstock.Request
		allowed bool
		left    int64
	}{
		{"a cost above what a region holds", penstock.Request{Cost: 900}, true, 100},
		{"all but what is kept free", penstock.Request{Cost: 920}, true, 80},
		{"more", penstock.Request{Cost: 921}, false, 1000},
		{"an ID", penstock.Request{Cost: 1, ID: "id"}, true, 999},
		{"a charge", penstock.Request{Cost: 1100, Overdraw: true}, true, 0},
		{"a peek", penstock.Request{}, true, 1000},
		{"units to keep free", penstock.Request{Cost: 1, KeepFree: 999}, true, 999},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, regions.Settings{}, func(tr *regionTest) {
				test.request.Limit = global
				if d := tr.take(test.request); d.Allowed != test.allowed {
					t.Errorf("%v, want allowed %v", d, test.allowed)
				}
				if left := tr.atHome(); left != test.left {
					t.Errorf("home has %d left, want %d", left, test.left)
				}
			})
		})
	}
}

func TestStoreWithoutHome(t *testing.T) {
	for _, test := range []struct {
		settings regions.Settings
		most     int64
	}{
		{regions.Settings{OnPartition: regions.Deny}, 40},
		{regions.Settings{OnPartition: regions.Local}, 40 + 500 + 20},
		{regions.Settings{OnPartition: regions.Allow}, 2000},
	} {
		inBubble(t, test.settings, func(tr *regionTest) {
			tr.take(penstock.Request{Limit: global, Cost: 20})
			synctest.Wait()
			tr.homeDown.Store(true)
			granted := int64(0)
			for range 2000 {
				granted += tr.take(penstock.Request{Limit: global, Cost: 1}).Granted
			}
			if granted > test.most || granted < test.most/4 {
				t.Errorf("%+v: granted %d without home, want at most %d", test.settings, granted, test.most)
			}
			tr.homeDown.Store(false)
			allowed := false
			for i := 0; i < 100 && !allowed; i++ {
				time.Sleep(100 * time.Millisecond)
				d := tr.take(penstock.Request{Limit: global, Cost: 1})
				allowed = d.Allowed && d.Source == penstock.SourceStore
			}
			if !allowed {
				t.Errorf("%+v: home is up, and not asked", test.settings)
			}
		})
	}
}

// A region that has lost its Redis asks home for each request.
func TestStoreWithoutPools(t *testing.T) {
	inBubble(t, regions.Settings{}, func(tr *regionTest) {
		tr.poolsDown.Store(true)
		for range 3 {
			if d := tr.take(penstock.Request{Limit: global, Cost: 1}); !d.Allowed {
				t.Error(d)
			}
		}
		if calls := tr.homeCalls.Load(); calls != 3 || tr.atHome() == 1000 {
			t.Errorf("%d calls, and home has %d left", calls, tr.atHome())
		}
	})
}

func TestStoreTakesAllOrNothing(t *testing.T) {
	inBubble(t, regions.Settings{}, func(tr *regionTest) {
		ds := make([]penstock.Decision, 3)
		all := func(costs ...int64) bool {
			t.Helper()
			rs := []penstock.Request{
				{Key: "key", Limit: global, Cost: costs[0]},
				{Key: "key", Limit: own, Cost: costs[1]},
				{Key: "other", Limit: global, Cost: costs[2]},
			}
			if err := tr.TakeAll(ctx, rs, ds); err != nil {
				t.Fatal(err)
			}
			return penstock.Tightest(ds).Allowed
		}
		if !all(1, 4, 1) || ds[1].Remaining != 6 {
			t.Errorf("all fit: %v", ds)
		}
		before := tr.Stats().Spent
		if all(1, 7, 1) || ds[1].Allowed || !ds[0].Allowed || tr.Stats().Spent != before {
			t.Errorf("the region's own limit denies: %v, and spends %d", ds, tr.Stats().Spent-before)
		}
		if all(921, 1, 1) || ds[0].Allowed || ds[1].Granted != 0 || ds[1].Remaining != 6 {
			t.Errorf("home denies: %v", ds)
		}
		if d := tr.take(penstock.Request{Limit: own}); d.Remaining != 6 {
			t.Errorf("the region's own limit was charged for a denial: %v", d)
		}
		if !all(100, 6, 1) {
			t.Errorf("all fit: %v", ds)
		}
	})
}

func TestStoreRejectsBadInput(t *testing.T) {
	memory, pools := penstock.NewMemory(nil), regions.NewMemoryPools(nil)
	if _, err := regions.New(memory, pools, memory, nil); err == nil {
		t.Error("a store without a number of regions was made")
	}
	if _, err := regions.New(nil, pools, memory, &regions.Options{Regions: 1}); err == nil {
		t.Error("a store without a local one was made")
	}
	for _, s := range []regions.Settings{{Pool: -1}, {Pool: 0.95}, {Age: -1}, {Age: 2 * time.Hour}, {OnPartition: 9}} {
		inBubble(t, s, func(tr *regionTest) {
			if _, err := tr.Take(ctx, penstock.Request{Key: "key", Limit: global, Cost: 1}); err == nil {
				t.Errorf("%+v was accepted", s)
			}
		})
	}
	inBubble(t, regions.Settings{}, func(tr *regionTest) {
		if _, err := tr.Take(ctx, penstock.Request{Limit: global, Cost: 1}); !errors.Is(err, penstock.ErrBadKey) {
			t.Errorf("an empty key: %v", err)
		}
	})
}

// What a daemon as home grants without its store is not used, whether home would fill a pool or decide a request.
func TestStoreWithAHomeThatHasLostItsStore(t *testing.T) {
	inBubble(t, regions.Settings{}, func(tr *regionTest) {
		tr.homeAlone.Store(true)
		for _, r := range []penstock.Request{{Cost: 1}, {Cost: 100}, {Cost: 1, ID: "id"}, {Cost: 1}} {
			r.Limit = global
			if d := tr.take(r); d.Allowed {
				t.Errorf("%+v: %v", r, d)
			}
		}
		if !tr.Stats().HomeDown {
			t.Error("home counts as up")
		}
		tr.homeAlone.Store(false)
		for begin := time.Now(); !tr.take(penstock.Request{Limit: global, Cost: 1}).Allowed; time.Sleep(time.Second) {
			if time.Since(begin) > time.Minute {
				t.Fatal("nothing is granted after home has its store again")
			}
		}
	})
}

// keysOfPools are the pools that were asked for.
type keysOfPools struct {
	regions.Pools
	keys map[string]bool
}

func (p keysOfPools) Spend(ctx context.Context, key string, a regions.Ask) (regions.Spent, error) {
	p.keys[key] = true
	return p.Pools.Spend(ctx, key, a)
}

// A caller cannot choose a key that has the pool of a long one.
func TestStorePoolsOfLongKeys(t *testing.T) {
	pools := keysOfPools{regions.NewMemoryPools(nil), map[string]bool{}}
	store, err := regions.New(penstock.NewMemory(nil), pools, penstock.NewMemory(nil), &regions.Options{Regions: 2})
	if err != nil {
		t.Fatal(err)
	}
	long := strings.Repeat("k", 300)
	sum := sha256.Sum256([]byte(long))
	for _, key := range []string{long, base64.RawURLEncoding.EncodeToString(sum[:])} {
		if _, err := store.Take(ctx, penstock.Request{Key: key, Limit: global, Cost: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if len(pools.keys) != 2 {
		t.Errorf("two keys have the pools %v", pools.keys)
	}
}

// A limit that is lowered grants nothing of what pools held before.
func TestStoreWithALoweredLimit(t *testing.T) {
	for _, algorithm := range []penstock.Algorithm{penstock.TokenBucket, penstock.FixedWindow, penstock.SlidingLog} {
		inBubble(t, regions.Settings{Pool: 0.9}, func(tr *regionTest) {
			l := penstock.Limit{Name: "lowered", Algorithm: algorithm, Count: 9000, Period: 24 * time.Hour}
			tr.take(penstock.Request{Limit: l, Cost: 10})
			time.Sleep(time.Second) // the pool has some 500 units
			l.Count = 20
			granted := int64(0)
			for range 100 {
				granted += tr.take(penstock.Request{Limit: l, Cost: 1}).Granted
			}
			if granted > 20 {
				t.Errorf("%v: 20 a day granted %d at once", algorithm, granted)
			}
		})
	}
}

// A region that rarely uses a long limit does not use it up by what it holds and forgets.
func TestStoreKeepsPoolsOfLongLimits(t *testing.T) {
	for _, text := range []string{"900000/720h fixed-window", "900000/720h", "900000/720h sliding-window"} {
		inBubble(t, regions.Settings{}, func(tr *regionTest) {
			l := parse(t, text).WithName("long")
			for range 200 {
				tr.take(penstock.Request{Limit: l, Cost: 1})
				time.Sleep(11 * time.Minute)
			}
			d, err := tr.home.Take(ctx, penstock.Request{Key: "key", Limit: l})
			if used := l.Capacity() - d.Remaining; err != nil || used > l.Capacity()/20 {
				t.Errorf("%s: 200 requests used %d, %v", text, used, err)
			}
		})
	}
}

// A request that waits for a lot goes on when the lot has arrived, though another is on its way already.
func TestStoreWaitsForNoLaterLot(t *testing.T) {
	inBubble(t, regions.Settings{}, func(tr *regionTest) {
		tr.slowDeposit = map[string]time.Duration{"other": 50 * time.Millisecond} // so that the claims of both keys end late
		waited := make(chan time.Duration, 2)
		takeEach := func(keys ...string) {
			var rs []penstock.Request
			for _, key := range keys {
				rs = append(rs, penstock.Request{Key: key, Limit: global, Cost: 1})
			}
			start := time.Now()
			if err := tr.TakeEach(ctx, rs, make([]penstock.Decision, len(rs))); err != nil {
				t.Error(err)
			}
			waited <- time.Since(start)
		}
		go takeEach("key", "other")
		time.Sleep(50 * time.Millisecond)
		go takeEach("key")
		time.Sleep(75 * time.Millisecond)
		d := tr.take(penstock.Request{Limit: global, Cost: 3})
		if synctest.Wait(); !d.Allowed || tr.homeCalls.Load() != 2 {
			t.Errorf("%+v, %d calls to home, want units of the first lot, and a second claim", d, tr.homeCalls.Load())
		}
		if a, b := <-waited, <-waited; a+b != 250*time.Millisecond {
			t.Errorf("waited for %v and %v, want 150ms and 100ms: until the first claim has ended", a, b)
		}
	})
}
