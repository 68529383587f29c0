package simulation

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
)

// The simulation runs nodes with all wrappers on one store, over networks that
// fail in every way, while the store loses state and its clock jumps. Time is that of
// a synctest bubble, so a run takes no longer than its arithmetic, and a seed repeats
// it:
//
//	go test ./internal/simulation -run 'Simulation$' -simulation.seed 42 -simulation.steps 10000000
var (
	simulationSeed  = flag.Uint64("simulation.seed", 0, "seed of the simulation; 0 is that of all random tests")
	simulationSteps = flag.Int("simulation.steps", fixedseed.FewerUnderRace(1_000_000), "number of decisions to simulate")
)

func TestSimulation(t *testing.T) {
	seed := *simulationSeed
	if seed == 0 {
		seed = fixedseed.Seed()
	}
	s := simulate(t, seed, *simulationSteps)
	for _, what := range requiredEvents {
		if s.events[what] == 0 && s.steps >= 1_000_000 {
			t.Errorf("seed %d: in %d steps there was no %s: the test covers less than it should", seed, s.steps, what)
		}
	}
	t.Logf("seed %d: %s", seed, s)
}

// The same seed leads to the same decisions, so a failure can be reproduced. Where a goroutine starts another and loses
// the processor at once, that one may go first: if two runs differ, three more must agree.
func TestSimulationIsDeterministic(t *testing.T) {
	first, second := simulate(t, 7, 10_000), simulate(t, 7, 10_000)
	if first.digest != second.digest {
		t.Logf("two runs of one seed differ:\n%s\n%s", first, second)
		first, second = simulate(t, 7, 10_000), simulate(t, 7, 10_000)
		if third := simulate(t, 7, 10_000); third.digest != second.digest {
			first = third
		}
	}
	if first.digest != second.digest {
		t.Errorf("two runs of one seed differ:\n%s\n%s", first, second)
	}
	if other := simulate(t, 8, 10_000); other.digest == first.digest {
		t.Error("two seeds lead to the same run")
	}
}

// simulate runs a simulation on one processor, so goroutines run in the order in
// which they are woken.
func simulate(t *testing.T, seed uint64, steps int) *simulation {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := &simulation{seed: seed, length: steps, events: map[string]int{}, records: map[stateID]*keyRecord{}}
	synctest.Test(t, func(t *testing.T) {
		s.T = t
		s.run()
	})
	return s
}

const (
	simulatedNodes   = 8
	simulatedCallers = 4 // per node
	callTimeout      = 50 * time.Millisecond
	leaseAge         = time.Second
	localShare       = 1.0 / simulatedNodes
	originTick       = time.Millisecond
)

// slowLimit earns units so slowly that leased units which are not spent matter.
var slowLimit = penstock.Per(200_000, time.Hour).WithBurst(8000)

// simulatedLimits are the limits of the requests: some are leased, of which one is
// saturated, and some are not.
var simulatedLimits = []penstock.Limit{
	penstock.Per(40_000, time.Second).WithBurst(8000),
	penstock.Per(1000, time.Second).WithBurst(1600),
	penstock.Per(1600, time.Minute),
	slowLimit,
	penstock.Per(50, time.Second).WithBurst(20),
	penstock.Per(100, time.Second).WithAlgorithm(penstock.SlidingLog),
	penstock.Per(100, time.Second).WithAlgorithm(penstock.FixedWindow),
}

// requiredEvents are events that a long simulation must contain to be meaningful.
var requiredEvents = []string{
	"store", "lease", "deny-cache", "fallback", "denial", "refund", "reset", "peek", "take all", "take all denied",
	"refill", "lease refund", "settlement", "down", "up", "request lost", "response lost", "hang", "late request",
	"call in a batch", "lost batch", "refused connection", "store loss", "clock forward", "clock back", "crash", "close",
}

// A simulation is a store, the nodes that use it, and the faults.
type simulation struct {
	*testing.T
	seed   uint64
	length int

	keepsState bool // the store loses nothing, and its clock does not jump

	mu      sync.Mutex
	steps   int
	digest  uint64
	events  map[string]int
	records map[stateID]*keyRecord

	origin       *penstock.Memory
	clockOffset  time.Duration // of the store's clock
	clockForward int64         // by how much the store's clock has moved forward in all
	clockLast    time.Time     // the store's time at that moment
	nodes        [simulatedNodes]*node
}

