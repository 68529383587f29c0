package simulation

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
)

// Whatever the order of takes, settlements, repeats, crashes and refunds, what is charged under
// an ID is what was settled last, as far as the limit's debt allows, and what is charged to a
// key is the sum of its IDs. The nodes and their faults are those of the simulation, except that
// the store keeps its state: an ID that it has lost cannot be settled.
func TestSimulationOfSettlements(t *testing.T) {
	seed := *simulationSeed
	if seed == 0 {
		seed = fixedseed.Seed()
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	jobs := *simulationSteps / 500
	s := &simulation{seed: seed, length: *simulationSteps, events: map[string]int{}, records: map[stateID]*keyRecord{}, keepsState: true}
	synctest.Test(t, func(t *testing.T) {
		s.T = t
		b := &books{simulation: s, jobs: map[string]*job{}}
		b.run(jobs)
		b.audit()
	})
	for _, what := range []string{"store", "fallback", "repeat", "settled by the fallback", "settled again", "owed", "refund", "crash", "response lost", "late request", "job denied"} {
		if s.events[what] == 0 && jobs >= 2000 {
			t.Errorf("seed %d: in %d jobs there was no %s: the test covers less than it should", seed, jobs, what)
		}
	}
	t.Logf("seed %d: %s", seed, s)
}

// bookLimits are windows longer than a run, so that time pays nothing back, and a bucket. Of one
// more is asked for than it has.
var bookLimits = []penstock.Limit{
	penstock.Per(100_000_000, 240*time.Hour).WithAlgorithm(penstock.FixedWindow),
	penstock.Per(50_000_000, 240*time.Hour).WithAlgorithm(penstock.SlidingWindow),
	{Count: 10_000, Period: 240 * time.Hour, Algorithm: penstock.FixedWindow, Debt: 60},
	penstock.Per(1_000_000, 240*time.Hour),
}

// latest is how long a call that its caller has given up may still reach the store.
const latest = time.Second

// A job is what was done under one ID.
type job struct {
	request penstock.Request
	least   int64 // what is charged at least, as the store answered last
	most    int64 // what was asked for last
}

// books are what was charged under all IDs.
type books struct {
	*simulation
	jobs map[string]*job
}

func (b *books) run(jobs int) {
	s := b.simulation
	s.clockLast = time.Now()
	s.origin = s.newOrigin()
	for i := range s.nodes {
		s.nodes[i] = s.newNode(i, 0)
	}
	var callers, chaos sync.WaitGroup
	for c := range simulatedNodes * simulatedCallers {
		callers.Go(func() {
			rng := rand.New(rand.NewPCG(s.seed, uint64(c)))
			for i := range jobs / (simulatedNodes * simulatedCallers) {
				b.work(c%simulatedNodes, fmt.Sprintf("job-%d-%d", c, i), rng)
			}
		})
	}
	stop := make(chan struct{})
	chaos.Go(func() { s.injectFaults(rand.New(rand.NewPCG(s.seed, 1<<32)), stop) })
	callers.Wait()
	close(stop)
	chaos.Wait()
	b.settleLedgers()
}

// work does one job: it takes an estimate, settles it a few times, and sometimes refunds it.
// Between calls that ask for something else, it waits until those given up have ended.
func (b *books) work(node int, id string, rng *rand.Rand) {
	limit := bookLimits[rng.IntN(len(bookLimits))]
	j := &job{request: penstock.Request{Key: fmt.Sprint("key", rng.IntN(3)), Limit: limit, ID: id, Hold: 24 * time.Hour}}
	take := j.request
	take.Cost = 1 + rng.Int64N(100)
	d := b.repeat(node, take, rng)
	b.mu.Lock()
	b.jobs[id] = j
	b.mu.Unlock()
	j.least, j.most = d.Granted, take.Cost
	if !d.Allowed { // a fallback may have granted it before
		b.count("job denied")
		return
	}
	for range rng.IntN(4) {
		time.Sleep(latest)
		settle := j.request
		settle.Cost, settle.Settle = rng.Int64N(250), true
		d = b.repeat(node, settle, rng)
		j.least, j.most = d.Granted, settle.Cost
		b.count("settled again")
		if d.Granted < settle.Cost {
			b.count("owed")
		}
	}
	if rng.IntN(5) == 0 {
		time.Sleep(latest)
		refund := j.request
		refund.Cost = -1000
		b.repeat(node, refund, rng)
		j.least, j.most = 0, 0
		b.count("refund")
	}
}

// repeat sends a request until the store has decided it, also after that at times, as callers do
// whose answers are lost.
func (b *books) repeat(node int, r penstock.Request, rng *rand.Rand) (d penstock.Decision) {
	for extra := rng.IntN(3); ; {
		b.mu.Lock()
		n := b.nodes[node]
		b.mu.Unlock()
		var err error
		d, err = n.store.Take(ctx, r)
		switch {
		case err != nil && !errors.Is(err, penstock.ErrUnavailable):
			b.failLocked("node %d: %+v: %v", node, r, err)
			return d
		case err != nil:
		case d.Source == penstock.SourceFallback && r.Settle:
			b.count("settled by the fallback")
		case d.Source == penstock.SourceFallback:
			b.count("fallback")
		case extra == 0:
			b.count("store")
			return d
		default:
			extra--
		}
		b.count("repeat")
		time.Sleep(time.Duration(rng.Int64N(int64(20 * time.Millisecond))))
	}
}

// settleLedgers repairs the networks, and calls each node until it has charged what it granted
// while the store was down.
func (b *books) settleLedgers() {
	for _, n := range b.nodes {
		n.network.repair()
	}
	for range 100 {
		time.Sleep(100 * time.Millisecond)
		for _, n := range b.nodes {
			for key := range 3 {
				_, _ = n.store.Take(ctx, penstock.Request{Key: fmt.Sprint("key", key), Limit: bookLimits[0]}) // whether it is up shows in the books
			}
		}
	}
}

// audit compares the books of the store with what callers know.
func (b *books) audit() {
	charged := map[stateID]int64{}
	ids := make([]string, 0, len(b.jobs))
	for id := range b.jobs {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		charged[stateID{b.jobs[id].request.Key, b.jobs[id].request.Limit}] += b.auditJob(id, b.jobs[id])
	}
	for of, units := range charged {
		peek, err := b.origin.Take(ctx, penstock.Request{Key: of.key, Limit: of.limit})
		if want := max(of.limit.Count-units, 0); err != nil || peek.Remaining < want || !isBucket(of.limit) && peek.Remaining != want {
			b.failLocked("%s under %v: %v, %v, want %d left, since all IDs have %d", of.key, of.limit, peek, err, want, units)
		}
		if most := of.limit.Count + of.limit.MaxDebt(); units > most {
			b.failLocked("%s under %v: %d units are charged, and at most %d may be", of.key, of.limit, units, most)
		}
		b.closeBooks(of)
	}
}

// auditJob returns what the store has charged under an ID.
func (b *books) auditJob(id string, j *job) int64 {
	again := j.request
	again.Cost = j.request.Limit.Count + 1 // never granted: the store answers with what it remembers
	d, err := b.origin.Take(ctx, again)
	if err != nil || d.Granted < j.least || d.Granted > max(j.least, j.most) {
		b.failLocked("%s: %v, %v, want what was settled last: %d, or up to %d", id, d, err, j.least, j.most)
	}
	return d.Granted
}

// closeBooks settles all IDs of a key to nothing, after which nothing of it is used.
func (b *books) closeBooks(of stateID) {
	for id, j := range b.jobs {
		if j.request.Key != of.key || j.request.Limit != of.limit {
			continue
		}
		settle := j.request
		settle.Cost, settle.Settle = 0, true
		if d, err := b.origin.Take(ctx, settle); err != nil && !errors.Is(err, penstock.ErrUnknownID) || d.Granted != 0 {
			b.failLocked("%s: settled to nothing: %v, %v", id, d, err)
		}
	}
	peek, err := b.origin.Take(ctx, penstock.Request{Key: of.key, Limit: of.limit})
	if err != nil || !isBucket(of.limit) && peek.Remaining != of.limit.Count { // what time has paid back is not refunded
		b.failLocked("%s under %v: %v, %v, want all of it left after all IDs were settled to nothing", of.key, of.limit, peek, err)
	}
}

// isBucket reports whether time pays back what is charged.
func isBucket(l penstock.Limit) bool { return l.Algorithm == penstock.TokenBucket }
