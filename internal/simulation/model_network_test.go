package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/penstock-io/penstock"
)

// A network connects a node to the store, and injects faults.
type network struct {
	sim  *simulation
	node int
	rng  *rand.Rand

	refuse, hang bool
	lossPerMille int           // requests and responses lost, in a thousand each
	extraDelay   time.Duration // added to each direction

	batch      callOutcome // of the calls since batchBegan
	batchBegan time.Time
	batchSize  int
}

// batchSpan is how long calls join a batch.
const batchSpan = 200 * time.Microsecond

func (l *network) repair() { l.refuse, l.hang, l.lossPerMille, l.extraDelay = false, false, 0, 0 }

// A callOutcome is what happens to one call.
type callOutcome struct {
	refused, hung, requestLost, responseLost bool
	requestDelay, responseDelay              time.Duration
}

// outcome returns what happens to a call. Calls of one node that are sent at about the same
// time travel in one batch, as in the Redis store: all of them arrive, in their order, or none
// does, and all responses do.
func (l *network) outcome() callOutcome {
	l.sim.mu.Lock()
	defer l.sim.mu.Unlock()
	since := time.Since(l.batchBegan)
	if l.batchSize == 0 || since >= min(batchSpan, l.batch.requestDelay) {
		l.batch, l.batchBegan, l.batchSize = l.newOutcome(), time.Now(), 1
		return l.batch
	}
	l.batchSize++
	l.sim.events["call in a batch"]++
	f := l.batch
	if f.requestDelay += time.Duration(l.batchSize) - since; f.requestLost || f.responseLost {
		l.sim.events["lost batch"]++
	}
	return f
}

func (l *network) newOutcome() callOutcome {
	way := func() time.Duration { return l.extraDelay + time.Duration(20_000+l.rng.Int64N(200_000)) }
	return callOutcome{
		refused: l.refuse, hung: l.hang,
		requestLost: l.rng.IntN(1000) < l.lossPerMille, responseLost: l.rng.IntN(1000) < l.lossPerMille,
		requestDelay: way(), responseDelay: way(),
	}
}

// roundTrip sends a request to the store and returns with the response. The store
// performs a request even if its caller has timed out.
func (l *network) roundTrip(ctx context.Context, perform func()) error {
	f := l.outcome()
	switch {
	case f.refused:
		l.sim.count("refused connection")
		return fmt.Errorf("network: %w: connection refused", penstock.ErrUnavailable)
	case f.hung || f.requestLost:
		l.sim.count(map[bool]string{true: "hang", false: "request lost"}[f.hung])
		return l.timeout(ctx)
	}
	if !l.delay(ctx, f.requestDelay) {
		l.sim.count("late request")
		time.AfterFunc(f.requestDelay, perform)
		return l.timeout(ctx)
	}
	perform()
	if f.responseLost {
		l.sim.count("response lost")
		return l.timeout(ctx)
	}
	if !l.delay(ctx, f.responseDelay) {
		return l.timeout(ctx)
	}
	return nil
}

// timeout waits until the context ends.
func (l *network) timeout(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("network: %w: %w", penstock.ErrUnavailable, ctx.Err())
}

func (l *network) delay(ctx context.Context, way time.Duration) bool {
	t := time.NewTimer(way)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// A response holds the decisions of a call. A late one is written here after the
// caller has returned.
type response struct {
	ds  []penstock.Decision
	err error
}

func (l *network) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	one := func(ctx context.Context, s penstock.Store, rs []penstock.Request, ds []penstock.Decision) (err error) {
		ds[0], err = s.Take(ctx, rs[0])
		return err
	}
	a, err := l.send(ctx, []penstock.Request{r}, one, l.record)
	if err != nil {
		return penstock.Decision{}, err
	}
	return a.ds[0], a.err
}

func (l *network) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	a, err := l.send(ctx, rs, penstock.TakeEach, l.recordEach)
	if err != nil {
		return err
	}
	copy(ds, a.ds)
	return a.err
}

func (l *network) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	a, err := l.send(ctx, rs, penstock.TakeAll, l.record)
	if err != nil {
		return err
	}
	copy(ds, a.ds)
	return a.err
}

type (
	takeFunc   func(context.Context, penstock.Store, []penstock.Request, []penstock.Decision) error
	recordFunc func(sent time.Time, r penstock.Request, d penstock.Decision)
)

