package rlqs

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typepb "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// A simulation runs a service, proxies and another API on one clock, without goroutines.
type simulation struct {
	t       testing.TB
	now     time.Time
	engine  *engine.Engine
	service *Service
	proxies []*proxy

	admitted int64   // by proxies and by the other API
	low      float64 // the least admitted + held − r·t so far
	began    time.Time
	capacity float64
	rate     float64
}

const simulationStep = 50 * time.Millisecond

func newSimulation(t testing.TB, limit string) *simulation {
	t.Helper()
	s := &simulation{t: t, now: time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC), low: math.Inf(1)}
	s.began = s.now
	clock := func() time.Time { return s.now }
	s.engine = newEngine(t, penstock.NewMemory(&penstock.MemoryOptions{Now: clock}), fmt.Sprintf("domain: shop\ndescriptors:\n  - {key: path, limit: %s}\n", limit), nil)
	parsed, err := penstock.ParseLimit(limit)
	if err != nil {
		t.Fatal(err)
	}
	s.capacity, s.rate = float64(parsed.Capacity()), float64(parsed.Count)/parsed.Period.Seconds()
	if s.service, err = New(s.engine, &Options{Now: clock}); err != nil {
		t.Fatal(err)
	}
	return s
}

func newEngine(t testing.TB, store penstock.Store, yaml string, o *engine.Options) *engine.Engine {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "test.yaml", Text: []byte(yaml)})
	if err != nil {
		t.Fatal(err)
	}
	e := engine.New(store, o)
	e.SetRules(set)
	return e
}

// A proxy decides as Envoy's client does. It is a stream, and what the proxy remembers when the stream
// is gone.
type proxy struct {
	name     string
	sim      *simulation
	stream   *stream
	interval time.Duration           // between reports
	late     func() time.Duration    // added to it
	delay    func() time.Duration    // of messages to the proxy
	requests func(time.Time) float64 // per second
	report   func(allowed, denied uint64) (uint64, uint64)

	inbox   []delayed // in order
	bucket  envoyBucket
	next    time.Time // report
	debt    float64   // requests that are not whole yet
	allowed uint64    // since the last report
	denied  uint64

	totalAllowed, totalDenied int64
}

type delayed struct {
	at     time.Time
	action *pb.RateLimitQuotaResponse_BucketAction
}

func (s *simulation) addProxy(name string, rate float64) *proxy {
	p := &proxy{
		name: name, sim: s, interval: 2 * time.Second,
		late:     func() time.Duration { return 0 },
		delay:    func() time.Duration { return 0 },
		requests: func(time.Time) float64 { return rate },
		report:   func(a, d uint64) (uint64, uint64) { return a, d },
	}
	p.next = s.now
	s.proxies = append(s.proxies, p)
	return p
}

// vanish ends the stream. The proxy goes on with what it has.
func (p *proxy) vanish() {
	if p.stream != nil {
		p.sim.service.close(p.stream)
		p.stream = nil
	}
}

// run runs the simulation for some time. Each step checks the bound.
func (s *simulation) run(d time.Duration) {
	for end := s.now.Add(d); s.now.Before(end); s.now = s.now.Add(simulationStep) {
		s.check() // with nothing admitted yet at this time
		for _, p := range s.proxies {
			p.sendReport()
		}
		s.service.step(context.Background(), s.now.Sub(s.began)%tick == 0)
		for _, p := range s.proxies {
			p.collect()
			p.receive()
			p.serve()
		}
		s.check()
	}
}

// check checks that no interval that ends now admitted more than B + r·T + Σq, with q what
// proxies held at its beginning, on the way to them included.
func (s *simulation) check() {
	s.t.Helper()
	elapsed := s.now.Sub(s.began).Seconds()
	earned := float64(s.admitted) - s.rate*elapsed
	if excess := earned - s.low; excess > s.capacity+1e-6 {
		s.t.Fatalf("at %v some interval has admitted %g more than the limit and what proxies held", elapsed, excess-s.capacity)
	}
	s.low = min(s.low, earned+float64(s.held()))
	for _, p := range s.proxies {
		if n := len(p.bucket.begun); n > 1 && slices.Contains(p.bucket.begun[:n-1], p.bucket.begun[n-1]) {
			s.t.Fatalf("at %v the lease %d of proxy %s began twice, and was paid for once", elapsed, p.bucket.begun[n-1], p.name)
		}
	}
}

// held returns how many units proxies can still spend. A message that extends a lease brings
// none.
func (s *simulation) held() (units int64) {
	for _, p := range s.proxies {
		units += p.bucket.tokens(s.now)
		last := p.bucket.strategy.GetTokenBucket()
		for _, d := range p.inbox {
			next := d.action.GetQuotaAssignmentAction().GetRateLimitStrategy().GetTokenBucket()
			if next != nil && !sameTokenBucket(last, next) {
				units += int64(next.GetMaxTokens())
			}
			last = next
		}
	}
	return units
}

