// These tests send one request at a time, where the race detector finds nothing, and
// take minutes under it.

//go:build !race

package rls_test

import (
	"context"
	"flag"
	"fmt"
	"math"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-io/penstock"
	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/requestlimits"
	"github.com/penstock-io/penstock/storetest"
)

// TestRateLimitStoreConformance runs the conformance tests of stores through the API, as
// far as Envoy's protocol can express them: takes, peeks, refunds, and all-or-nothing
// takes. Fixed windows on the clock, of whole seconds, are sent as overrides; other limits
// are rules. The protocol cannot express
//
//   - AtMost, Overdraw, MaxDelay, KeepFree and IDs, for which descriptors have no field;
//   - resets, since no number of hits means all of them;
//   - leaky buckets, which delay, and which rules for Envoy cannot be;
//   - concurrency limits, whose permits are not renewed here;
//   - how much was refunded. Where the remaining units do not show it either, which
//     holds for sliding windows and for keys with a debt, the refund does not go
//     through the API.
//
// Those requests go to the store behind the API, where they find the same state.
//
// A response contains less than a decision: whole seconds, and no time to retry. So the
// test reads the decision from the store as well, under the same key and without a
// charge, and the response must agree with it.
func TestRateLimitStoreConformance(t *testing.T) {
	fewerChecks(t)
	for _, c := range []struct {
		name  string
		store penstock.Store
	}{{"memory", newMemory()}, {"redis", newRedisStore(t)}} {
		t.Run(c.name, func(t *testing.T) {
			e := engine.New(c.store, nil)
			api := newClient(t, e, nil)
			requests := 0
			storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
				err := clock.Follow(func(now time.Time) error {
					setClock(now)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				return &rlsStore{t: t, requests: &requests, name: newName(), engine: e, client: api, sets: map[string]*rules.Set{}}
			})
			if requests < 1000 {
				t.Errorf("only %d requests went through the API", requests)
			}
		})
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

func newName() string { return fmt.Sprintf("%d.", prefixes.Add(1)) }

// An rlsStore takes through the API.
type rlsStore struct {
	t        testing.TB
	requests *int
	name     string // prefix of all keys, which separates the stores
	engine   *engine.Engine
	sets     map[string]*rules.Set // by rule file
	client   pb.RateLimitServiceClient
	mu       sync.Mutex // held between a response and the peek after it
}

func (s *rlsStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.canExpress(r) {
		return s.engine.Store().Take(ctx, s.storeRequest(r))
	}
	if r.Cost < 0 {
		return s.refund(ctx, r)
	}
	response, err := s.send(ctx, r)
	if err != nil {
		return penstock.Decision{}, err
	}
	return s.decision(ctx, r, response.GetStatuses()[0], response.GetOverallCode())
}

// refund refunds through the API. The refunded units are the difference in remaining
// units, unless the bucket has a debt.
func (s *rlsStore) refund(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	peek := s.storeRequest(r)
	peek.Cost = 0
	before, err := s.engine.Store().Take(ctx, peek)
	if err != nil {
		return before, err
	}
	if before.Remaining == 0 || r.Limit.Algorithm == penstock.SlidingWindow {
		return s.engine.Store().Take(ctx, s.storeRequest(r))
	}
	response, err := s.send(ctx, r)
	if err != nil {
		return penstock.Decision{}, err
	}
	d, err := s.decision(ctx, r, response.GetStatuses()[0], response.GetOverallCode())
	d.Granted = before.Remaining - d.Remaining
	return d, err
}

func (s *rlsStore) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	for i := range rs {
		if !s.canExpress(rs[i]) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return penstock.TakeEach(ctx, s.engine.Store(), s.storeRequests(rs), ds)
		}
	}
	return penstock.TakeEach(ctx, penstock.StoreFunc(s.Take), rs, ds)
}

