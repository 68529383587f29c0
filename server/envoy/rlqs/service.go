package rlqs

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/address"
	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/server/ahead"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// Options configure a [Service]. The zero value has all defaults.
type Options struct {
	// MaxStreams is how many proxies may be connected, at most half of them from one remote
	// address or IPv6 /64. Default: 10,000.
	MaxStreams int

	// MaxBuckets is how many buckets a proxy may have; further ones are abandoned. With
	// longer IDs there are fewer, so that a report of all fits into one message.
	// Default: 1,000.
	MaxBuckets int

	// MaxMembers is how many buckets all proxies may have together, and those at one remote
	// address half of that. Default: 100,000.
	MaxMembers int

	// Requests logs invalid reports. Default: none are.
	Requests *requestlog.Log

	// Now is the clock, for tests. Default: time.Now.
	Now func() time.Time
}

const (
	defaultMaxStreams = 10_000
	defaultMaxBuckets = 1_000
	defaultMaxMembers = 100_000

	// maxBatch is how many buckets are taken from in one call of the store.
	maxBatch = 256

	// storeTimeout bounds such a call.
	storeTimeout = time.Second

	// minStepGap is the time between two steps, however many buckets are new.
	minStepGap = 10 * time.Millisecond
)

// A Service assigns quotas to proxies. It is safe for concurrent use.
type Service struct {
	pb.UnimplementedRateLimitQuotaServiceServer

	engine    *engine.Engine
	options   Options
	addresses *address.Resolver
	wake      chan struct{} // has an item if a bucket is new

	mu       sync.Mutex
	buckets  map[string]*bucket
	streams  map[*stream]bool
	clients  map[string]*client // by their address, or its IPv6 network
	touched  []*bucket          // have reports since the last step
	members  int
	number   int32 // of the last lease
	stopping bool

	assigned atomic.Uint64
}

// New returns a service for an engine. Nil options are all defaults.
func New(e *engine.Engine, o *Options) (*Service, error) {
	if e == nil {
		return nil, errors.New("rlqs: no engine")
	}
	s := &Service{
		engine: e, addresses: address.NewResolver(nil, 0), wake: make(chan struct{}, 1),
		buckets: map[string]*bucket{}, streams: map[*stream]bool{}, clients: map[string]*client{},
	}
	s.options = *cmp.Or(o, &Options{})
	s.options.MaxStreams = defaults.Or(s.options.MaxStreams, defaultMaxStreams)
	s.options.MaxBuckets = defaults.Or(s.options.MaxBuckets, defaultMaxBuckets)
	s.options.MaxMembers = defaults.Or(s.options.MaxMembers, defaultMaxMembers)
	if s.options.Now == nil {
		s.options.Now = time.Now
	}
	return s, nil
}

// Register adds the service to a gRPC server.
func (s *Service) Register(r grpc.ServiceRegistrar) { pb.RegisterRateLimitQuotaServiceServer(r, s) }

// Stats describe what the service does.
type Stats struct {
	Streams  int    // proxies that are connected
	Buckets  int    // different buckets that they have
	Assigned uint64 // units that were sent to them, ever
}

// Stats returns what the service does.
func (s *Service) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Stats{Streams: len(s.streams), Buckets: len(s.buckets), Assigned: s.assigned.Load()}
}

// Run assigns quotas until ctx ends. A service assigns none without it.
func (s *Service) Run(ctx context.Context) {
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
			s.stepSafely(ctx, true)
		case <-s.wake:
			s.stepSafely(ctx, false)
			select {
			case <-ctx.Done():
			case <-time.After(minStepGap):
			}
		}
	}
}

// stepSafely is step. A panic, such as one of a store, ends the step, and not the process.
func (s *Service) stepSafely(ctx context.Context, all bool) {
	defer func() {
		if p := recover(); p != nil {
			s.options.Requests.Panicked(p, "quota assignment")
		}
	}()
	s.step(ctx, all)
}

// step gives units to the members that need some: of all buckets, or of those with reports.
// The store is called without the lock.
func (s *Service) step(ctx context.Context, all bool) {
	for due := range slices.Chunk(s.collect(s.options.Now(), all), maxBatch) {
		s.stepBatch(ctx, due, s.findTargets(ctx, due))
	}
}

// collect returns the buckets that need a step.
func (s *Service) collect(now time.Time, all bool) []*bucket {
	s.mu.Lock()
	defer s.mu.Unlock()
	due := s.touched
	s.touched = nil
	if !all {
		return due
	}
	s.failStuck(now)
	due = due[:0]
	for _, b := range s.buckets {
		if b.due(now) {
			due = append(due, b)
		}
	}
	slices.SortFunc(due, func(a, b *bucket) int { return strings.Compare(a.key, b.key) }) // a step can be repeated
	return due
}

// A foundTarget is what limits a bucket, or why that cannot be said.
type foundTarget struct {
	ahead.Target
	err error
}

func (s *Service) findTargets(ctx context.Context, bs []*bucket) []foundTarget {
	targets := make([]foundTarget, len(bs))
	for i, b := range bs { // entries and domain never change
		targets[i].Target, targets[i].err = s.engine.FindTarget(ctx, b.domain, b.entries)
		if reason := requestlog.ReasonOf(targets[i].err); reason != "" {
			s.options.Requests.Invalid(reason, targets[i].err.Error(), "")
		}
	}
	return targets
}