// take is a request through another API.
func (s *simulation) take(cost int64) {
	var r engine.Result
	ds := []engine.Descriptor{{Entries: []rules.Entry{{Key: "path", Value: "/"}}, Cost: cost}}
	if err := s.engine.Decide(context.Background(), "shop", ds, &r); err != nil {
		s.t.Fatal(err)
	}
	s.admitted += r.Statuses[0].Decision.Granted
}

// sendReport sends what the proxy did since the last report, on a new stream if it has none.
func (p *proxy) sendReport() {
	s := p.sim
	if p.next.After(s.now) || p.requests == nil {
		return
	}
	p.next = s.now.Add(p.interval + p.late())
	if p.stream == nil {
		var err error
		if p.stream, err = s.service.open(p.name); err != nil {
			s.t.Fatal(err)
		}
	}
	allowed, denied := p.report(p.allowed, p.denied)
	p.allowed, p.denied = 0, 0
	if err := s.service.report(p.stream, newReport("shop", "/", allowed, denied)); err != nil {
		s.t.Fatal(err)
	}
}

func newReport(domain, path string, allowed, denied uint64) *pb.RateLimitQuotaUsageReports {
	return &pb.RateLimitQuotaUsageReports{Domain: domain, BucketQuotaUsages: []*pb.RateLimitQuotaUsageReports_BucketQuotaUsage{{
		BucketId:           &pb.BucketId{Bucket: map[string]string{"path": path}},
		NumRequestsAllowed: allowed, NumRequestsDenied: denied,
	}}}
}

// collect puts what the service sends on its way.
func (p *proxy) collect() {
	if p.stream == nil {
		return
	}
	for {
		batch := p.sim.service.nextBatch(p.stream)
		if len(batch) == 0 {
			return
		}
		for _, a := range newResponse(batch).GetBucketAction() {
			at := p.sim.now.Add(p.delay())
			if n := len(p.inbox); n > 0 && p.inbox[n-1].at.After(at) {
				at = p.inbox[n-1].at // a stream keeps the order
			}
			p.inbox = append(p.inbox, delayed{at, a})
		}
		p.sim.service.finishBatch(p.stream, batch)
	}
}

func (p *proxy) receive() {
	for len(p.inbox) > 0 && !p.inbox[0].at.After(p.sim.now) {
		p.bucket.apply(p.sim.now, p.inbox[0].action)
		p.inbox = p.inbox[1:]
	}
}

// serve decides the requests of one step.
func (p *proxy) serve() {
	if p.requests == nil {
		return
	}
	for p.debt += p.requests(p.sim.now) * simulationStep.Seconds(); p.debt >= 1; p.debt-- {
		if p.bucket.allow(p.sim.now) {
			p.allowed++
			p.totalAllowed++
			p.sim.admitted++
		} else {
			p.denied++
			p.totalDenied++
		}
	}
}

// An envoyBucket is a bucket as Envoy's client keeps it, as far as that can be seen from
// outside. Without an assignment it denies.
type envoyBucket struct {
	strategy *typepb.RateLimitStrategy
	expires  time.Time
	filled   time.Time
	level    float64
	begun    []int32 // the numbers of all leases that began
	forever  bool    // nothing expires
}

// apply applies a message: a changed token bucket begins full, one that did not change in the
// fields that the client compares goes on, the time to live is cut to seconds, and what the
// client does not support changes nothing.
func (b *envoyBucket) apply(now time.Time, a *pb.RateLimitQuotaResponse_BucketAction) {
	b.expire(now)
	if a.GetAbandonAction() != nil {
		*b = envoyBucket{begun: b.begun}
		return
	}
	assignment := a.GetQuotaAssignmentAction()
	strategy := assignment.GetRateLimitStrategy()
	switch strategy.GetStrategy().(type) {
	case *typepb.RateLimitStrategy_TokenBucket:
		if !sameTokenBucket(b.strategy.GetTokenBucket(), strategy.GetTokenBucket()) {
			b.level, b.filled = float64(strategy.GetTokenBucket().GetMaxTokens()), now
			b.begun = append(b.begun, strategy.GetTokenBucket().GetFillInterval().GetNanos())
		}
	case *typepb.RateLimitStrategy_BlanketRule_:
	default:
		return
	}
	b.strategy = strategy
	b.expires = now.Add(time.Duration(assignment.GetAssignmentTimeToLive().GetSeconds()) * time.Second)
}

