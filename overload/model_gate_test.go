package overload

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"slices"
	"time"
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

func (s *simulation) after(d int64, do func()) {
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

// A simServer works on calls. A call needs some work, in nanoseconds of one worker.
type simServer interface {
	serve(work int64, done func())
}

// A poolServer has workers, and a queue in order of arrival.
type poolServer struct {
	*simulation
	workers, busy int
	queue         []func()
}

func (p *poolServer) serve(work int64, done func()) {
	start := func() {
		p.after(work, func() {
			p.busy--
			p.next()
			done()
		})
	}
	p.queue = append(p.queue, start)
	p.next()
}

func (p *poolServer) next() {
	for p.busy < p.workers && len(p.queue) > 0 {
		start := p.queue[0]
		p.queue = p.queue[1:]
		p.busy++
		start()
	}
}

// A sharedServer has processors that all calls share evenly. With contention, each
// call beyond them costs all of them some of their speed.
type sharedServer struct {
	*simulation
	processors, contention float64
	jobs                   sharedJobs
	served                 float64 // work that each call has got since the beginning
	at                     int64
	version                int
}

type sharedJob struct {
	until float64
	done  func()
}

type sharedJobs []sharedJob

func (h sharedJobs) Len() int           { return len(h) }
func (h sharedJobs) Less(i, j int) bool { return h[i].until < h[j].until }
func (h sharedJobs) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *sharedJobs) Push(e any)        { *h = append(*h, e.(sharedJob)) }
func (h *sharedJobs) Pop() any {
	e := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return e
}

func (p *sharedServer) speed() float64 {
	n := float64(len(p.jobs))
	return min(1, p.processors/max(n, 1)) / (1 + p.contention*max(n-p.processors, 0))
}

func (p *sharedServer) advance() {
	p.served += float64(p.now-p.at) * p.speed()
	p.at = p.now
}

func (p *sharedServer) serve(work int64, done func()) {
	p.advance()
	heap.Push(&p.jobs, sharedJob{p.served + float64(work), done})
	p.schedule()
}

func (p *sharedServer) schedule() {
	p.version++
	if len(p.jobs) == 0 {
		return
	}
	version := p.version
	p.after(int64(math.Ceil((p.jobs[0].until-p.served)/p.speed())), func() {
		if version != p.version {
			return
		}
		p.advance()
		var ended []func()
		for len(p.jobs) > 0 && p.jobs[0].until <= p.served+1 {
			ended = append(ended, heap.Pop(&p.jobs).(sharedJob).done)
		}
		p.schedule()
		for _, done := range ended {
			done()
		}
	})
}

// A remoteServer is latency without queueing.
type remoteServer struct{ *simulation }

func (r remoteServer) serve(work int64, done func()) { r.after(work, done) }

// A scheduledServer is one processor with a run queue, as a process of Go has it: calls compute
// in turns of a time slice. A call waits for its turn when it arrives, before it reaches the gate,
// and again after that, because it has waited for something else or yields to others. If calls
// keep the processor, they only compute, and those that the gate admits go on in the turn of
// whatever reached it or left it.
type scheduledServer struct {
	*simulation
	keeps   bool
	queue   []scheduledTask
	running bool
	ending  bool           // whether a task has just been done, in a turn that is not over
	heir    *scheduledTask // that goes on in this turn
}

type scheduledTask struct {
	left int64
	done func()
}

const (
	timeSlice  = 10e6
	acceptWork = 50e3 // to read a request
)

func (p *scheduledServer) accept(f func()) { p.serve(acceptWork, f) }

func (p *scheduledServer) serve(work int64, done func()) {
	t := scheduledTask{work, done}
	if p.keeps && p.ending && p.heir == nil {
		p.heir = &t
		return
	}
	p.queue = append(p.queue, t)
	p.next()
}

func (p *scheduledServer) next() {
	if p.running || len(p.queue) == 0 {
		return
	}
	t := p.queue[0]
	p.queue, p.running = p.queue[1:], true
	p.compute(t, timeSlice)
}

// compute gives a task the processor for the rest of a turn.
func (p *scheduledServer) compute(t scheduledTask, rest int64) {
	took := min(t.left, rest)
	p.after(took, func() {
		t.left -= took
		if p.finish(t); p.heir != nil {
			heir := *p.heir
			p.heir = nil
			p.compute(heir, rest-took)
			return
		}
		p.running = false
		p.next()
	})
}

func (p *scheduledServer) finish(t scheduledTask) {
	if t.left > 0 {
		p.queue = append(p.queue, t)
		return
	}
	p.ending = true
	t.done()
	p.ending = false
}

