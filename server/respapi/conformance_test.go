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

// TestThrottleStoreConformance runs the conformance tests of stores, and with them the
// library's transcripts, through the API, as far as CL.THROTTLE can express them: takes
// and peeks of token buckets. It cannot express
//
//   - other algorithms, and all-or-nothing takes;
//   - AtMost, Overdraw, MaxDelay, KeepFree and IDs; and a debt of the limit's own;
//   - refunds; and DEL, which resets, does not return the refunded units;
//   - a limit of 0, which redis-cell rejects;
//   - a period that is not a multiple of its count: redis-cell truncates the interval;
//   - a named limit that takes more than 52 days to fill, which is counted apart from
//     its shorter versions.
//
// Those requests go to the store behind the API, under the limit and the key that the
// API would use, so that both ways share their state.
//
// A reply contains whole seconds. So the test reads the decision from the store as well,
// without a charge, and the reply must agree with it.
func TestThrottleStoreConformance(t *testing.T) {
	fewerChecks(t)
	requests := 0
	for _, name := range []string{"memory", "redis"} {
		t.Run(name, func(t *testing.T) {
			c := newFakeClock()
			var store penstock.Store = penstock.NewMemory(&penstock.MemoryOptions{Now: c.now, Tick: time.Millisecond})
			run := storetest.Run
			if name == "redis" { // the way through the API is tested on memory
				store, run = newRedisStore(t, redisServer), storetest.RunRandom
			}
			server := newServer(t, store, c, nil, nil)
			stores := 0
			run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
				err := clock.Follow(func(now time.Time) error {
					c.set(now)
					redisServer.Clock.Set(now)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				stores++
				return &throttleStore{t: t, requests: &requests, name: fmt.Sprintf("%d.", stores), store: store, conn: newFakeClient(server)}
			})
		})
	}
	if requests < 1000 {
		t.Errorf("only %d requests went through the API", requests)
	}
}

// fewerChecks reduces the number of random cases. The stores' own tests run all of them;
// this test is about the way to the store.
func fewerChecks(t *testing.T) {
	t.Helper()
	checks := flag.Lookup("rapid.checks").Value
	before := checks.String()
	if err := checks.Set("20"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = checks.Set(before) })
}

// A throttleStore takes through the API.
type throttleStore struct {
	t        testing.TB
	requests *int
	name     string // prefix of all keys, which separates the stores
	store    penstock.Store
	conn     *conn
	mu       sync.Mutex // held between a reply and the peek after it
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
		again.Cost = 0 // a denied request is denied again and costs nothing
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

// replyOf returns the reply of CL.THROTTLE for a decision.
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

// paramsOf returns the arguments of CL.THROTTLE that express a request, if there are any.
func paramsOf(r penstock.Request) (throttleParams, bool) {
	l := r.Limit.Normal()
	if r.Validate() != nil || r.Cost < 0 || r.AtMost || r.Overdraw || r.MaxDelay != 0 || r.KeepFree != 0 || r.ID != "" ||
		l.Algorithm != penstock.TokenBucket || l.Debt != 0 || l.Count == 0 || int64(l.Period)%l.Count != 0 || len(r.Key) > maxKey/2 {
		return throttleParams{}, false
	}
	interval := int64(l.Period) / l.Count
	common := new(big.Int).GCD(nil, nil, big.NewInt(interval), big.NewInt(int64(time.Second))).Int64()
	p := throttleParams{maxBurst: l.Burst - 1, count: int64(time.Second) / common, period: interval / common}
	limit, err := p.limit()
	if err != nil || r.Cost > math.MaxInt64/interval {
		return throttleParams{}, false
	}
	return p, int64(limit.Period) == interval && limit.Burst == l.Burst && (limit.Name == shortName || l.Name == "")
}

// key returns the key of a request in CL.THROTTLE, which includes the limit, as
// CL.THROTTLE has no limit names.
func (s *throttleStore) key(r penstock.Request) string {
	return fmt.Sprintf("%s%+v %s", s.name, r.Limit.Identity(), r.Key)
}

// storeRequest returns the equivalent request to the store behind the API.
func (s *throttleStore) storeRequest(r penstock.Request) penstock.Request {
	if r.Validate() != nil {
		return r // an error in every store
	}
	r.Key = s.key(r)
	if r.Limit.Algorithm != penstock.TokenBucket {
		return r
	}
	p, ok := paramsOf(penstock.Request{Key: "k", Limit: r.Limit})
	r.Limit.Name, r.Limit.Untrusted = shortName, true
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
