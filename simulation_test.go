package penstock_test

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
)

// The simulation lets nodes with all wrappers at once share one store, over links
// that fail in every way, while the store forgets what it knew and its clock jumps.
// Time is the bubble's, so a run takes no longer than its arithmetic, and its seed
// repeats it:
//
//	go test . -run 'Simulation$' -simulation.seed 42 -simulation.steps 10000000
var (
	simulationSeed  = flag.Uint64("simulation.seed", 0, "the seed of the simulation; 0 takes another every time")
	simulationSteps = flag.Int("simulation.steps", simulationLength, "how many decisions to simulate")
)

func TestSimulation(t *testing.T) {
	seed := *simulationSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	s := simulate(t, seed, *simulationSteps)
	for _, what := range worthSeeing {
		if s.seen[what] == 0 && s.steps >= 1_000_000 {
			t.Errorf("seed %d: in %d steps there was no %s: this has tested less than it should", seed, s.steps, what)
		}
	}
	t.Logf("seed %d: %s", seed, s)
}

// The same seed leads to the same decisions, so that a failure can be looked at
// again.
func TestSimulationRepeats(t *testing.T) {
	first, second := simulate(t, 7, 10_000), simulate(t, 7, 10_000)
	if first.digest != second.digest {
		t.Errorf("two runs of one seed differ:\n%s\n%s", first, second)
	}
	if other := simulate(t, 8, 10_000); other.digest == first.digest {
		t.Error("two seeds lead to the same run")
	}
}

// simulate runs a simulation on one processor, so that whoever is woken first runs
// first.
func simulate(t *testing.T, seed uint64, steps int) *simulation {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	s := &simulation{seed: seed, length: steps, seen: map[string]int{}, books: map[subject]*book{}}
	synctest.Test(t, func(t *testing.T) {
		s.T = t
		s.run()
	})
	return s
}

const (
	simulatedNodes   = 8
	simulatedCallers = 4 // a node
	linkTimeout      = 50 * time.Millisecond
	leaseAge         = time.Second
	localShare       = 1.0 / simulatedNodes
	originTick       = time.Millisecond
)

// slowLimit comes back so slowly that what is leased of it and not spent matters.
var slowLimit = penstock.Per(200_000, time.Hour).WithBurst(8000)

// simulatedLimits are what the nodes ask about: two that are leased, of which one
// is asked for more than it has, and some that are not.
var simulatedLimits = []penstock.Limit{
	penstock.Per(40_000, time.Second).WithBurst(8000),
	penstock.Per(1000, time.Second).WithBurst(1600),
	penstock.Per(1600, time.Minute),
	slowLimit,
	penstock.Per(50, time.Second).WithBurst(20),
	penstock.Per(100, time.Second).WithAlgorithm(penstock.SlidingLog),
	penstock.Per(100, time.Second).WithAlgorithm(penstock.FixedWindow),
}

// worthSeeing is what a simulation must have come across to have been worth it.
var worthSeeing = []string{
	"store", "lease", "deny-cache", "fallback", "denial", "refund", "reset", "look", "take all", "take all refused",
	"refill", "lease given back", "settlement", "gave up", "back again", "request lost", "answer lost", "hang", "ghost",
	"refusal", "store loss", "clock forward", "clock back", "crash", "close",
}

// A simulation is a store, the nodes that ask it, and what happens to them.
type simulation struct {
	*testing.T
	seed   uint64
	length int

	mu     sync.Mutex
	steps  int
	digest uint64
	seen   map[string]int
	books  map[subject]*book

	origin  *penstock.Memory
	ahead   time.Duration // of the store's clock
	forward int64         // how far the store's clock has moved forward
	last    time.Time     // when that was looked at
	nodes   [simulatedNodes]*node
}

// A node is a process: its wrappers, its link to the store, and its callers.
type node struct {
	index int
	link  *link
	lease *penstock.Lease
	store *penstock.DenyCache
	born  int // which process on this node it is
}

func (s *simulation) run() {
	s.last = time.Now()
	s.origin = s.newOrigin()
	for i := range s.nodes {
		s.nodes[i] = s.newNode(i, 0)
	}
	var wg sync.WaitGroup
	for i := range simulatedNodes {
		for c := range simulatedCallers {
			wg.Go(func() { s.call(i, rand.New(rand.NewPCG(s.seed, uint64(i*100+c)))) })
		}
	}
	stop := make(chan struct{})
	var chaos sync.WaitGroup
	chaos.Go(func() { s.wreak(rand.New(rand.NewPCG(s.seed, 1<<32)), stop) })
	wg.Wait()
	close(stop)
	chaos.Wait()
	for _, n := range s.nodes {
		n.link.heal()
		_ = n.lease.Close(ctx) // the store may not be reached, and then the units are lost
	}
	time.Sleep(time.Minute) // for what is still under way
}

func (s *simulation) newOrigin() *penstock.Memory {
	return penstock.NewMemory(&penstock.MemoryOptions{
		MaxKeys: 1 << 12, Tick: originTick,
		Now: func() time.Time { return time.Now().Add(s.ahead) },
	})
}

// newNode starts a process with all wrappers.
func (s *simulation) newNode(i, born int) *node {
	n := &node{index: i, born: born}
	n.link = &link{s: s, node: i, rng: rand.New(rand.NewPCG(s.seed, 1<<40+uint64(born*100+i)))}
	local := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1 << 12})
	fallback := penstock.WithFallback(n.link, local, &penstock.FallbackOptions{
		Timeout: linkTimeout, Share: localShare,
		OnChange: func(c penstock.FallbackChange) { s.saw(map[bool]string{true: "gave up", false: "back again"}[c.Down]) },
	})
	n.lease = penstock.WithLease(fallback, &penstock.LeaseOptions{Nodes: simulatedNodes, MaxAge: leaseAge, MaxKeys: 1 << 12})
	n.store = penstock.WithDenyCache(n.lease, &penstock.DenyCacheOptions{MaxKeys: 1 << 12})
	return n
}

