// These tests ask one question at a time, of which the race detector learns
// nothing, and under it they take minutes.

//go:build !race

package grpcapi_test

import (
	"context"
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
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
	"github.com/penstock-io/penstock/storetest"
)

// TestRateLimitStoreConformance runs the tests of stores through the door, as far as Envoy
// has words for them: takes, looks and giving back, and takes of several as one.
// Fixed windows on the clock, of whole seconds, are overrides; other limits are
// rules. It has none for
//
//   - AtMost, MaxDelay and IDs, which no field of a descriptor says;
//   - resets, for no number of hits is all of them;
//   - leaky buckets, which delay, and rules for Envoy cannot be;
//   - how much was given back. Where what remains does not tell either, which is so
//     in sliding windows and in buckets from which was taken in advance, nothing is
//     given back through the door.
//
// All of that goes to the store behind the door, where it finds the same state.
//
// An answer to Envoy tells less than a decision: whole seconds, and no time to
// come back. So the store is asked for the decision as well, under the same key
// and without charging anything, and the answer must agree with it.
func TestRateLimitStoreConformance(t *testing.T) {
	for _, c := range []struct {
		name  string
		store penstock.Store
	}{{"memory", newMemory()}, {"redis", newRedisStore(t)}} {
		t.Run(c.name, func(t *testing.T) {
			j := engine.New(c.store, nil)
			door := newClient(t, j, nil)
			through := 0
			storetest.Run(t, func(t testing.TB, clock *storetest.Clock) penstock.Store {
				err := clock.Follow(func(now time.Time) error {
					setClock(now)
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				return &rlsStore{t: t, requests: &through, name: newName(), engine: j, client: door, sets: map[string]*rules.Set{}}
			})
			if through < 1000 {
				t.Errorf("only %d requests went through the door", through)
			}
		})
	}
}

func newName() string { return fmt.Sprintf("%d.", prefixes.Add(1)) }

// A rlsStore is a store behind a door.
type rlsStore struct {
	t       testing.TB
	requests *int
	name    string // before all keys, which makes the store one of its own
	engine   *engine.Engine
	sets    map[string]*rules.Set // by the texts that they are made of
	client  pb.RateLimitServiceClient
	mu      sync.Mutex // for nobody may come between an answer and the look after it
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
	answer, err := s.send(ctx, r)
	if err != nil {
		return penstock.Decision{}, err
	}
	return s.decision(ctx, r, answer.GetStatuses()[0], answer.GetOverallCode())
}

// refund gives back through the door. What was given back is what there is more of
// now, unless something is owed that nobody sees.
func (s *rlsStore) refund(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	look := s.storeRequest(r)
	look.Cost = 0
	before, err := s.engine.Store().Take(ctx, look)
	if err != nil {
		return before, err
	}
	if before.Remaining == 0 && r.Limit.Algorithm == penstock.TokenBucket || r.Limit.Algorithm == penstock.SlidingWindow {
		return s.engine.Store().Take(ctx, s.storeRequest(r))
	}
	answer, err := s.send(ctx, r)
	if err != nil {
		return penstock.Decision{}, err
	}
	d, err := s.decision(ctx, r, answer.GetStatuses()[0], answer.GetOverallCode())
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

// TakeAll asks about all at once. What is refused is asked of the store again.
func (s *rlsStore) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.canExpressAll(rs) || len(ds) < len(rs) {
		return penstock.TakeAll(ctx, s.engine.Store(), s.storeRequests(rs), ds)
	}
	answer, err := s.send(ctx, rs...)
	if err != nil {
		return err
	}
	if answer.GetOverallCode() == pb.RateLimitResponse_OK {
		return s.granted(ctx, rs, ds, answer)
	}
	if err := penstock.TakeAll(ctx, s.engine.Store(), s.storeRequests(rs), ds); err != nil {
		return err
	}
	for i, st := range answer.GetStatuses() {
		s.compare(rs[i], st, ds[i])
	}
	return nil
}

// granted returns the decisions on requests that were all granted. What each had
// left when it was decided is what the answer says.
func (s *rlsStore) granted(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, answer *pb.RateLimitResponse) error {
	for i, st := range answer.GetStatuses() {
		look := s.storeRequest(rs[i])
		look.Cost = 0
		d, err := s.engine.Store().Take(ctx, look)
		if err != nil {
			return err
		}
		if st.GetCode() != pb.RateLimitResponse_OK {
			s.t.Errorf("%v passed, but %v did not", rs, st)
		}
		d.Granted, d.Remaining = rs[i].Cost, int64(st.GetLimitRemaining())
		ds[i] = d
	}
	return nil
}

// decision returns the decision that an answer stands for.
func (s *rlsStore) decision(ctx context.Context, r penstock.Request, st *pb.RateLimitResponse_DescriptorStatus, overall pb.RateLimitResponse_Code) (penstock.Decision, error) {
	look := s.storeRequest(r)
	if st.GetCode() == pb.RateLimitResponse_OK {
		look.Cost = 0
	}
	d, err := s.engine.Store().Take(ctx, look) // what was refused is refused again, and costs nothing
	if err != nil {
		return d, err
	}
	if st.GetCode() != overall {
		s.t.Errorf("taking %+v: the status is %v, but the answer %v", r, st.GetCode(), overall)
	}
	s.compare(r, st, d)
	if d.Allowed {
		d.Granted = r.Cost
	}
	return d, nil
}

// compare fails the test if an answer does not agree with a decision.
func (s *rlsStore) compare(r penstock.Request, st *pb.RateLimitResponse_DescriptorStatus, d penstock.Decision) {
	s.t.Helper()
	code, remaining := pb.RateLimitResponse_OK, d.Remaining
	if !d.Allowed {
		code, remaining = pb.RateLimitResponse_OVER_LIMIT, 0
	}
	if st.GetCode() != code || int64(st.GetLimitRemaining()) != remaining {
		s.t.Errorf("taking %+v: got %v, but the store decided %v", r, st, d)
	}
	seconds := int64((d.ResetAfter + time.Second - 1) / time.Second)
	if got := st.GetDurationUntilReset().GetSeconds(); d.ResetAfter > 0 && got != seconds {
		s.t.Errorf("taking %+v: reset after %d s, but the store says %v", r, got, d.ResetAfter)
	}
}

// canExpress reports whether Envoy has words for a request.
func (s *rlsStore) canExpress(r penstock.Request) bool {
	return r.Validate() == nil && r.Cost != penstock.Reset && !r.AtMost && r.MaxDelay == 0 && r.ID == "" &&
		r.Limit.Algorithm != penstock.LeakyBucket && utf8.ValidString(r.Key) && len(r.Key) < 2048
}

// canExpressAll reports whether Envoy has words for requests that are one. Of the
// same twice, the first would have to be looked at before the second.
func (s *rlsStore) canExpressAll(rs []penstock.Request) bool {
	seen := map[rules.Entry]bool{}
	for _, r := range rs {
		if !s.canExpress(r) || r.Cost <= 0 || seen[s.entry(r)] {
			return false
		}
		seen[s.entry(r)] = true
	}
	return len(rs) > 1
}

// isOverride reports whether Envoy has words for a limit.
func isOverride(l penstock.Limit) bool {
	return l.Algorithm == penstock.FixedWindow && l.Align == penstock.AlignClock && l.Offset == 0 &&
		l.Count >= 0 && l.Count <= math.MaxUint32 && l.Period >= time.Second && l.Period%time.Second == 0
}

// send asks the door.
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
		if !isOverride(limit) && !have[key] {
			text += fmt.Sprintf("- {key: %q, limit: %q}\n", key, limit)
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

// entry returns what a request is about. Neither overrides nor rules have the
// limit's name, so what its state belongs to is part of the key.
func (s *rlsStore) entry(r penstock.Request) rules.Entry {
	return rules.Entry{Key: fmt.Sprintf("%s%+v", s.name, r.Limit.Identity()), Value: r.Key}
}

// storeRequest returns a request as the door passes it on to the store.
func (s *rlsStore) storeRequest(r penstock.Request) penstock.Request {
	e := s.entry(r)
	switch {
	case r.Validate() != nil:
		return r // which is an error anywhere
	case isOverride(r.Limit):
		r.Key = string(rules.AppendKey(nil, []rules.Entry{{Key: "storetest"}, e}))
		r.Limit.Name = engine.OverrideLimitName
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