// TakeAll sends all requests in one call. The decisions on denied requests are read from
// the store.
func (s *rlsStore) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.canExpressAll(rs) || len(ds) < len(rs) {
		return penstock.TakeAll(ctx, s.engine.Store(), s.storeRequests(rs), ds)
	}
	clear(ds)
	response, err := s.send(ctx, rs...)
	if err != nil {
		return err
	}
	if response.GetOverallCode() == pb.RateLimitResponse_OK {
		return s.granted(ctx, rs, ds, response)
	}
	if err := penstock.TakeAll(ctx, s.engine.Store(), s.storeRequests(rs), ds); err != nil {
		return err
	}
	for i, st := range response.GetStatuses() {
		s.compare(rs[i], st, ds[i])
	}
	return nil
}

// granted returns the decisions on requests that were all granted, with the remaining
// units of the response.
func (s *rlsStore) granted(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, response *pb.RateLimitResponse) error {
	for i, st := range response.GetStatuses() {
		peek := s.storeRequest(rs[i])
		peek.Cost = 0
		d, err := s.engine.Store().Take(ctx, peek)
		if err != nil {
			return err
		}
		if st.GetCode() != pb.RateLimitResponse_OK {
			s.t.Errorf("%v were allowed, but %v was not", rs, st)
		}
		d.Granted, d.Remaining = rs[i].Cost, int64(st.GetLimitRemaining())
		ds[i] = d
	}
	return nil
}

// decision returns the decision that corresponds to a status.
func (s *rlsStore) decision(ctx context.Context, r penstock.Request, st *pb.RateLimitResponse_DescriptorStatus, overall pb.RateLimitResponse_Code) (penstock.Decision, error) {
	peek := s.storeRequest(r)
	if st.GetCode() == pb.RateLimitResponse_OK {
		peek.Cost = 0
	}
	d, err := s.engine.Store().Take(ctx, peek) // a denied request is denied again and costs nothing
	if err != nil {
		return d, err
	}
	if st.GetCode() != overall {
		s.t.Errorf("taking %+v: status %v, but overall code %v", r, st.GetCode(), overall)
	}
	s.compare(r, st, d)
	if d.Allowed {
		d.Granted = r.Cost
	}
	return d, nil
}

// compare fails the test if a status does not agree with a decision.
func (s *rlsStore) compare(r penstock.Request, st *pb.RateLimitResponse_DescriptorStatus, d penstock.Decision) {
	s.t.Helper()
	code, remaining := pb.RateLimitResponse_OK, d.Remaining
	if !d.Allowed {
		code, remaining = pb.RateLimitResponse_OVER_LIMIT, 0
	}
	if r.Cost == 0 && remaining == 0 {
		code = st.GetCode() // a peek is denied here at a key that owes, which decisions do not show
	}
	if st.GetCode() != code || int64(st.GetLimitRemaining()) != remaining {
		s.t.Errorf("taking %+v: got %v, but the store decided %v", r, st, d)
	}
	seconds := int64((d.ResetAfter + time.Second - 1) / time.Second)
	if got := st.GetDurationUntilReset().GetSeconds(); d.ResetAfter > 0 && got != seconds {
		s.t.Errorf("taking %+v: reset after %d s, but the store decided %v", r, got, d.ResetAfter)
	}
}

// canExpress reports whether the protocol can express a request.
func (s *rlsStore) canExpress(r penstock.Request) bool {
	return r.Validate() == nil && r.Cost != penstock.Reset && !r.AtMost && !r.Overdraw && r.MaxDelay == 0 && r.KeepFree == 0 && r.ID == "" &&
		r.Limit.Algorithm != penstock.LeakyBucket && r.Limit.Algorithm != penstock.Concurrent && utf8.ValidString(r.Key) && len(r.Key) < 2048
}

// canExpressAll reports whether the protocol can express an all-or-nothing take. With a
// key twice, the first decision could not be read before the second. Overrides are decided
// before rules, which are then only peeked at if one of them denies.
func (s *rlsStore) canExpressAll(rs []penstock.Request) bool {
	seen := map[rules.Entry]bool{}
	for _, r := range rs {
		if !s.canExpress(r) || r.Cost <= 0 || seen[s.entry(r)] || isOverride(r.Limit) != isOverride(rs[0].Limit) {
			return false
		}
		seen[s.entry(r)] = true
	}
	return len(rs) > 1
}

