package overload

import (
	"context"
	"math"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/monotime"
)

// GateOptions are the settings of a [Gate]. A number of zero means its default.
type GateOptions struct {
	// Limit is how many calls may be in flight. Zero lets the gate find out the
	// limit from the latency of the calls. A number makes the gate a bulkhead:
	// the limit is fixed and exact, also for calls that hang. At most 1,048,575.
	Limit int

	// MaxLimit bounds the limit that the gate finds out. Default: 10,000.
	MaxLimit int

	// MaxWait is how long a call may wait for its turn. A call whose turn would
	// hardly come in time is refused at once. While some calls wait at all times,
	// which means that waiting does not help, the bound is a twentieth of it. A
	// negative number lets no call wait. Default: 100 ms.
	MaxWait time.Duration

	// Now is the clock, for tests and simulations. It must be safe for
	// concurrent use. How long a call waits in [Gate.Enter] goes by the
	// machine's clock. Default: the machine's monotonic clock.
	Now func() time.Time
}

const (
	defaultMaxLimit = 10_000
	defaultGateWait = 100 * time.Millisecond
)

// A Gate bounds how many calls are in flight, so that a server under overload
// serves as many calls as it can, at nearly the latency of an idle server, and
// refuses the rest at once. It is safe for concurrent use, and must not be copied.
//
// Without a fixed limit, the gate finds out how many calls the server works on at
// once. It compares the latency of calls with what it is without queueing, and
// checks that now and then by admitting fewer calls: if fewer are no faster, then
// they did not queue, and that is how long they take. It needs no CPU load, so it
// works as well for a server that waits for a database or for a pool of
// connections.
//
// Calls that hang do not lock others out: a call that is in flight for more than
// half a second and twenty times the usual latency no longer counts towards the limit,
// provided that calls which came later have ended meanwhile, or that none is in flight.
// A full gate that admits nobody takes all for hung after another half second, or after as long as calls took
// that had hung and have succeeded after all, a minute at most. So while all calls hang, it lets in as many as
// the limit each half second at most, which stay in flight: give calls a time-out.
//
// Requests that wait for a processor have not entered yet. The gate measures, with a goroutine of its
// own, how long that is, and admits fewer calls if it is too long because of them. A
// server whose calls only compute should call [runtime.Gosched] after Enter, as the middleware does,
// so that they reach the gate and are counted.
//
// Calls wait by priority, and in order of arrival within one. No call is admitted
// while a call of a better priority, or an earlier one of its own, is waiting.
type Gate struct {
	word    atomic.Uint64 // see the constants below
	clock   monotime.Clock
	maxWait int64
	fixed   bool

	meter   meter
	queue   waitQueue
	control limitControl
	curve   departureCurve
	delay   *delayMeter // nil if it is not known, or the limit is fixed
}

// The word of a gate has the number of calls in flight, the limit, whether calls
// are waiting, and how many calls were ever admitted, modulo 2²³. In one word,
// they change together, so the limit is exact.
const (
	countBits   = 20
	countMask   = 1<<countBits - 1
	waitingFlag = 1 << (2 * countBits)
	admittedBit = 2*countBits + 1
	oneCall     = 1<<admittedBit + 1
	admittedMod = 1 << (64 - admittedBit)
)

func inFlight(word uint64) int { return int(word & countMask) }
func limitOf(word uint64) int  { return int(word >> countBits & countMask) }
func admitted(word uint64) int { return int(word >> admittedBit) }
func isFull(word uint64) bool  { return inFlight(word) >= limitOf(word) }
func hasRoom(word uint64) bool { return word&waitingFlag == 0 && !isFull(word) }

// NewGate returns a gate without calls in flight. Nil options mean all defaults.
func NewGate(o *GateOptions) *Gate {
	if o == nil {
		o = &GateOptions{}
	}
	g := &Gate{clock: monotime.New(o.Now), fixed: o.Limit > 0, maxWait: int64(defaultGateWait)}
	if o.MaxWait != 0 {
		g.maxWait = max(int64(o.MaxWait), 0)
	}
	most := defaultMaxLimit
	if o.MaxLimit > 0 {
		most = o.MaxLimit
	}
	limit := min(startLimit, most)
	if g.fixed {
		limit, most = o.Limit, o.Limit
	}
	if !g.fixed && o.Now == nil {
		g.delay = newDelayMeter()
	}
	now := g.clock.Now()
	g.curve.jumpedAt, g.curve.took = now, math.Inf(1)
	g.meter.at.Store(now)
	g.meter.sweepFrom.Store(now)
	g.control.init(now, min(limit, countMask), min(most, countMask))
	g.word.Store(uint64(min(limit, countMask)) << countBits)
	return g
}

