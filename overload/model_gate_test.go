//go:build !race

package overload

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/penstock-io/penstock/internal/simulation/simserver"
)

// This file simulates a server behind a gate in virtual time. It uses the gate's
// own steps (tryEnter, ask, leave, queue), so that no goroutine is needed, and one
// seed gives one result.

// A simulation runs events in virtual time.
type simulation struct {
	now    int64
	events simEvents
	random *rand.Rand
	order  int64
}

type simEvent struct {
	at, order int64
	do        func()
}

type simEvents []simEvent

func (h simEvents) Len() int { return len(h) }
func (h simEvents) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].order < h[j].order
}
func (h simEvents) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *simEvents) Push(e any)   { *h = append(*h, e.(simEvent)) }
func (h *simEvents) Pop() any {
	e := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return e
}

func newSimulation(seed uint64) *simulation {
	return &simulation{now: 1, random: rand.New(rand.NewPCG(seed, 1))}
}

// Now and After implement [simserver.Timeline].
func (s *simulation) Now() int64 { return s.now }

func (s *simulation) After(d int64, do func()) {
	s.order++
	heap.Push(&s.events, simEvent{s.now + max(d, 0), s.order, do})
}

func (s *simulation) run(until int64) {
	for len(s.events) > 0 && s.events[0].at <= until {
		e := heap.Pop(&s.events).(simEvent)
		s.now = e.at
		e.do()
	}
	s.now = until
}

// workload is what simulated clients send.
type workload struct {
	rate     simserver.Rate
	work     simserver.Work
	priority func(*rand.Rand) Priority
}

const never = math.MaxInt64 / 4 // the work of a call that hangs

// overloaded is half of a rate for ten seconds, then a multiple of it.
func overloaded(capacity, times float64) simserver.Rate {
	return simserver.Overloaded(capacity, times, 10e9)
}

func constant(mean float64) simserver.Work {
	return func(*rand.Rand, int64) int64 { return int64(mean) }
}

// lognormalOf has a mean of one, and a standard deviation of 1.3.
func lognormalOf(r *rand.Rand) float64 { return math.Exp(r.NormFloat64() - 0.5) }

// A simRun is clients, gates and a server.
type simRun struct {
	*simulation
	gate    *Gate // the first of the gates
	gates   []*simGate
	server  simserver.Server
	load    workload
	retries int     // of clients that retry at once
	instead trouble // that calls have; nil for none

	calls  []simResult // that ended, or were refused
	limits []limitAt
}

// A simGate is a gate with the calls that wait at it.
type simGate struct {
	*Gate
	waiting [ranks][]*simCall
}

type simCall struct {
	gate    *simGate
	arrived int64
	p       Priority
	w       *waiter
}

type simResult struct {
	at, latency int64 // latency is -1 if refused
	p           Priority
}

type limitAt struct {
	at    int64
	limit int
}

func newSimRun(seed uint64, o GateOptions, server func(*simulation) simserver.Server, load workload) *simRun {
	return newSimRunOf(1, seed, o, server, load)
}

// newSimRunOf has several gates, each of which gets its share of the calls.
func newSimRunOf(gates int, seed uint64, o GateOptions, server func(*simulation) simserver.Server, load workload) *simRun {
	s := newSimulation(seed)
	o.Now = func() time.Time { return time.Unix(0, s.now+1) } // a clock goes on between two readings in one call
	r := &simRun{simulation: s, server: server(s), load: load}
	for range gates {
		r.gates = append(r.gates, &simGate{Gate: NewGate(&o)})
	}
	r.gate = r.gates[0].Gate
	if s, ok := r.server.(*simserver.Processor); ok && !s.Keeps && !r.gate.fixed {
		r.gate.delay = processorDelay(s)
	}
	r.After(0, r.arrive)
	r.After(0, r.watch)
	return r
}

// processorDelay measures the waits of a simulated processor.
func processorDelay(p *simserver.Processor) *delayMeter {
	return &delayMeter{procs: func() int { return 1 }, yield: func(done func()) { p.Serve(1, done) }}
}

func (r *simRun) watch() {
	r.limits = append(r.limits, limitAt{r.now, limitOf(r.gate.word.Load()) - int(r.gate.meter.hung.Load())})
	r.After(20e6, r.watch)
}