// A node is a process: its wrappers, and its network to the store.
type node struct {
	index      int
	network    *network
	lease      *penstock.Lease
	store      *penstock.DenyCache
	generation int // counts the restarts
}

func (s *simulation) run() {
	s.clockLast = time.Now()
	s.origin = s.newOrigin()
	for i := range s.nodes {
		s.nodes[i] = s.newNode(i, 0)
	}
	var wg sync.WaitGroup
	for i := range simulatedNodes {
		for c := range simulatedCallers {
			wg.Go(func() { s.runCaller(i, rand.New(rand.NewPCG(s.seed, uint64(i*100+c)))) })
		}
	}
	stop := make(chan struct{})
	var chaos sync.WaitGroup
	chaos.Go(func() { s.injectFaults(rand.New(rand.NewPCG(s.seed, 1<<32)), stop) })
	wg.Wait()
	close(stop)
	chaos.Wait()
	for _, n := range s.nodes {
		n.network.repair()
		_ = n.lease.Close(ctx) // if the store is unavailable, the units are lost
	}
	time.Sleep(time.Minute) // for calls in flight
}

func (s *simulation) newOrigin() *penstock.Memory {
	return penstock.NewMemory(&penstock.MemoryOptions{
		MaxKeys: 1 << 16, Tick: originTick,
		Now: func() time.Time { return time.Now().Add(s.clockOffset) },
	})
}

// newNode starts a process with all wrappers.
func (s *simulation) newNode(i, born int) *node {
	n := &node{index: i, generation: born}
	n.network = &network{sim: s, node: i, rng: rand.New(rand.NewPCG(s.seed, 1<<40+uint64(born*100+i)))}
	local := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1 << 12})
	fallback := penstock.WithFallback(n.network, local, &penstock.FallbackOptions{
		Timeout: callTimeout, Share: localShare,
		OnChange: func(c penstock.FallbackChange) {
			s.count(map[bool]string{true: "down", false: "up"}[c.Down])
		},
	})
	n.lease = penstock.WithLease(fallback, &penstock.LeaseOptions{Nodes: simulatedNodes, MaxAge: leaseAge, MaxKeys: 1 << 12})
	n.store = penstock.WithDenyCache(n.lease, &penstock.DenyCacheOptions{MaxKeys: 1 << 12})
	return n
}

// count counts an event.
func (s *simulation) count(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events[what]++
}

// failf ends the simulation, and logs how to reproduce it.
func (s *simulation) failf(format string, args ...any) {
	s.Helper()
	s.Errorf("step %d: %s\nreproduce with -simulation.seed %d -simulation.steps %d",
		s.steps, fmt.Sprintf(format, args...), s.seed, s.length)
	s.steps = s.length // so that all callers stop
}

// digestDecision counts a decision, and adds it to the digest by which two runs are
// compared. It is a sum, because callers that wake at the same nanosecond run in any order.
func (s *simulation) digestDecision(n *node, r penstock.Request, d penstock.Decision) (more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps++
	s.events[d.Source.String()]++
	if !d.Allowed {
		s.events["denial"]++
	}
	hash := uint64(time.Now().UnixNano())
	for _, word := range []int64{int64(n.index), int64(r.Key[3]), r.Cost, d.Granted, int64(d.RetryAfter), int64(d.Source)} {
		hash = (hash ^ uint64(word)) * 0x100000001b3
	}
	s.digest += hash
	return s.steps < s.length
}

func (s *simulation) String() string {
	var parts []string
	for what, times := range s.events {
		parts = append(parts, fmt.Sprintf("%s %d", what, times))
	}
	slices.Sort(parts)
	return fmt.Sprintf("%d steps, digest %x: %s", s.steps, s.digest, strings.Join(parts, ", "))
}

// runCaller sends the requests of one caller: takes, some bursts, and some refunds.
func (s *simulation) runCaller(i int, rng *rand.Rand) {
	pace := time.Millisecond
	for more := true; more; {
		time.Sleep(time.Duration(rng.Int64N(int64(2 * pace))))
		if rng.IntN(500) == 0 {
			pace = time.Duration(1+rng.IntN(40)) * 100 * time.Microsecond
		}
		s.mu.Lock()
		n := s.nodes[i]
		s.mu.Unlock()
		switch choice := rng.IntN(4000); {
		case choice < 4:
			more = s.burst(n)
		case choice < 100:
			more = s.takeAll(n, rng)
		case choice < 200:
			more = s.take(n, s.request(rng, 0))
		default:
			more = s.takeAndRefund(n, rng)
		}
	}
}

