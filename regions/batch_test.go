package regions_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/regions"
)

// requests returns requests for so many keys.
func requests(n int, r penstock.Request) []penstock.Request {
	rs := make([]penstock.Request, n)
	for i := range rs {
		rs[i] = r
		rs[i].Key = fmt.Sprintf("key %d", i)
	}
	return rs
}

// batch decides requests, and returns how many were allowed, how often home was called, and how long that took.
func (tr *regionTest) batch(rs []penstock.Request, all bool) (allowed int, calls int64, took time.Duration) {
	tr.Helper()
	before, began := tr.homeCalls.Load(), time.Now()
	ds := make([]penstock.Decision, len(rs))
	if err := penstock.TakeBatch(ctx, tr.Store, rs, ds, all); err != nil {
		tr.Fatal(err)
	}
	took = time.Since(began)
	synctest.Wait()
	for _, d := range ds {
		if d.Allowed {
			allowed++
		}
	}
	return allowed, tr.homeCalls.Load() - before, took
}

// A batch of any size takes one round trip to home, if it needs home at all.
func TestStoreBatchesAskHomeOnce(t *testing.T) {
	const n, trip = 200, 100 * time.Millisecond
	for _, all := range []bool{false, true} {
		inBubble(t, regions.Settings{}, func(tr *regionTest) {
			for _, test := range []struct {
				name string
				penstock.Request
				calls int64
			}{
				{"new keys", penstock.Request{Limit: global, Cost: 1}, 1},
				{"pools", penstock.Request{Limit: global, Cost: 1}, 0},
				{"peeks", penstock.Request{Limit: global}, 0},
				{"IDs", penstock.Request{Limit: global, Cost: 1, ID: "id"}, 1},
				{"costs above a pool", penstock.Request{Limit: global, Cost: 100}, 1},
			} {
				allowed, calls, took := tr.batch(requests(n, test.Request), all)
				if allowed != n || calls != test.calls || took > trip*time.Duration(test.calls) {
					t.Errorf("%s, all or nothing %v: %d of %d allowed, by %d calls to home in %v, want %d",
						test.name, all, allowed, n, calls, took, test.calls)
				}
				time.Sleep(time.Second)
			}
			if stats := tr.Stats(); stats.Lost != 0 || stats.Spent != 2*n {
				t.Errorf("%+v, want %d units spent and none lost", stats, 2*n)
			}
		})
	}
}

// If one pool of several denies, the others have lost nothing.
func TestStoreTakeAllSpendsNothingInVain(t *testing.T) {
	inBubble(t, regions.Settings{}, func(tr *regionTest) {
		rs := append(requests(3, penstock.Request{Limit: global, Cost: 1}), penstock.Request{Key: "key", Limit: own, Cost: 1})
		if allowed, _, _ := tr.batch(rs, true); allowed != 4 {
			t.Fatalf("%d of 4 allowed", allowed)
		}
		if _, err := tr.home.Take(ctx, penstock.Request{Key: "key 1", Limit: global, Cost: 1000, Overdraw: true}); err != nil {
			t.Fatal(err)
		}
		rs[1].Cost = 30 // which needs a lot
		before := tr.Stats()
		for range 20 {
			if allowed, _, _ := tr.batch(rs, true); allowed != 3 {
				t.Fatalf("%d allowed, want all but that which home has nothing of", allowed)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if after := tr.Stats(); after.Spent != before.Spent || after.Lost != before.Lost {
			t.Errorf("denials spent %d units, and lost %d", after.Spent-before.Spent, after.Lost-before.Lost)
		}
		if d := tr.take(penstock.Request{Limit: own}); d.Remaining != 9 {
			t.Errorf("the region's own limit was charged for denials: %v", d)
		}
	})
}

// A key that home cannot decide leaves the lots of other keys in the same call.
func TestStoreBatchWithAKeyThatHomeCannotDecide(t *testing.T) {
	inBubble(t, regions.Settings{}, func(tr *regionTest) {
		rs := requests(5, penstock.Request{Limit: global, Cost: 1})
		tr.badKey = rs[2].Key
		ds := make([]penstock.Decision, len(rs))
		if err := tr.TakeEach(ctx, rs, ds); err != nil && !errors.Is(err, penstock.ErrUnavailable) {
			t.Fatal(err)
		}
		for i, d := range ds {
			if d.Allowed != (i != 2) {
				t.Errorf("key %d: %v", i, d)
			}
		}
		if stats := tr.Stats(); stats.Failed != 1 || stats.HomeDown {
			t.Errorf("%+v, want one failed lot, and home up", stats)
		}
	})
}