// workload is what simulated clients send.
type workload struct {
	rate     func(now int64) float64 // calls a second
	work     func(*rand.Rand, int64) int64
	priority func(*rand.Rand) Priority
}

const never = math.MaxInt64 / 4 // the work of a call that hangs

func steady(rate float64) func(int64) float64 { return func(int64) float64 { return rate } }

// overloaded is half of a rate for ten seconds, then a multiple of it.
func overloaded(capacity, times float64) func(int64) float64 {
	return func(now int64) float64 {
		if now < 10e9 {
			return capacity / 2
		}
		return capacity * times
	}
}

func exponential(mean float64) func(*rand.Rand, int64) int64 {
	return func(r *rand.Rand, _ int64) int64 { return int64(r.ExpFloat64() * mean) }
}

func constant(mean float64) func(*rand.Rand, int64) int64 {
	return func(*rand.Rand, int64) int64 { return int64(mean) }
}

// lognormalOf has a mean of one, and a standard deviation of 1.3.
func lognormalOf(r *rand.Rand) float64 { return math.Exp(r.NormFloat64() - 0.5) }

// heavyTail is 1 ms, or 91 ms for a call in ten: 10 ms in the mean.
func heavyTail(r *rand.Rand, _ int64) int64 {
	if r.IntN(10) == 0 {
		return 91e6
	}
	return 1e6
}

// stepped multiplies the work from a time on.
func stepped(work func(*rand.Rand, int64) int64, at int64, times float64) func(*rand.Rand, int64) int64 {
	return func(r *rand.Rand, now int64) int64 {
		w := work(r, now)
		if now >= at {
			return int64(float64(w) * times)
		}
		return w
	}
}

// A simRun is clients, a gate and a server.
type simRun struct {
	*simulation
	gate   *Gate
	server simServer
	load   workload

	waiting [ranks][]*simCall
	calls   []simResult // that ended, or were refused
	limits  []limitAt
}

type simCall struct {
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

func newSimRun(seed uint64, o GateOptions, server func(*simulation) simServer, load workload) *simRun {
	s := newSimulation(seed)
	o.Now = func() time.Time { return time.Unix(0, s.now) }
	r := &simRun{simulation: s, gate: NewGate(&o), server: server(s), load: load}
	r.after(0, r.arrive)
	r.after(0, r.watch)
	return r
}

func (r *simRun) watch() {
	r.limits = append(r.limits, limitAt{r.now, limitOf(r.gate.word.Load()) - int(r.gate.meter.hung.Load())})
	r.after(20e6, r.watch)
}

func (r *simRun) arrive() {
	rate := r.load.rate(r.now)
	r.after(int64(r.random.ExpFloat64()/rate*1e9), r.arrive)
	p := Normal
	if r.load.priority != nil {
		p = r.load.priority(r.random)
	}
	c := &simCall{arrived: r.now, p: p}
	if s, ok := r.server.(*scheduledServer); ok {
		s.accept(func() { r.enter(c) })
		return
	}
	r.enter(c)
}

func (r *simRun) enter(c *simCall) {
	if r.gate.tryEnter() {
		r.serve(c, r.now)
		return
	}
	w, wait := r.gate.ask(r.now, c.p)
	r.admit()
	switch {
	case wait == 0:
		r.calls = append(r.calls, simResult{r.now, -1, c.p})
	case w == nil:
		r.serve(c, r.now)
	default:
		c.w = w
		r.waiting[c.p.rank()] = append(r.waiting[c.p.rank()], c)
		r.admit() // the limit may have grown
		r.after(wait, func() { r.giveUp(c) })
	}
}

func (r *simRun) giveUp(c *simCall) {
	if c.w.granted != 0 || !r.gate.queue.remove(c.w, &r.gate.word) {
		return
	}
	r.gate.meter.refused.Add(1)
	queue := &r.waiting[c.p.rank()]
	*queue = slices.DeleteFunc(*queue, func(other *simCall) bool { return other == c })
	r.calls = append(r.calls, simResult{r.now, -1, c.p})
}

func (r *simRun) serve(c *simCall, start int64) {
	work := r.load.work(r.random, r.now)
	if work >= never {
		return // it holds its place at the gate, and no worker
	}
	r.server.serve(work, func() {
		r.calls = append(r.calls, simResult{r.now, r.now - c.arrived, c.p})
		r.gate.leave(start, Success, r.now)
		r.admit()
	})
}

// admit serves the calls that the gate admitted meanwhile.
func (r *simRun) admit() {
	for rank := range r.waiting {
		for len(r.waiting[rank]) > 0 && r.waiting[rank][0].w.granted != 0 {
			c := r.waiting[rank][0]
			r.waiting[rank] = r.waiting[rank][1:]
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
