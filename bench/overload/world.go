package main

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// A server works on calls, each of which needs some work: the time of one worker.
type server interface {
	// serve returns when the work is done, or false if the client has given up before it
	// began.
	serve(work time.Duration) bool

	// busy is the share of the workers that work.
	busy() float64
}

// patience is after how long clients give up waiting.
const patience = time.Second

// A pool has workers, and a queue in order of arrival.
type pool struct{ workers chan struct{} }

func newPool(workers int) server { return &pool{make(chan struct{}, workers)} }

func (p *pool) serve(work time.Duration) bool {
	arrived := time.Now()
	p.workers <- struct{}{}
	defer func() { <-p.workers }()
	if time.Since(arrived) > patience {
		return false
	}
	time.Sleep(work)
	return true
}

func (p *pool) busy() float64 { return float64(len(p.workers)) / float64(cap(p.workers)) }

// A sharing server has processors that all calls share evenly.
type sharing struct {
	processors float64

	mu    sync.Mutex
	jobs  []job   // that which ends first is the first
	done  float64 // work that each call has got since the beginning, in nanoseconds
	at    time.Time
	timer *time.Timer
}

func newSharing(processors int) server { return &sharing{processors: float64(processors)} }

type job struct {
	until float64
	ended chan struct{}
}

func (s *sharing) serve(work time.Duration) bool {
	j := job{ended: make(chan struct{})}
	s.mu.Lock()
	s.advance()
	j.until = s.done + float64(work)
	i, _ := slices.BinarySearchFunc(s.jobs, j, func(a, b job) int { return cmp.Compare(a.until, b.until) })
	s.jobs = slices.Insert(s.jobs, i, j)
	s.schedule()
	s.mu.Unlock()
	<-j.ended
	return true
}

func (s *sharing) speed() float64 { return min(1, s.processors/float64(max(len(s.jobs), 1))) }

func (s *sharing) advance() {
	now := time.Now()
	s.done += float64(now.Sub(s.at)) * s.speed()
	s.at = now
}

func (s *sharing) schedule() {
	if len(s.jobs) == 0 {
		return
	}
	wait := time.Duration(math.Ceil((s.jobs[0].until - s.done) / s.speed()))
	if s.timer == nil {
		s.timer = time.AfterFunc(wait, s.finish)
		return
	}
	s.timer.Reset(wait)
}

func (s *sharing) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.advance()
	for len(s.jobs) > 0 && s.jobs[0].until <= s.done+1 {
		close(s.jobs[0].ended)
		s.jobs = s.jobs[1:]
	}
	s.schedule()
}

func (s *sharing) busy() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return min(1, float64(len(s.jobs))/s.processors)
}

// A scheduled server is one processor with a run queue, as a process of Go has it: calls compute
// in turns of a time slice. A call waits for its turn when it arrives, before it reaches the limiter,
// and again after that, because it has waited for something else or the middleware yields.
type scheduled struct {
	mu      sync.Mutex
	queue   []scheduledTask
	running bool
}

type scheduledTask struct {
	left  time.Duration
	ended chan struct{}
}

const (
	timeSlice  = 10 * time.Millisecond
	acceptWork = 50 * time.Microsecond // to read a request
)

func (s *scheduled) serve(work time.Duration) bool {
	t := scheduledTask{work, make(chan struct{})}
	s.mu.Lock()
	s.queue = append(s.queue, t)
	s.next()
	s.mu.Unlock()
	<-t.ended
	return true
}

func (s *scheduled) next() {
	if s.running || len(s.queue) == 0 {
		return
	}
	t := s.queue[0]
	s.queue, s.running = s.queue[1:], true
	took := min(t.left, timeSlice)
	time.AfterFunc(took, func() { s.finish(t, took) })
}

func (s *scheduled) finish(t scheduledTask, took time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running = false
	if t.left -= took; t.left > 0 {
		s.queue = append(s.queue, t)
	} else {
		close(t.ended)
	}
	s.next()
}

func (s *scheduled) busy() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running {
		return 1
	}
	return 0
}

// A remote server has latency, and no queue.
type remote struct{}

func (remote) serve(work time.Duration) bool { time.Sleep(work); return true }
func (remote) busy() float64                 { return 0 }

// A load is what clients send.
type load struct {
	rate     func(at time.Duration) float64 // calls a second
	work     func(r *rand.Rand, at time.Duration) time.Duration
	critical func(*rand.Rand) bool

	// From hangAt on, so many of the calls that are admitted never end. The first of
	// them occupy a worker.
	hangAt        time.Duration
	hang, working int64
}

const mean = 10 * time.Millisecond // of the work of a call

// idleP99 is the 99th percentile of the work.
var idleP99 = time.Duration(float64(mean) * math.Log(100))

func exponential(r *rand.Rand, _ time.Duration) time.Duration {
	return time.Duration(r.ExpFloat64() * float64(mean))
}

// heavyTail is 1 ms, or 91 ms for a call in ten.
func heavyTail(r *rand.Rand, _ time.Duration) time.Duration {
	if r.IntN(10) == 0 {
		return 91 * time.Millisecond
	}
	return time.Millisecond
}

