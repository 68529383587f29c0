package penstock_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

// A settlement goes to the store that granted the ID. What the primary does not get is
// kept in the ledger, and charged when it is up again.
func TestFallbackSettlesAtTheStoreThatGranted(t *testing.T) {
	limit := penstock.PerHour(100)
	take := penstock.Request{Key: "key", Limit: limit, Cost: 40, ID: "x"}
	settle := penstock.Request{Key: "key", Limit: limit, Cost: 10, ID: "x", Settle: true}
	for _, c := range []struct {
		name            string
		takeDown        bool // whether the primary is down at the take
		settleDown      bool // and at the settlement
		loseTakeAnswer  bool
		wantSource      penstock.Source
		wantPrimaryUsed int64
	}{
		{name: "both up", wantPrimaryUsed: 10},
		{name: "settled while down", settleDown: true, wantSource: penstock.SourceFallback, wantPrimaryUsed: 10},
		{name: "taken while down", takeDown: true, wantPrimaryUsed: 10},
		{name: "both down", takeDown: true, settleDown: true, wantSource: penstock.SourceFallback, wantPrimaryUsed: 10},
		{name: "answer lost, settled while down", loseTakeAnswer: true, settleDown: true, wantSource: penstock.SourceFallback, wantPrimaryUsed: 10},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := penstock.NewMemory(nil)
				primary := &remoteStore{store: memory}
				fallback := penstock.WithFallback(primary, nil, &penstock.FallbackOptions{Failures: 1})
				primary.down.Store(c.takeDown)
				if c.loseTakeAnswer {
					primary.loseResponse = func([]penstock.Request) bool { return true }
				}
				if d, err := fallback.Take(ctx, take); err != nil || d.Granted != 40 {
					t.Fatalf("take: got %v, %v", d, err)
				}
				primary.loseResponse = nil
				primary.down.Store(c.settleDown)
				if !c.settleDown {
					waitUntilUp(t, fallback)
				} else {
					_, _ = fallback.Take(ctx, penstock.Request{Key: "key", Limit: limit}) // notices that it is down
				}
				d, err := fallback.Take(ctx, settle)
				if err != nil || !d.Allowed || d.Granted != 10 || d.Source != c.wantSource {
					t.Errorf("settle: got %v, %v, want 10 granted by the %v", d, err, c.wantSource)
				}
				primary.down.Store(false)
				waitUntilUp(t, fallback)
				peek, err := memory.Take(ctx, penstock.Request{Key: "key", Limit: limit})
				if used := peek.Limit - peek.Remaining; err != nil || used != c.wantPrimaryUsed {
					t.Errorf("the primary has %d units used, %v, want %d", used, err, c.wantPrimaryUsed)
				}
			})
		})
	}
}

// Settlements of several limits are decided as one, whichever store granted the ID and
// whichever is up, and the primary is charged what was settled under each of them.
func TestFallbackSettlesAllAsOne(t *testing.T) {
	limits := []penstock.Limit{penstock.PerHour(100), penstock.PerHour(100).WithAlgorithm(penstock.FixedWindow)}
	requests := func(costs ...int64) (rs []penstock.Request) {
		for i, cost := range costs {
			rs = append(rs, penstock.Request{Key: "key", Limit: limits[i], Cost: cost, ID: "x"})
		}
		return rs
	}
	for _, c := range []struct {
		name                  string
		firstDown, secondDown bool // whether the primary is down at the take under each limit
		settleDown            bool
		together              bool // whether both are taken as one
		wantSource            penstock.Source
	}{
		{name: "all up", together: true},
		{name: "settled while down", together: true, settleDown: true, wantSource: penstock.SourceFallback},
		{name: "taken while down", together: true, firstDown: true},
		{name: "all down", together: true, firstDown: true, settleDown: true, wantSource: penstock.SourceFallback},
		{name: "one of two taken while down", secondDown: true, settleDown: true, wantSource: penstock.SourceFallback},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := penstock.NewMemory(nil)
				primary := &remoteStore{store: memory}
				fallback := penstock.WithFallback(primary, nil, &penstock.FallbackOptions{Failures: 1})
				setDown := func(down bool) {
					primary.down.Store(down)
					_, _ = fallback.Take(ctx, penstock.Request{Key: "key", Limit: limits[0]}) // notices that it is down
					if !down {
						waitUntilUp(t, fallback)
					}
				}
				ds := make([]penstock.Decision, 2)
				setDown(c.firstDown)
				if taken := requests(40, 30); c.together {
					if err := penstock.TakeAll(ctx, fallback, taken, ds); err != nil {
						t.Fatal(err)
					}
				} else {
					ds[0], _ = fallback.Take(ctx, taken[0])
					setDown(c.secondDown)
					ds[1], _ = fallback.Take(ctx, taken[1])
				}
				if ds[0].Granted != 40 || ds[1].Granted != 30 {
					t.Fatalf("take: got %v", ds)
				}
				setDown(c.settleDown)
				for range 2 {
					err := settleAll(fallback, requests(10, 50), ds)
					if err != nil || ds[0].Granted != 10 || ds[1].Granted != 50 || ds[0].Source != c.wantSource || ds[1].Source != c.wantSource {
						t.Errorf("settle: got %v, %v, want 10 and 50 by the %v", ds, err, c.wantSource)
					}
				}
				setDown(false)
				for i, want := range []int64{10, 50} {
					peek, err := memory.Take(ctx, penstock.Request{Key: "key", Limit: limits[i]})
					if used := peek.Limit - peek.Remaining; err != nil || used != want {
						t.Errorf("the primary has %d units used under %v, %v, want %d", used, limits[i], err, want)
					}
				}
			})
		})
	}
}