// A take is what one bucket asks the store for.
type take struct {
	bucket *bucket
	claims []claim
	units  int64
	shadow bool
}

// stepBatch is the step of a few buckets. It reads the clock before and after the store is
// called: what is sent must not seem older than it is, or it would be extended too late.
func (s *Service) stepBatch(ctx context.Context, bs []*bucket, targets []foundTarget) {
	asked := s.options.Now()
	takes := s.prepareTakes(asked, bs, targets)
	if len(takes) == 0 {
		return
	}
	ts, units := make([]ahead.Target, len(takes)), make([]int64, len(takes))
	for i := range takes {
		ts[i], units[i] = takes[i].bucket.target, takes[i].units
	}
	ds := make([]penstock.Decision, len(takes))
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	err := s.engine.TakeAhead(ctx, ts, units, ds)
	s.finishTakes(asked, takes, ts, ds, err)
}

// prepareTakes sends blanket rules, and returns which buckets need how many units.
func (s *Service) prepareTakes(now time.Time, bs []*bucket, targets []foundTarget) (takes []take) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, b := range bs {
		s.abandonIdle(now, b)
		b.touched = false
		if targets[i].err != nil {
			continue // the proxies do what they are configured to do without an assignment
		}
		b.setTarget(targets[i].Target)
		if t, ok := b.prepareTake(now); ok {
			takes = append(takes, t)
		}
	}
	return takes
}

// setTarget sets what limits the bucket.
func (b *bucket) setTarget(t ahead.Target) {
	if !b.found || t.Limit != b.target.Limit {
		b.notBefore, b.scarceTill = time.Time{}, time.Time{}
	}
	b.target, b.found = t, true
	b.scale = newScale(t.Limit.Capacity(), fillTime(t.Limit.Normal()))
}

// fillTime returns how long a key needs to have all units back after it has used them.
func fillTime(l penstock.Limit) time.Duration {
	if !l.IsBucket() || l.Count == 0 {
		return l.Period
	}
	return requestlimits.RefillTime(&l, l.Burst)
}

// prepareTake sends blanket rules, or returns how many units the bucket needs.
func (b *bucket) prepareTake(now time.Time) (t take, ok bool) {
	switch {
	case b.target.DenyAll:
		b.applyBlanket(now, denyAll)
		return t, false
	case b.target.AllowAll:
		b.applyBlanket(now, allowAll)
		t = take{bucket: b, units: int64(b.shadowed), shadow: true}
		b.shadowed = 0
		return t, b.target.Shadow && t.units > 0
	case now.Before(b.notBefore):
		b.extendLeases(now)
		b.denyOthers(now)
		return t, false
	}
	t.bucket = b
	if t.claims, t.units = b.claims(now); len(t.claims) == 0 {
		b.extendLeases(now)
	}
	return t, len(t.claims) > 0
}

// finishTakes distributes what the store granted. Where it failed, nothing is distributed, and
// the proxies do what their configuration says once their leases have expired.
func (s *Service) finishTakes(asked time.Time, takes []take, ts []ahead.Target, ds []penstock.Decision, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.options.Now()
	for i, t := range takes {
		undecided := err != nil && ds[i] == penstock.Decision{}
		if t.shadow {
			if !undecided { // an outage is no would-be denial
				s.countShadow(&ts[i], uint64(t.units), uint64(max(ds[i].Granted, 0)))
			}
			continue
		}
		s.assigned.Add(uint64(max(ds[i].Granted, 0)))
		t.bucket.noteShortage(now, t.units, &ds[i])
		if undecided || ds[i].Source == penstock.SourceFallback {
			t.bucket.excusedTill = now.Add(excuse)
		}
		t.bucket.distribute(now, s.nextNumber, t.claims, ds[i].Granted, t.bucket.windowEnd(asked, &ds[i]))
		t.bucket.extendLeases(now)
		if !undecided {
			t.bucket.denyOthers(now)
		}
	}
}

// countShadow counts requests under a rule in shadow mode, of which so many were granted.
func (s *Service) countShadow(t *ahead.Target, requests, granted uint64) {
	t.CountReported(granted, 0, false)
	t.CountShadowed(requests - granted)
}

// nextNumber returns the number of a lease. Those that follow each other differ, also after
// a proxy has connected again.
func (s *Service) nextNumber() int32 {
	s.number = (s.number + 1) % 1e9
	return s.number
}

// abandonIdle ends the membership of proxies that have no requests for a bucket, and of those
// whose reports have stopped.
func (s *Service) abandonIdle(now time.Time, b *bucket) {
	for _, m := range slices.Clone(b.members) {
		if m.idle(now) {
			m.stream.enqueue(action{kind: abandon, id: m.bucket.entries})
			s.removeMember(m)
		}
	}
}

// removeMember ends a membership. What the proxy holds is lost.
func (s *Service) removeMember(m *member) {
	b := m.bucket
	b.members = slices.DeleteFunc(b.members, func(other *member) bool { return other == m })
	delete(m.stream.members, b.key)
	m.stream.bytes -= bucketBytes(b.key)
	s.members--
	if c := m.stream.client; c != nil {
		c.members--
	}
	if len(b.members) == 0 {
		delete(s.buckets, b.key)
	}
}