// A Priority says which calls wait for which others, and which are refused first.
type Priority uint8

// The priorities, of which Normal is the zero value.
const (
	Normal    Priority = iota
	Critical           // goes first
	Sheddable          // goes last
)

// String returns the name of the priority.
func (p Priority) String() string {
	switch p {
	case Critical:
		return "critical"
	case Sheddable:
		return "sheddable"
	}
	return "normal"
}

// rank is the order in which priorities go. An unknown priority is Normal.
func (p Priority) rank() int {
	switch p {
	case Critical:
		return 0
	case Sheddable:
		return 2
	}
	return 1
}

const ranks = 3

// A Pass is an admitted call. Its caller must end it, exactly once, with Leave: leaving twice
// ends another call early.
type Pass struct {
	gate  *Gate
	start int64
}

// Enter admits a call, after a short wait if the gate is full, or returns a
// [FullError]. If the context ends while the call waits, Enter returns the
// context's error.
func (g *Gate) Enter(ctx context.Context, p Priority) (Pass, error) {
	now := g.clock.Now()
	if g.delay != nil {
		if due := g.delay.dueAt.Load(); now >= due {
			g.measureDelay(due, now)
		}
	}
	if g.tryEnter(now) {
		return Pass{g, now}, nil
	}
	return g.enterFull(ctx, p, now)
}

// tryEnter admits a call if there is room, and no call is waiting.
func (g *Gate) tryEnter(now int64) bool {
	for {
		word := g.word.Load()
		if !hasRoom(word) {
			return false
		}
		if g.admit(word, now) {
			return true
		}
	}
}

// admit counts a call as in flight, unless the word has changed.
func (g *Gate) admit(word uint64, now int64) bool {
	if !g.word.CompareAndSwap(word, word+oneCall) {
		return false
	}
	g.meter.changed(now, inFlight(word), 0)
	return true
}

// Leave ends the call. The latency of a call that succeeded tells the gate about
// the server, and so does that of another if it was longer than usual.
func (p Pass) Leave(o Outcome) {
	if p.gate != nil {
		p.gate.leave(p.start, o, p.gate.clock.Now())
	}
}

func (g *Gate) leave(start int64, o Outcome, now int64) {
	word := g.word.Load()
	for ; ; word = g.word.Load() {
		if inFlight(word) == 0 { // the caller has left before
			return
		}
		if g.word.CompareAndSwap(word, word-1) {
			break
		}
	}
	word--
	if g.meter.left(word, start, now, o) {
		g.removeHung()
	}
	g.check(now)
	if word&waitingFlag != 0 {
		g.admitWaiting(now)
	}
}

// Do calls f if the gate admits it, and returns the error of f, a [FullError], or
// the context's error.
func (g *Gate) Do(ctx context.Context, p Priority, f func(context.Context) error) (err error) {
	pass, err := g.Enter(ctx, p)
	if err != nil {
		return err
	}
	outcome := Failure // of a panic
	defer func() { pass.Leave(outcome) }()
	err = f(ctx)
	outcome = outcomeOf(ctx, err, nil)
	return err
}

// GateStats are what a gate does at the moment.
type GateStats struct {
	Limit    int           // how many calls may be in flight
	InFlight int           // how many are
	Waiting  int           // how many wait for their turn
	Hung     int           // how many of those in flight no longer count, and raise Limit
	Latency  time.Duration // the mean of recent calls; zero if it is not known yet
}

// Stats returns what the gate does at the moment.
func (g *Gate) Stats() GateStats {
	word := g.word.Load()
	return GateStats{
		Limit:    limitOf(word),
		InFlight: inFlight(word),
		Waiting:  g.queue.waiting(),
		Hung:     int(g.meter.hung.Load()),
		Latency:  time.Duration(g.meter.mean.Load()),
	}
}