// While the primary is down, the secondary settles several limits in one call, so that no
// request sees some of them settled and others not.
func TestFallbackSettlesAllInOneCallOfTheSecondary(t *testing.T) {
	primary := &remoteStore{store: penstock.NewMemory(nil)}
	primary.down.Store(true)
	secondary := &singleSettles{Memory: penstock.NewMemory(nil)}
	fallback := penstock.WithFallback(primary, secondary, &penstock.FallbackOptions{Failures: 1})
	rs := []penstock.Request{
		{Key: "a", Limit: penstock.PerHour(100), Cost: 40, ID: "x"}, {Key: "b", Limit: penstock.PerHour(100), Cost: 40, ID: "x"},
	}
	ds := make([]penstock.Decision, len(rs))
	if err := penstock.TakeAll(ctx, fallback, rs, ds); err != nil {
		t.Fatal(err)
	}
	if err := settleAll(fallback, rs, ds); err != nil || ds[1].Granted != 40 {
		t.Fatalf("got %v, %v", ds, err)
	}
	if n := secondary.n.Load(); n > 0 {
		t.Errorf("%d limits were settled one by one", n)
	}
}

// singleSettles counts settlements that are not part of a TakeAll.
type singleSettles struct {
	*penstock.Memory
	n atomic.Int64
}

func (s *singleSettles) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	if r.Settle {
		s.n.Add(1)
	}
	return s.Memory.Take(ctx, r)
}

// A ledger without room for all settlements of a call takes none of them: a settlement that
// is answered is not lost.
func TestFallbackRefusesSettlementsBeyondItsLedger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := penstock.NewMemory(nil)
		primary := &remoteStore{store: memory}
		fallback := penstock.WithFallback(primary, nil, &penstock.FallbackOptions{Failures: 1, MaxKeys: 2})
		var rs []penstock.Request
		for _, key := range []string{"a", "b", "c"} {
			rs = append(rs, penstock.Request{Key: key, Limit: penstock.PerHour(100), Cost: 40, ID: "x"})
		}
		ds := make([]penstock.Decision, len(rs))
		if err := penstock.TakeAll(ctx, fallback, rs, ds); err != nil {
			t.Fatal(err)
		}
		primary.down.Store(true)
		_, _ = fallback.Take(ctx, penstock.Request{Key: "a", Limit: penstock.PerHour(100)})
		settled := func(rs []penstock.Request) []penstock.Request {
			rs = slices.Clone(rs)
			for i := range rs {
				rs[i].Cost = 10
			}
			return rs
		}
		if err := settleAll(fallback, settled(rs), ds); !errors.Is(err, penstock.ErrUnavailable) {
			t.Errorf("three settlements: got %v, want ErrUnavailable", err)
		}
		for range 2 { // a repetition needs no more room
			if err := settleAll(fallback, settled(rs[:2]), ds); err != nil {
				t.Errorf("two settlements: %v", err)
			}
		}
		primary.down.Store(false)
		waitUntilUp(t, fallback)
		for i, want := range []int64{90, 90, 60} {
			if d, err := memory.Take(ctx, penstock.Request{Key: rs[i].Key, Limit: rs[i].Limit}); err != nil || d.Remaining != want {
				t.Errorf("%s: got %v, %v, want %d left", rs[i].Key, d, err, want)
			}
		}
	})
}

// waitUntilUp lets the fallback find out that the primary is up, and charge its ledger.
func waitUntilUp(t *testing.T, f *penstock.Fallback) {
	t.Helper()
	for range 100 {
		time.Sleep(100 * time.Millisecond)
		if down, _ := f.Down(); down == 0 {
			synctest.Wait()
			return
		}
	}
	t.Fatal("the primary stays down")
}