func sameTokenBucket(a, b *typepb.TokenBucket) bool {
	return a != nil && a.GetMaxTokens() == b.GetMaxTokens() && a.GetTokensPerFill().GetValue() == b.GetTokensPerFill().GetValue() &&
		a.GetFillInterval().GetNanos() == b.GetFillInterval().GetNanos()
}

func (b *envoyBucket) expire(now time.Time) {
	if !now.Before(b.expires) && !b.forever {
		*b = envoyBucket{begun: b.begun}
	}
}

// refill adds the tokens of the time since the last call, at a rate by whole seconds.
func (b *envoyBucket) refill(now time.Time) {
	tb := b.strategy.GetTokenBucket()
	rate := float64(tb.GetTokensPerFill().GetValue()) / float64(tb.GetFillInterval().GetSeconds())
	b.level = min(b.level+rate*now.Sub(b.filled).Seconds(), float64(tb.GetMaxTokens()))
	b.filled = now
}

func (b *envoyBucket) tokens(now time.Time) int64 {
	if b.expire(now); b.strategy.GetTokenBucket() == nil {
		return 0
	}
	b.refill(now)
	return int64(b.level)
}

func (b *envoyBucket) allow(now time.Time) bool {
	if b.tokens(now) < 1 {
		return b.strategy.GetTokenBucket() == nil && b.strategy != nil && b.strategy.GetBlanketRule() == typepb.RateLimitStrategy_ALLOW_ALL
	}
	b.level--
	return true
}

func TestSaturatedProxiesGetEqualShares(t *testing.T) {
	t.Parallel()
	for _, interval := range []time.Duration{2 * time.Second, 20 * time.Second} {
		s := newSimulation(t, "100/1s burst=200")
		a, b, light := s.addProxy("a", 300), s.addProxy("b", 150), s.addProxy("light", 10)
		for _, p := range s.proxies {
			p.interval = interval
		}
		s.run(2 * interval) // until all demands are known
		for _, p := range s.proxies {
			p.totalAllowed, p.totalDenied = 0, 0
		}
		s.run(100 * time.Second)
		t.Logf("reports every %v: %d, %d and %d of %d", interval, a.totalAllowed, b.totalAllowed, light.totalAllowed, light.totalAllowed+light.totalDenied)
		if total := a.totalAllowed + b.totalAllowed + light.totalAllowed; total < 9000 {
			t.Errorf("the proxies got %d of about 10000 units", total)
		}
		if a.totalAllowed > b.totalAllowed*5/4 || b.totalAllowed > a.totalAllowed*5/4 {
			t.Errorf("the shares of two that want more than they get are %d and %d", a.totalAllowed, b.totalAllowed)
		}
		if light.totalDenied > 50 {
			t.Errorf("a proxy that wants less than its share was denied %d of 1000 requests", light.totalDenied)
		}
	}
}

func TestProxiesTakeTurnsIfThereIsLessThanOneUnitForEach(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, "1/1s")
	for i := range 3 {
		s.addProxy(fmt.Sprint("p", i), 5)
	}
	s.run(2 * time.Minute)
	for _, p := range s.proxies {
		if p.totalAllowed < 25 || p.totalAllowed > 55 {
			t.Errorf("proxy %s got %d of about 120 units, a third of which is 40", p.name, p.totalAllowed)
		}
	}
}

func TestShareDoesNotReplaceMoreByLess(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)
	rich := &member{lease: lease{units: 10, granted: now, expires: now.Add(time.Minute)}}
	poor := &member{}
	claims, shares := share(now, []claim{{rich, 20}, {poor, 20}}, 8)
	if len(claims) != 1 || claims[0].member != poor || shares[0] != 8 {
		t.Errorf("the shares are %v of %d members, want 8 of the one that holds nothing", shares, len(claims))
	}
}

func TestProxiesBelowLimitAreSeldomDenied(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, "1000/1s")
	for i := range 5 {
		s.addProxy(fmt.Sprint("p", i), float64(20*(i+1)))
	}
	s.run(10 * time.Second)
	denied := int64(0)
	for _, p := range s.proxies {
		p.totalAllowed, p.totalDenied = 0, 0
	}
	s.run(2 * time.Minute)
	for _, p := range s.proxies {
		denied += p.totalDenied
	}
	if denied > 300*120/100 {
		t.Errorf("%d of %d requests were denied, far below the limit", denied, 300*120)
	}
}