// saw takes note that something happened.
func (s *simulation) saw(what string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[what]++
}

// failf ends the simulation, and says how to repeat it.
func (s *simulation) failf(format string, args ...any) {
	s.Helper()
	s.Errorf("step %d: %s\nrepeat it with -simulation.seed %d -simulation.steps %d",
		s.steps, fmt.Sprintf(format, args...), s.seed, s.length)
	s.steps = s.length // so that all callers stop
}

// note takes a decision down, so that two runs can be compared, and counts it.
func (s *simulation) note(n *node, r penstock.Request, d penstock.Decision) (goOn bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.steps++
	s.seen[d.Source.String()]++
	if !d.Allowed {
		s.seen["denial"]++
	}
	for _, word := range []int64{int64(n.index), int64(r.Key[3]), r.Cost, d.Granted, int64(d.RetryAfter), int64(d.Source)} {
		s.digest = (s.digest ^ uint64(word)) * 0x100000001b3
	}
	return s.steps < s.length
}

func (s *simulation) String() string {
	var parts []string
	for what, times := range s.seen {
		parts = append(parts, fmt.Sprintf("%s %d", what, times))
	}
	slices.Sort(parts)
	return fmt.Sprintf("%d steps, digest %x: %s", s.steps, s.digest, strings.Join(parts, ", "))
}

// call is a caller: it asks, now and then in a rush, and gives back sometimes.
func (s *simulation) call(i int, rng *rand.Rand) {
	pace := time.Millisecond
	for goOn := true; goOn; {
		time.Sleep(time.Duration(rng.Int64N(int64(2 * pace))))
		if rng.IntN(500) == 0 {
			pace = time.Duration(1+rng.IntN(40)) * 100 * time.Microsecond
		}
		s.mu.Lock()
		n := s.nodes[i]
		s.mu.Unlock()
		switch choice := rng.IntN(4000); {
		case choice < 4:
			goOn = s.rush(n)
		case choice < 100:
			goOn = s.takeAll(n, rng)
		case choice < 200:
			goOn = s.take(n, s.request(rng, 0))
		default:
			goOn = s.takeAndGiveBack(n, rng)
		}
	}
}

// rush asks for one key all of a sudden, and then no more.
func (s *simulation) rush(n *node) (goOn bool) {
	for range 20 {
		goOn = s.take(n, penstock.Request{Key: untouched, Limit: slowLimit, Cost: 1})
		time.Sleep(time.Millisecond)
	}
	return goOn
}

// request makes up a request of so many units at most.
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

// take asks for one thing, and holds the answer against the books.
func (s *simulation) take(n *node, r penstock.Request) (goOn bool) {
	_, goOn = s.ask(n, r)
	if r.Cost == 0 {
		s.saw("look")
	}
	return goOn
}

func (s *simulation) ask(n *node, r penstock.Request) (penstock.Decision, bool) {
	start := time.Now()
	d, err := n.store.Take(ctx, r)
	if err != nil {
		s.failLocked("node %d: %+v: %v: nobody should see an error", n.index, r, err)
		return d, false
	}
	if took := time.Since(start); took > 2*linkTimeout+10*time.Millisecond {
		s.failLocked("node %d: %+v took %v", n.index, r, took)
	}
	s.check(n, r, d)
	return d, s.note(n, r, d)
}

func (s *simulation) failLocked(format string, args ...any) {
	s.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failf(format, args...)
}

// untouched is the key of which nothing is ever given back, so that nothing blurs
// what was spent of it.
const untouched = "key0"

// takeAndGiveBack takes, and sometimes gives back what it got, or resets the key.
// What a fallback has granted is kept: who it would be given back to depends on
// who is asked by then.
func (s *simulation) takeAndGiveBack(n *node, rng *rand.Rand) bool {
	r := s.request(rng, 1+rng.Int64N(6))
	d, goOn := s.ask(n, r)
	if !d.Allowed || d.Source == penstock.SourceFallback || r.Key == untouched || !goOn {
		return goOn
	}
	switch rng.IntN(200) {
	case 0, 1, 2:
		time.Sleep(time.Duration(rng.Int64N(int64(20 * time.Millisecond))))
		r.Cost = -d.Granted
		_, goOn = s.ask(n, r)
		s.saw("refund")
	case 3:
		if rng.IntN(20) == 0 {
			r.Cost = penstock.Reset
			_, goOn = s.ask(n, r)
			s.saw("reset")
		}
	}
	return goOn
}

// takeAll takes of two limits at once.
func (s *simulation) takeAll(n *node, rng *rand.Rand) bool {
	rs := []penstock.Request{s.request(rng, 2), s.request(rng, 2)}
	ds := make([]penstock.Decision, len(rs))
	if err := penstock.TakeAll(ctx, n.store, rs, ds); err != nil {
		s.failLocked("node %d: %+v: %v: nobody should see an error", n.index, rs, err)
		return false
	}
	goOn := true
	s.saw(map[bool]string{true: "take all", false: "take all refused"}[penstock.Tightest(ds).Allowed])
	for i, d := range ds {
		if !penstock.Tightest(ds).Allowed && d.Granted != 0 {
			s.failLocked("node %d: %+v: refused, and yet charged: %v", n.index, rs, ds)
		}
		s.check(n, rs[i], d)
		goOn = s.note(n, rs[i], d) && goOn
	}
	return goOn
}