// burst takes twenty units of one key in a short time.
func (s *simulation) burst(n *node) (more bool) {
	for range 20 {
		more = s.take(n, penstock.Request{Key: neverRefunded, Limit: slowLimit, Cost: 1})
		time.Sleep(time.Millisecond)
	}
	return more
}

// request returns a random request of at most so many units.
func (s *simulation) request(rng *rand.Rand, most int64) penstock.Request {
	limit := simulatedLimits[rng.IntN(len(simulatedLimits))]
	if limit == slowLimit && rng.IntN(20) > 0 {
		limit = simulatedLimits[0]
	}
	r := penstock.Request{Key: fmt.Sprint("key", rng.IntN(2)), Limit: limit, Cost: most}
	if most > 1 && rng.IntN(8) > 0 {
		r.Cost = 1
	}
	return r
}

// take sends a request and checks the decision.
func (s *simulation) take(n *node, r penstock.Request) (more bool) {
	_, more = s.takeAndCheck(n, r)
	if r.Cost == 0 {
		s.count("peek")
	}
	return more
}

func (s *simulation) takeAndCheck(n *node, r penstock.Request) (penstock.Decision, bool) {
	start := time.Now()
	d, err := n.store.Take(ctx, r)
	if err != nil {
		s.failLocked("node %d: %+v: %v: callers should see no error", n.index, r, err)
		return d, false
	}
	if took := time.Since(start); took > 2*callTimeout+10*time.Millisecond {
		s.failLocked("node %d: %+v took %v", n.index, r, took)
	}
	s.check(n, start, r, d)
	return d, s.digestDecision(n, r, d)
}

func (s *simulation) failLocked(format string, args ...any) {
	s.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failf(format, args...)
}

// neverRefunded is a key without refunds and resets, so its bounds are exact.
const neverRefunded = "key0"

// takeAndRefund takes units, and sometimes refunds them or resets the key. Units that
// a fallback granted are kept: which store would get the refund depends on which one
// decides by then.
func (s *simulation) takeAndRefund(n *node, rng *rand.Rand) bool {
	r := s.request(rng, 1+rng.Int64N(6))
	d, more := s.takeAndCheck(n, r)
	if !d.Allowed || d.Source == penstock.SourceFallback || r.Key == neverRefunded || !more {
		return more
	}
	switch rng.IntN(200) {
	case 0, 1, 2:
		time.Sleep(time.Duration(rng.Int64N(int64(20 * time.Millisecond))))
		r.Cost = -d.Granted
		_, more = s.takeAndCheck(n, r)
		s.count("refund")
	case 3:
		if rng.IntN(20) == 0 {
			r.Cost = penstock.Reset
			_, more = s.takeAndCheck(n, r)
			s.count("reset")
		}
	}
	return more
}

// takeAll takes from two limits at once.
func (s *simulation) takeAll(n *node, rng *rand.Rand) bool {
	rs := []penstock.Request{s.request(rng, 2), s.request(rng, 2)}
	ds, began := make([]penstock.Decision, len(rs)), time.Now()
	if err := penstock.TakeAll(ctx, n.store, rs, ds); err != nil {
		s.failLocked("node %d: %+v: %v: callers should see no error", n.index, rs, err)
		return false
	}
	more := true
	s.count(map[bool]string{true: "take all", false: "take all denied"}[penstock.Tightest(ds).Allowed])
	if ds[0].Source == penstock.SourceDenyCache {
		s.count("take all denied by the cache")
	}
	for i, d := range ds {
		if d.Source == penstock.SourceDenyCache && penstock.Tightest(ds).Allowed {
			s.failLocked("node %d: %+v: allowed by the deny cache: %v", n.index, rs, ds)
		}
		if !penstock.Tightest(ds).Allowed && d.Granted != 0 {
			s.failLocked("node %d: %+v: denied, but charged: %v", n.index, rs, ds)
		}
		s.check(n, began, rs[i], d)
		more = s.digestDecision(n, rs[i], d) && more
	}
	return more
}