func (r *simRun) arrive() {
	rate := r.load.rate(r.now)
	r.After(int64(r.random.ExpFloat64()/rate*1e9), r.arrive)
	p := Normal
	if r.load.priority != nil {
		p = r.load.priority(r.random)
	}
	c := &simCall{gate: r.gates[0], arrived: r.now, p: p}
	if len(r.gates) > 1 {
		c.gate = r.gates[r.random.IntN(len(r.gates))]
	}
	if s, ok := r.server.(*simserver.Processor); ok {
		s.Accept(func() { r.enter(c, r.retries) })
		return
	}
	r.enter(c, r.retries)
}

func (r *simRun) enter(c *simCall, retries int) {
	if d := c.gate.delay; d != nil && r.now >= d.dueAt.Load() {
		c.gate.measureDelay(d.dueAt.Load(), r.now)
	}
	if c.gate.tryEnter(r.now) {
		r.serve(c, r.now)
		return
	}
	w, wait := c.gate.ask(r.now, c.p)
	r.admit(c.gate)
	switch {
	case wait == 0 && retries > 0:
		r.enter(c, retries-1)
	case wait == 0:
		r.calls = append(r.calls, simResult{r.now, -1, c.p})
	case w == nil:
		r.serve(c, r.now)
	default:
		c.w = w
		c.gate.waiting[c.p.rank()] = append(c.gate.waiting[c.p.rank()], c)
		r.admit(c.gate) // the limit may have grown
		r.After(wait, func() { r.giveUp(c, retries) })
	}
}

func (r *simRun) giveUp(c *simCall, retries int) {
	if c.w.granted != 0 || !c.gate.queue.remove(c.w, &c.gate.word) {
		return
	}
	c.gate.meter.refused.Add(1)
	queue := &c.gate.waiting[c.p.rank()]
	*queue = slices.DeleteFunc(*queue, func(other *simCall) bool { return other == c })
	if retries > 0 {
		r.enter(c, retries-1)
		return
	}
	r.calls = append(r.calls, simResult{r.now, -1, c.p})
}

func (r *simRun) serve(c *simCall, start int64) {
	if r.instead != nil {
		if took, o, happens := r.instead(r.random, r.now); happens {
			r.After(took, func() {
				c.gate.leave(start, o, r.now)
				r.admit(c.gate)
			})
			return
		}
	}
	work := r.load.work(r.random, r.now)
	if work >= never {
		return // it holds its place at the gate, and no worker
	}
	r.server.Serve(work, func() {
		r.calls = append(r.calls, simResult{r.now, r.now - c.arrived, c.p})
		c.gate.leave(start, Success, r.now)
		r.admit(c.gate)
	})
}

// admit serves the calls that a gate admitted meanwhile.
func (r *simRun) admit(g *simGate) {
	for rank := range g.waiting {
		for len(g.waiting[rank]) > 0 && g.waiting[rank][0].w.granted != 0 {
			c := g.waiting[rank][0]
			g.waiting[rank] = g.waiting[rank][1:]
			r.serve(c, c.w.granted)
		}
	}
}

// servedWithin is how many calls a second that ended in an interval took no longer than that.
func (r *simRun) servedWithin(most, from, until int64) float64 {
	n := 0.0
	for _, c := range r.calls {
		if c.at >= from && c.at < until && c.latency >= 0 && c.latency <= most {
			n++
		}
	}
	return n / (float64(until-from) / 1e9)
}

// A simSummary describes the calls that ended in an interval.
type simSummary struct {
	served, refused    float64 // a second
	refusedShare       float64
	p99                float64 // milliseconds
	meanLimit, sdLimit float64
}

func (r *simRun) summary(from, until int64, only func(Priority) bool) (s simSummary) {
	var latencies []int64
	for _, c := range r.calls {
		if c.at < from || c.at >= until || only != nil && !only(c.p) {
			continue
		}
		if c.latency < 0 {
			s.refused++
			continue
		}
		latencies = append(latencies, c.latency)
	}
	slices.Sort(latencies)
	if n := len(latencies); n > 0 {
		s.p99 = float64(latencies[n*99/100]) / 1e6
	}
	seconds := float64(until-from) / 1e9
	s.served = float64(len(latencies))
	s.refusedShare = s.refused / max(s.refused+s.served, 1)
	s.served, s.refused = s.served/seconds, s.refused/seconds
	n := 0
	for _, l := range r.limits {
		if l.at >= from && l.at < until {
			s.meanLimit += float64(l.limit)
			s.sdLimit += float64(l.limit) * float64(l.limit)
			n++
		}
	}
	s.meanLimit /= float64(max(n, 1))
	s.sdLimit = math.Sqrt(max(s.sdLimit/float64(max(n, 1))-s.meanLimit*s.meanLimit, 0))
	return s
}