func TestBoundHoldsWhateverProxiesDo(t *testing.T) {
	t.Parallel()
	for _, limit := range []string{"50/1s", "20/1s burst=5", "300/1m burst=100", "5/1s burst=500"} {
		seeds := uint64(4)
		if raceEnabled {
			seeds = 1
		}
		for seed := range seeds {
			t.Run(fmt.Sprintf("%s/%d", limit, seed), func(t *testing.T) {
				t.Parallel()
				disturb(newSimulation(t, limit), rand.New(rand.NewPCG(seed, 1)))
			})
		}
	}
}

// disturb runs proxies that use, use too little, lie, vanish and return, with another API
// beside them.
func disturb(s *simulation, random *rand.Rand) {
	for i := range 6 {
		p := s.addProxy(fmt.Sprint("p", i), 0)
		p.interval = time.Duration(1+random.IntN(3)) * time.Second
		p.late = func() time.Duration { return time.Duration(max(0, random.IntN(24)-16)) * p.interval }
		p.delay = func() time.Duration { return time.Duration(random.IntN(2500)) * time.Millisecond }
	}
	for range 60 {
		for _, p := range s.proxies {
			misbehave(p, random)
		}
		if random.IntN(3) == 0 {
			s.take(int64(1 + random.IntN(20)))
		}
		s.run(time.Second)
	}
	if s.admitted == 0 {
		s.t.Error("nothing was admitted")
	}
}

// misbehave changes what a proxy does, now and then.
func misbehave(p *proxy, random *rand.Rand) {
	switch random.IntN(20) {
	case 0:
		p.vanish()
		p.next = p.sim.now.Add(time.Duration(random.IntN(15)) * time.Second)
	case 1:
		p.report = func(a, d uint64) (uint64, uint64) { return a, d + 1e6 } // gets a larger share
	case 2:
		p.report = func(uint64, uint64) (uint64, uint64) { return 0, 0 } // denies what it did
	case 3:
		p.report = func(a, d uint64) (uint64, uint64) { return math.MaxUint64, math.MaxUint64 }
	case 4:
		p.report = func(a, d uint64) (uint64, uint64) { return a, d }
	case 5, 6, 7:
		rate := float64(random.IntN(100))
		p.requests = func(time.Time) float64 { return rate }
	}
}

func TestVanishedProxiesLeaveTheirShareToOthers(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, "100/1s")
	gone, stays := s.addProxy("gone", 300), s.addProxy("stays", 300)
	s.run(20 * time.Second)
	before := stays.totalAllowed
	gone.vanish()
	gone.requests = nil
	s.run(20 * time.Second)
	if got := stays.totalAllowed - before; got < 1700 {
		t.Errorf("the proxy that stays got %d of about 2000 units in 20 s", got)
	}
	gone.requests, gone.next = func(time.Time) float64 { return 300 }, s.now
	stays.totalAllowed, gone.totalAllowed = 0, 0
	s.run(30 * time.Second)
	if gone.totalAllowed < 1000 || stays.totalAllowed < 1000 {
		t.Errorf("after its return the shares are %d and %d, want about 1500 each", gone.totalAllowed, stays.totalAllowed)
	}
}

func TestFixedWindowIsSpentOnceAndWithinItself(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, "1200/1m fixed-window align=clock")
	a, b := s.addProxy("a", 12), s.addProxy("b", 5)
	a.interval, b.interval = 5*time.Second, 5*time.Second
	for minute := range 5 {
		before := s.admitted
		s.run(time.Minute)
		// What is held at the end of a window may be spent for a second of the next.
		if got := s.admitted - before; got > 1200+60 {
			t.Errorf("minute %d admitted %d, with a limit of 1200", minute, got)
		}
	}
	if total := a.totalAllowed + b.totalAllowed; total < 5*1020*9/10 {
		t.Errorf("%d of %d requests were admitted, below the limit", total, 5*1020)
	}
}

func TestSlowLimitLosesLittleToLeases(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, "1000/24h fixed-window")
	p := s.addProxy("p", 3)
	p.interval = 5 * time.Second
	s.run(8 * time.Minute) // 1440 requests
	if p.totalAllowed < 900 {
		t.Errorf("%d of 1000 units a day were admitted", p.totalAllowed)
	}
}

func TestIdleBucketIsAbandoned(t *testing.T) {
	t.Parallel()
	s := newSimulation(t, "100/1s")
	p := s.addProxy("p", 1)
	s.run(10 * time.Second)
	p.requests = func(time.Time) float64 { return 0 }
	s.run(idleFor - 5*time.Second)
	if p.bucket.strategy == nil {
		t.Error("an idle bucket has no assignment before it is abandoned")
	}
	p.next = s.now.Add(time.Hour) // no report begins it anew
	s.run(10 * time.Second)
	if stats := s.service.Stats(); p.bucket.strategy != nil || stats.Buckets != 0 {
		t.Errorf("the bucket is not abandoned: %+v", stats)
	}
}