// send sends requests to the store, and records what it did.
func (l *network) send(ctx context.Context, rs []penstock.Request, take takeFunc, enter recordFunc) (*response, error) {
	sent, a := time.Now(), &response{ds: make([]penstock.Decision, len(rs))}
	rs = append([]penstock.Request(nil), rs...)
	err := l.roundTrip(ctx, func() {
		l.sim.mu.Lock()
		defer l.sim.mu.Unlock()
		a.err = take(context.Background(), l.sim.origin, rs, a.ds)
		for i := range rs {
			enter(sent, rs[i], a.ds[i])
		}
	})
	return a, err
}

// record records what the store did. Only two kinds of requests have AtMost: the
// refills of a lease, and settlements, which have an ID.
func (l *network) record(sent time.Time, r penstock.Request, d penstock.Decision) {
	s, b := l.sim, l.sim.record(r)
	s.advanceClock()
	switch {
	case r.Cost == penstock.Reset:
		s.recordRefund(b, r, r.Limit.Normal().Burst)
	case d.Granted < 0:
		s.recordRefund(b, r, -d.Granted)
	case r.ID != "":
		s.events["settlement"]++
	case r.AtMost:
		s.events["refill"]++
		b.charged += d.Granted
		if own := &b.nodes[l.node]; d.Granted > 0 && sent.After(own.refilledAt) {
			own.refilledAt = sent // an earlier refill may arrive later, after its timeout
		}
	default:
		b.charged += d.Granted
		s.recordSpent(b, r, d.Granted)
	}
}

// recordEach is record for requests of a TakeEach, which are settlements, and refunds
// of unspent leased units.
func (l *network) recordEach(sent time.Time, r penstock.Request, d penstock.Decision) {
	if r.Cost > 0 {
		l.record(sent, r, d)
		return
	}
	l.sim.events["lease refund"]++
	l.sim.record(r).refundedAt = time.Now()
}

// injectFaults injects or repairs faults at random times.
func (s *simulation) injectFaults(rng *rand.Rand, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(rng.Int64N(int64(200 * time.Millisecond)))):
		}
		s.mu.Lock()
		s.injectFault(rng)
		s.mu.Unlock()
	}
}

func (s *simulation) injectFault(rng *rand.Rand) {
	l := s.nodes[rng.IntN(simulatedNodes)].network
	switch rng.IntN(16) {
	case 0, 1:
		l.refuse = true
	case 2:
		l.hang = true
	case 3:
		l.lossPerMille = 1 + rng.IntN(300)
	case 4:
		l.extraDelay = time.Duration(rng.Int64N(int64(70 * time.Millisecond)))
	case 5:
		for _, n := range s.nodes { // the store itself is down
			n.network.refuse = true
		}
	case 6:
		if !s.keepsState {
			s.loseStore()
		}
	case 7:
		if !s.keepsState {
			s.stepClock(rng)
		}
	case 8:
		s.restart(rng.IntN(simulatedNodes), rng.IntN(2) == 0)
	default:
		for _, n := range s.nodes[:1+rng.IntN(simulatedNodes)] {
			n.network.repair()
		}
	}
}

// loseStore restarts the store without its state, which admits one more burst of
// every key.
func (s *simulation) loseStore() {
	s.origin = s.newOrigin()
	s.events["store loss"]++
	for of, b := range s.records {
		s.recordRefund(b, penstock.Request{Limit: of.limit}, of.limit.Normal().Burst)
	}
}

// stepClock steps the store's clock.
func (s *simulation) stepClock(rng *rand.Rand) {
	s.advanceClock()
	step := time.Duration(rng.Int64N(int64(3*time.Second))) - 1500*time.Millisecond
	s.clockOffset += step
	s.events[map[bool]string{true: "clock forward", false: "clock back"}[step > 0]]++
	for _, b := range s.records {
		b.refundedAt, b.disturbedAt = time.Now(), time.Now()
	}
}

// restart replaces a process. An orderly one closes its lease first, which refunds
// the units held.
func (s *simulation) restart(i int, orderly bool) {
	old := s.nodes[i]
	s.nodes[i] = s.newNode(i, old.generation+1)
	if orderly {
		s.events["close"]++
		go func() { _ = old.lease.Close(ctx) }()
		return
	}
	s.events["crash"]++
	old.network.refuse = true // the process is gone
}
