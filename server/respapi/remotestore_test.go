package respapi

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/big"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/storetest"
)

// TestThrottleStoreConformance runs the tests of stores, and with them the library's
// transcripts, through the door, as far as CL.THROTTLE has words for them: takes and
// looks under token buckets. It has none for
//
//   - the other algorithms, and several requests as one;
//   - AtMost, MaxDelay and IDs;
//   - giving back; and DEL, which resets, does not say what it gave back;
//   - a bucket of nothing, which redis-cell refuses;
//   - a period that its count does not divide: redis-cell drops the rest;
//   - a limit with a name that takes more than 52 days to fill, which is counted
//     apart from itself when it is shorter.
//
// All of that goes to the store behind the door, under the limit and the key that
// the door would use, so that what is taken by one way is missing by the other.
//
// A reply tells whole seconds. So the store is asked for the decision as well, in a
// way that charges nothing, and the reply must agree with it.
func TestThrottleStoreConformance(t *testing.T) {
	fewerChecks(t)
	for _, name := range []string{"memory", "redis"} {
		t.Run(name, func(t *testing.T) {
			c := newFakeClock()
			var store penstock.Store = penstock.NewMemory(&penstock.MemoryOptions{Now: c.now, Tick: time.Millisecond})
			if name == "redis" {
				store = newRedisStore(t, heldRedis)
			}
			door := newServer(t, store, c, nil, nil)
			through, opened := 0, 0
			storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
				err := clock.Follow(func(now time.Time) error {
					c.set(now)
					heldRedis.Clock.Set(now)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				opened++
				return &throttleStore{t: t, requests: &through, name: fmt.Sprintf("%d.", opened), store: store, conn: newFakeClient(door)}
			})
			t.Logf("%d requests went through the door", through)
			if through < 1000 {
				t.Errorf("only %d requests went through the door", through)
			}
		})
	}
}

// fewerChecks makes up fewer requests. The stores have been asked everything in
// their own tests: here it is about the way there.
func fewerChecks(t *testing.T) {
	t.Helper()
	checks := flag.Lookup("rapid.checks").Value
	before := checks.String()
	if err := checks.Set("20"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = checks.Set(before) })
}

// A throttleStore is a store behind a door.
type throttleStore struct {
	t        testing.TB
	requests *int
	name     string // before all keys, which makes the store one of its own
	store    penstock.Store
	conn     *conn
	mu       sync.Mutex // for nobody may come between a reply and the look after it
}

func (s *throttleStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, ok := paramsOf(r)
	if !ok {
		return s.store.Take(ctx, s.storeRequest(r))
	}
	*s.requests++
	got := s.conn.do(s.t, "CL.THROTTLE", s.key(r), fmt.Sprint(p.maxBurst), fmt.Sprint(p.count), fmt.Sprint(p.period), fmt.Sprint(r.Cost))
	again := s.storeRequest(r)
	if got[:len("*5 :0")] == "*5 :0" {
		again.Cost = 0 // what was refused is refused again, and costs nothing
	}
	d, err := s.store.Take(ctx, again)
	if err != nil {
		return d, err
	}
	if d.Allowed {
		d.Granted = r.Cost
	}
	if want := replyOf(d); got != want {
		s.t.Errorf("taking %+v: got %s, but the store decided %v, which is %s", r, got, d, want)
	}
	return d, nil
}

func (s *throttleStore) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	for i := range rs {
		if _, ok := paramsOf(rs[i]); !ok {
			s.mu.Lock()
			defer s.mu.Unlock()
			return penstock.TakeEach(ctx, s.store, s.storeRequests(rs), ds)
		}
	}
	return penstock.TakeEach(ctx, penstock.StoreFunc(s.Take), rs, ds)
}

func (s *throttleStore) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return penstock.TakeAll(ctx, s.store, s.storeRequests(rs), ds)
}

// replyOf returns what a decision is in CL.THROTTLE's words.
func replyOf(d penstock.Decision) string {
	a := cellReply{limit: d.Limit, remaining: d.Remaining, retry: -1, reset: wholeSeconds(int64(d.ResetAfter))}
	if !d.Allowed {
		a.limited = 1
		if d.RetryAfter != penstock.Never {
			a.retry = wholeSeconds(int64(d.RetryAfter))
		}
	}
	return a.String()
}

// paramsOf returns the numbers by which CL.THROTTLE says what a request does.
func paramsOf(r penstock.Request) (throttleParams, bool) {
	l := r.Limit.Normal()
	if r.Validate() != nil || r.Cost < 0 || r.AtMost || r.MaxDelay != 0 || r.ID != "" ||
		l.Algorithm != penstock.TokenBucket || l.Count == 0 || int64(l.Period)%l.Count != 0 || len(r.Key) > maxKey/2 {
		return throttleParams{}, false
	}
	interval := int64(l.Period) / l.Count
	common := new(big.Int).GCD(nil, nil, big.NewInt(interval), big.NewInt(int64(time.Second))).Int64()
	p := throttleParams{maxBurst: l.Burst - 1, count: int64(time.Second) / common, period: interval / common}
	said, err := p.limit()
	if err != nil || r.Cost > math.MaxInt64/interval {
		return throttleParams{}, false
	}
	return p, int64(said.Period) == interval && said.Burst == l.Burst && (said.Name == shortName || l.Name == "")
}

// key returns the key that a request is about at the door, where the names of limits
// do not tell them apart.
func (s *throttleStore) key(r penstock.Request) string {
	return fmt.Sprintf("%s%+v %s", s.name, r.Limit.Identity(), r.Key)
}

// storeRequest returns a request that means the same to the store behind the door.
func (s *throttleStore) storeRequest(r penstock.Request) penstock.Request {
	if r.Validate() != nil {
		return r // which is an error anywhere
	}
	r.Key = s.key(r)
	if r.Limit.Algorithm != penstock.TokenBucket {
		return r
	}
	p, ok := paramsOf(penstock.Request{Key: "k", Limit: r.Limit})
	r.Limit.Name = shortName
	if ok {
		r.Limit.Name = must(p.limit()).Name
	}
	return r
}

func (s *throttleStore) storeRequests(rs []penstock.Request) []penstock.Request {
	all := make([]penstock.Request, len(rs))
	for i := range rs {
		all[i] = s.storeRequest(rs[i])
	}
	return all
}