// isOverride reports whether an override can express a limit. A named one may get a debt later,
// which an override cannot have, and must stay what it was.
func isOverride(l penstock.Limit) bool {
	return l.Name == "" && l.Algorithm == penstock.FixedWindow && l.Align == penstock.AlignClock && l.Offset == 0 && l.Debt == 0 &&
		l.Count >= 0 && l.Count <= math.MaxUint32 && l.Period >= time.Second && l.Period%time.Second == 0
}

// send sends requests as one call.
func (s *rlsStore) send(ctx context.Context, rs ...penstock.Request) (*pb.RateLimitResponse, error) {
	*s.requests += len(rs)
	s.engine.SetRules(s.rules(rs))
	m := &pb.RateLimitRequest{Domain: "storetest"}
	for _, r := range rs {
		e := s.entry(r)
		d := &common.RateLimitDescriptor{
			Entries:    []*common.RateLimitDescriptor_Entry{{Key: e.Key, Value: e.Value}},
			HitsAddend: wrapperspb.UInt64(uint64(max(r.Cost, -r.Cost))),
		}
		d.IsNegativeHits = r.Cost < 0
		if isOverride(r.Limit) {
			d.Limit = &common.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: uint32(r.Limit.Count),
				Unit:            typev3.RateLimitUnit_SECOND,
				UnitMultiplier:  wrapperspb.UInt32(uint32(r.Limit.Period / time.Second)),
			}
		}
		m.Descriptors = append(m.Descriptors, d)
	}
	return s.client.ShouldRateLimit(ctx, m)
}

// rules returns a set with a rule for each limit that needs one.
func (s *rlsStore) rules(rs []penstock.Request) *rules.Set {
	text := "domain: storetest\ndescriptors:\n"
	have := map[string]bool{}
	for _, r := range rs {
		key, limit := s.entry(r).Key, r.Limit
		limit.Name = ""
		if !isOverride(r.Limit) && !have[key] {
			id := ""
			if limit.Algorithm == penstock.Concurrent {
				id = ", id: request_id"
			}
			text += fmt.Sprintf("- {key: %q, limit: %q%s}\n", key, limit, id)
			have[key] = true
		}
	}
	set := s.sets[text]
	if set == nil {
		var err error
		if set, err = rules.Parse(rules.File{Name: "storetest.yaml", Text: []byte(text)}); err != nil {
			s.t.Fatalf("%s\n%v", text, err)
		}
		s.sets[text] = set
	}
	return set
}

// entry returns the descriptor entry of a request. Neither overrides nor rules carry the
// limit's name, so the identity of the limit is part of the key.
func (s *rlsStore) entry(r penstock.Request) rules.Entry {
	return rules.Entry{Key: fmt.Sprintf("%s%+v", s.name, r.Limit.Identity()), Value: r.Key}
}

// storeRequest returns a request as the engine sends it to the store.
func (s *rlsStore) storeRequest(r penstock.Request) penstock.Request {
	e := s.entry(r)
	switch {
	case r.Validate() != nil:
		return r // an error in every store
	case isOverride(r.Limit):
		r.Key = string(rules.AppendKey(nil, []rules.Entry{{Key: "storetest"}, e}))
		r.Limit = requestlimits.Of(r.Limit.WithName(requestlimits.EnvoyName))
	default:
		r.Key = string(rules.AppendKey(nil, []rules.Entry{e}))
		r.Limit = s.rules([]penstock.Request{r}).Rules()[0].Limit
	}
	return r
}

func (s *rlsStore) storeRequests(rs []penstock.Request) []penstock.Request {
	all := make([]penstock.Request, len(rs))
	for i := range rs {
		all[i] = s.storeRequest(rs[i])
	}
	return all
}