func stepped(at time.Duration, times float64) func(*rand.Rand, time.Duration) time.Duration {
	return func(r *rand.Rand, now time.Duration) time.Duration {
		if now < at {
			return exponential(r, now)
		}
		return time.Duration(times * float64(exponential(r, now)))
	}
}

func steady(rate float64) func(time.Duration) float64 {
	return func(time.Duration) float64 { return rate }
}

// overloaded is half of the capacity, then a multiple of it.
func overloaded(capacity, times float64, from time.Duration) func(time.Duration) float64 {
	return func(at time.Duration) float64 {
		if at < from {
			return capacity / 2
		}
		return capacity * times
	}
}

// A world is clients, a limiter and a server.
type world struct {
	limiter *limiter
	server  server
	load    load
	cpuIdle bool // the workers wait for something else

	begin time.Time
	ended chan struct{}
	hung  atomic.Int64
	calls sync.WaitGroup
	mu    sync.Mutex
	log   []outcome
}

type outcome struct {
	at, latency time.Duration // the latency is refused or gaveUp otherwise
	critical    bool
}

const (
	refused = time.Duration(-1)
	gaveUp  = time.Duration(-2)
)

// run sends calls for as long as that. It must be called in a bubble.
func (w *world) run(length time.Duration, seed uint64) {
	w.begin, w.ended = time.Now(), make(chan struct{})
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // repeatable on purpose
	w.calls.Go(w.tellCPU)
	next := w.begin
	for {
		next = next.Add(time.Duration(r.ExpFloat64() / w.load.rate(time.Since(w.begin)) * 1e9))
		if next.Sub(w.begin) > length {
			break
		}
		time.Sleep(time.Until(next))
		critical := w.load.critical != nil && w.load.critical(r)
		work := w.load.work(r, time.Since(w.begin))
		if _, ok := w.server.(*scheduled); ok || w.limiter.blocks {
			w.calls.Go(func() { w.call(work, critical) })
			continue
		}
		if leave, ok := w.limiter.enter(critical); ok {
			arrived := time.Now()
			w.calls.Go(func() { w.serve(work, critical, arrived, leave) })
		} else {
			w.record(refused, critical)
		}
	}
	close(w.ended)
	w.calls.Wait()
}

// tellCPU tells the limiter how busy the workers are.
func (w *world) tellCPU() {
	for tick := 0; ; tick++ {
		select {
		case <-w.ended:
			return
		case <-time.After(250 * time.Millisecond):
		}
		if w.limiter.cpu != nil && !w.cpuIdle {
			w.limiter.cpu(tick, w.server.busy())
		}
	}
}

func (w *world) call(work time.Duration, critical bool) {
	arrived := time.Now()
	if s, ok := w.server.(*scheduled); ok {
		s.serve(acceptWork)
	}
	leave, ok := w.limiter.enter(critical)
	if !ok {
		w.record(refused, critical)
		return
	}
	w.serve(work, critical, arrived, leave)
}

func (w *world) serve(work time.Duration, critical bool, arrived time.Time, leave func()) {
	if w.hangs() {
		<-w.ended
		leave()
		return
	}
	served := w.server.serve(work)
	leave()
	if latency := time.Since(arrived); served && latency <= patience {
		w.record(latency, critical)
		return
	}
	w.record(gaveUp, critical)
}

// hangs reports whether a call that was admitted never ends.
func (w *world) hangs() bool {
	if w.load.hang == 0 || time.Since(w.begin) < w.load.hangAt {
		return false
	}
	n := w.hung.Add(1)
	if n <= w.load.working {
		w.calls.Go(func() { w.server.serve(24 * time.Hour) })
	}
	return n <= w.load.hang
}

func (w *world) record(latency time.Duration, critical bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, outcome{time.Since(w.begin), latency, critical})
}

// A summary is about the calls that ended in an interval.
type summary struct {
	good    float64 // a second, of those within ten times the mean of the work
	p99     time.Duration
	refused float64 // share
}

// add adds one of so many runs, of which this is the mean.
func (s *summary) add(one summary, runs int) {
	s.good += one.good / float64(runs)
	s.p99 += one.p99 / time.Duration(runs)
	s.refused += one.refused / float64(runs)
}

func (w *world) summary(from, until, good time.Duration, criticalOnly bool) (s summary) {
	var latencies []time.Duration
	calls := 0.0
	for _, o := range w.log {
		if o.at < from || o.at >= until || criticalOnly && !o.critical {
			continue
		}
		calls++
		switch {
		case o.latency == refused:
			s.refused++
		case o.latency >= 0:
			latencies = append(latencies, o.latency)
			if o.latency <= good {
				s.good++
			}
		}
	}
	s.good /= (until - from).Seconds()
	s.refused /= max(calls, 1)
	slices.Sort(latencies)
	if n := len(latencies); n > 0 {
		s.p99 = latencies[n*99/100]
	}
	return s
}