// A settlement does not overtake an earlier one of its ID that the ledger still has: the last
// amount is charged. A caller that repeats it gets the store's answer in the end.
func TestFallbackSettlesInOrder(t *testing.T) {
	limit := penstock.PerHour(1000)
	for _, name := range []string{"one", "all"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				memory := penstock.NewMemory(nil)
				primary := &remoteStore{store: memory, requestDelay: fixedDelay(5 * time.Millisecond)}
				var refuses atomic.Bool
				primary.refuse = func(r penstock.Request) bool { return r.Settle && refuses.Load() }
				fallback := penstock.WithFallback(primary, nil, &penstock.FallbackOptions{Failures: 100})
				settle := func(amount int64) (d [2]penstock.Decision) {
					rs := []penstock.Request{{Key: "a", Limit: limit, Cost: amount, ID: "x", Settle: true}, {Key: "b", Limit: limit, Cost: amount, ID: "x", Settle: true}}
					if name == "one" {
						rs = rs[:1]
					}
					if err := penstock.TakeAll(ctx, fallback, rs, d[:]); err != nil || d[0].Granted != amount {
						t.Fatalf("settle to %d: got %v, %v", amount, d, err)
					}
					return d
				}
				for _, key := range []string{"a", "b"} {
					if d, err := fallback.Take(ctx, penstock.Request{Key: key, Limit: limit, Cost: 40, ID: "x"}); err != nil || !d.Allowed {
						t.Fatalf("take: got %v, %v", d, err)
					}
				}
				refuses.Store(true)
				settle(10)
				time.Sleep(time.Second)
				refuses.Store(false)
				settle(25) // before the ledger has sent anything
				checkCharged(t, memory, 25)
				refuses.Store(true)
				settle(10)
				refuses.Store(false)
				source := penstock.SourceFallback
				for n := 0; source != penstock.SourceStore; n++ {
					if n == 1000 {
						t.Fatal("a caller that repeats a settlement gets no answer of the store")
					}
					time.Sleep(time.Millisecond) // less than a call takes
					source = settle(60)[0].Source
				}
				checkCharged(t, memory, 60)
			})
		})
	}
}

// checkCharged checks what is charged under the ID x, after the ledger has had time to send.
func checkCharged(t *testing.T, store penstock.Store, want int64) {
	t.Helper()
	time.Sleep(10 * time.Second)
	again := penstock.Request{Key: "a", Limit: penstock.PerHour(1000), Cost: 1, ID: "x"} // answered with what is remembered
	if d, err := store.Take(ctx, again); err != nil || d.Granted != want {
		t.Errorf("got %v, %v, want %d units charged, the last amount", d, err, want)
	}
}

// If neither store knows the ID, the error is ErrUnknownID, and the store is not down.
func TestFallbackReturnsUnknownID(t *testing.T) {
	primary := &remoteStore{store: penstock.NewMemory(nil)}
	fallback := penstock.WithFallback(primary, nil, &penstock.FallbackOptions{Failures: 1})
	settle := penstock.Request{Key: "key", Limit: penstock.PerHour(100), Cost: 10, ID: "x", Settle: true}
	for range 10 {
		if d, err := fallback.Take(ctx, settle); !errors.Is(err, penstock.ErrUnknownID) {
			t.Fatalf("settle: got %v, %v, want ErrUnknownID", d, err)
		}
		if err := settleAll(fallback, []penstock.Request{settle}, make([]penstock.Decision, 1)); !errors.Is(err, penstock.ErrUnknownID) {
			t.Fatalf("settle all: got %v, want ErrUnknownID", err)
		}
	}
	if down, _ := fallback.Down(); down > 0 {
		t.Error("unknown IDs count as failures of the store")
	}
}

// A settlement that refunds units drops the denial of its key.
func TestDenyCacheDropsDenialAfterSettlement(t *testing.T) {
	cache := penstock.WithDenyCache(penstock.NewMemory(nil), nil)
	limit := penstock.PerHour(10)
	for _, amount := range []int64{0, 3} {
		key := string(rune('a' + amount))
		take := penstock.Request{Key: key, Limit: limit, Cost: 10, ID: "x"}
		one := penstock.Request{Key: key, Limit: limit, Cost: 1}
		settle := take
		settle.Cost, settle.Settle = amount, true
		for i, r := range []penstock.Request{take, one, one, settle, one} {
			d, err := cache.Take(ctx, r)
			if wantDenied := i == 1 || i == 2; err != nil || d.Allowed == wantDenied {
				t.Errorf("settled to %d: request %d: got %v, %v", amount, i, d, err)
			}
		}
	}
}

// A settlement passes a lease, and is not answered from leased units.
func TestLeasePassesSettlements(t *testing.T) {
	memory := penstock.NewMemory(nil)
	lease := penstock.WithLease(memory, nil)
	limit := penstock.PerHour(1000)
	take := penstock.Request{Key: "key", Limit: limit, Cost: 100, ID: "x"}
	settle := take
	settle.Cost, settle.Settle = 30, true
	for _, r := range []penstock.Request{take, {Key: "key", Limit: limit, Cost: 1}, settle} {
		if d, err := lease.Take(ctx, r); err != nil || !d.Allowed {
			t.Fatalf("%+v: got %v, %v", r, d, err)
		}
	}
	if err := lease.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if d, err := memory.Take(ctx, penstock.Request{Key: "key", Limit: limit}); err != nil || d.Remaining != 1000-31 {
		t.Errorf("got %v, %v, want 31 units used", d, err)
	}
}

// settleAll makes what was charged under the ID of the requests equal to their costs, as one.
func settleAll(s penstock.Store, rs []penstock.Request, ds []penstock.Decision) error {
	rs = slices.Clone(rs)
	for i := range rs {
		rs[i].Settle = true
	}
	return penstock.TakeAll(ctx, s, rs, ds)
}
