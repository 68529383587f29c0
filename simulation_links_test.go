package penstock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/penstock-io/penstock"
)

// A link carries a node's requests to the store, or fails to.
type link struct {
	s    *simulation
	node int
	rng  *rand.Rand

	refuses, hangs bool
	loses          int           // in a thousand, requests and answers alike
	slow           time.Duration // added to every way
}

func (l *link) heal() { l.refuses, l.hangs, l.loses, l.slow = false, false, 0, 0 }

// A fate is what becomes of one trip.
type fate struct {
	refused, hung, lostThere, lostBack bool
	there, back                        time.Duration
}

func (l *link) fate() fate {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	way := func() time.Duration { return l.slow + time.Duration(20_000+l.rng.Int64N(200_000)) }
	return fate{
		refused: l.refuses, hung: l.hangs,
		lostThere: l.rng.IntN(1000) < l.loses, lostBack: l.rng.IntN(1000) < l.loses,
		there: way(), back: way(),
	}
}

// travel goes to the store and back. A request whose answer nobody waits for any
// more is carried out all the same.
func (l *link) travel(ctx context.Context, perform func()) error {
	f := l.fate()
	switch {
	case f.refused:
		l.s.saw("refusal")
		return fmt.Errorf("link: %w: connection refused", penstock.ErrUnavailable)
	case f.hung || f.lostThere:
		l.s.saw(map[bool]string{true: "hang", false: "request lost"}[f.hung])
		return l.never(ctx)
	}
	if !l.pass(ctx, f.there) {
		l.s.saw("ghost")
		time.AfterFunc(f.there, perform)
		return l.never(ctx)
	}
	perform()
	if f.lostBack {
		l.s.saw("answer lost")
		return l.never(ctx)
	}
	if !l.pass(ctx, f.back) {
		return l.never(ctx)
	}
	return nil
}

// never waits for what does not come.
func (l *link) never(ctx context.Context) error {
	<-ctx.Done()
	return fmt.Errorf("link: %w: %w", penstock.ErrUnavailable, ctx.Err())
}

func (l *link) pass(ctx context.Context, way time.Duration) bool {
	t := time.NewTimer(way)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// answers are those to requests under way. One that comes too late is written
// where nobody looks any more.
type answers struct {
	ds  []penstock.Decision
	err error
}

func (l *link) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	one := func(ctx context.Context, s penstock.Store, rs []penstock.Request, ds []penstock.Decision) (err error) {
		ds[0], err = s.Take(ctx, rs[0])
		return err
	}
	a, err := l.send(ctx, []penstock.Request{r}, one, l.enter)
	if err != nil {
		return penstock.Decision{}, err
	}
	return a.ds[0], a.err
}

func (l *link) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	a, err := l.send(ctx, rs, penstock.TakeEach, l.enterEach)
	if err != nil {
		return err
	}
	copy(ds, a.ds)
	return a.err
}

func (l *link) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	a, err := l.send(ctx, rs, penstock.TakeAll, l.enter)
	if err != nil {
		return err
	}
	copy(ds, a.ds)
	return a.err
}

type (
	takeFunc  func(context.Context, penstock.Store, []penstock.Request, []penstock.Decision) error
	enterFunc func(sent time.Time, r penstock.Request, d penstock.Decision)
)

// send carries requests to the store, and enters into the books what it has done.
func (l *link) send(ctx context.Context, rs []penstock.Request, take takeFunc, enter enterFunc) (*answers, error) {
	sent, a := time.Now(), &answers{ds: make([]penstock.Decision, len(rs))}
	rs = append([]penstock.Request(nil), rs...)
	err := l.travel(ctx, func() {
		l.s.mu.Lock()
		defer l.s.mu.Unlock()
		a.err = take(context.Background(), l.s.origin, rs, a.ds)
		for i := range rs {
			enter(sent, rs[i], a.ds[i])
		}
	})
	return a, err
}

// enter writes into the books what the store has done. Nobody asks for what is
// left but a lease, which asks for more that way, and a settlement, which has an ID.
func (l *link) enter(sent time.Time, r penstock.Request, d penstock.Decision) {
	s, b := l.s, l.s.book(r)
	s.moved()
	switch {
	case r.Cost == penstock.Reset:
		s.forgive(b, r, r.Limit.Normal().Burst)
	case d.Granted < 0:
		s.forgive(b, r, -d.Granted)
	case r.ID != "":
		s.seen["settlement"]++
	case r.AtMost:
		s.seen["refill"]++
		b.debited += d.Granted
		if d.Granted > 0 {
			b.nodes[l.node].refilled = sent
		}
	default:
		b.debited += d.Granted
		s.spend(b, r, d.Granted)
	}
}

// enterEach is the same for requests that are asked each by itself. Nobody does so
// but a settlement, and a lease that gives back what was not spent.
func (l *link) enterEach(sent time.Time, r penstock.Request, d penstock.Decision) {
	if r.Cost > 0 {
		l.enter(sent, r, d)
		return
	}
	l.s.seen["lease given back"]++
	l.s.book(r).given = time.Now()
}

// wreak does one bad thing after the other, and mends it after a while.
func (s *simulation) wreak(rng *rand.Rand, stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		case <-time.After(time.Duration(rng.Int64N(int64(200 * time.Millisecond)))):
		}
		s.mu.Lock()
		s.spoil(rng)
		s.mu.Unlock()
	}
}

func (s *simulation) spoil(rng *rand.Rand) {
	l := s.nodes[rng.IntN(simulatedNodes)].link
	switch rng.IntN(16) {
	case 0, 1:
		l.refuses = true
	case 2:
		l.hangs = true
	case 3:
		l.loses = 1 + rng.IntN(300)
	case 4:
		l.slow = time.Duration(rng.Int64N(int64(70 * time.Millisecond)))
	case 5:
		for _, n := range s.nodes { // the store itself is gone
			n.link.refuses = true
		}
	case 6:
		s.lose()
	case 7:
		s.stepClock(rng)
	case 8:
		s.restart(rng.IntN(simulatedNodes), rng.IntN(2) == 0)
	default:
		for _, n := range s.nodes[:1+rng.IntN(simulatedNodes)] {
			n.link.heal()
		}
	}
}

// lose lets the store come back empty: a burst of every key.
func (s *simulation) lose() {
	s.origin = s.newOrigin()
	s.seen["store loss"]++
	for of, b := range s.books {
		s.forgive(b, penstock.Request{Limit: of.limit}, of.limit.Normal().Burst)
	}
}

// stepClock sets the store's clock.
func (s *simulation) stepClock(rng *rand.Rand) {
	s.moved()
	step := time.Duration(rng.Int64N(int64(3*time.Second))) - 1500*time.Millisecond
	s.ahead += step
	s.seen[map[bool]string{true: "clock forward", false: "clock back"}[step > 0]]++
	for _, b := range s.books {
		b.given, b.disturbed = time.Now(), time.Now()
	}
}

// restart ends a process, which may or may not have time to give back what it
// holds, and starts another.
func (s *simulation) restart(i int, orderly bool) {
	old := s.nodes[i]
	s.nodes[i] = s.newNode(i, old.born+1)
	if orderly {
		s.seen["close"]++
		go func() { _ = old.lease.Close(ctx) }()
		return
	}
	s.seen["crash"]++
	old.link.refuses = true // and nobody hears of it again
}
