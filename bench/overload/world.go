package main

import (
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/simulation/simserver"
)

// patience is after how long clients give up waiting.
const patience = time.Second

const mean = 10 * time.Millisecond // of the work of a call

var (
	exponential = simserver.Exponential(float64(mean))

	// idleP99 is the 99th percentile of the work.
	idleP99 = p99OfIdle(mean)
)

func p99OfIdle(mean time.Duration) time.Duration { return time.Duration(float64(mean) * math.Log(100)) }

func overloaded(capacity, times float64, from time.Duration) simserver.Rate {
	return simserver.Overloaded(capacity, times, int64(from))
}

// A newServer makes a simulated server.
type newServer func(simserver.Timeline) simserver.Server

func newPool(workers int) newServer {
	return func(t simserver.Timeline) simserver.Server {
		return &simserver.Pool{Timeline: t, Workers: workers, Patience: int64(patience)}
	}
}

func newShared(processors int) newServer {
	return func(t simserver.Timeline) simserver.Server {
		return &simserver.Shared{Timeline: t, Processors: float64(processors)}
	}
}

func newProcessor(t simserver.Timeline) simserver.Server { return &simserver.Processor{Timeline: t} }

func newRemote(t simserver.Timeline) simserver.Server { return simserver.Remote{Timeline: t} }

// A load is what clients send.
type load struct {
	rate     simserver.Rate
	work     simserver.Work
	critical func(*rand.Rand) bool

	// From hangAt on, so many of the calls that are admitted never end. The first of
	// them occupy a worker.
	hangAt        time.Duration
	hang, working int64

	retries int // of a call that was refused, at once
}

// Clients send calls at a rate that does not depend on the answers.
type clients struct {
	begin    time.Time
	patience time.Duration // after how long they give up; 0 is the usual
	calls    sync.WaitGroup
	mu       sync.Mutex
	log      []outcome
}

type outcome struct {
	at, latency time.Duration // the latency is refused or gaveUp otherwise
	critical    bool
}

const refused, gaveUp = time.Duration(-1), time.Duration(-2)

// send sends calls at random times for as long as that.
func (c *clients) send(rate simserver.Rate, r *rand.Rand, length time.Duration, call func(due time.Duration)) {
	c.begin = time.Now()
	for due := time.Duration(0); ; {
		due += time.Duration(r.ExpFloat64() / rate(int64(due)) * 1e9)
		if due > length {
			return
		}
		time.Sleep(time.Until(c.begin.Add(due)))
		call(due)
	}
}

// record notes the end of a call. An answer after the client has given up is none.
func (c *clients) record(latency time.Duration, critical bool) {
	if latency > max(c.patience, patience) {
		latency = gaveUp
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = append(c.log, outcome{time.Since(c.begin), latency, critical})
}

func newRandom(seed int) *rand.Rand { return rand.New(rand.NewPCG(uint64(seed), 1)) } //nolint:gosec // repeatable on purpose

// A world is clients, a limiter and a server, in a bubble.
type world struct {
	clients
	limiters []*limiter // calls take turns
	server   simserver.Server
	load     load
	cpuIdle  bool // the workers wait for something else
	ended    chan struct{}
	hung     atomic.Int64
	working  sync.Mutex // is held while the server changes
}

// Now and After implement [simserver.Timeline].
func (w *world) Now() int64 { return int64(time.Since(w.begin)) }

func (w *world) After(d int64, do func()) {
	time.AfterFunc(time.Duration(d), func() {
		w.working.Lock()
		defer w.working.Unlock()
		do()
	})
}

// run sends calls for as long as that.
func (w *world) run(newServer newServer, length time.Duration, seed int) {
	w.server, w.ended = newServer(w), make(chan struct{})
	r := newRandom(seed)
	w.calls.Go(w.tellCPU)
	processor, waits := w.server.(*simserver.Processor)
	w.send(w.load.rate, r, length, func(due time.Duration) {
		critical := w.load.critical != nil && w.load.critical(r)
		work, arrived := w.load.work(r, int64(due)), time.Now()
		limiter := w.limiters[r.IntN(len(w.limiters))]
		if !waits && !limiter.blocks {
			w.enter(limiter, work, critical, arrived, w.calls.Go)
			return
		}
		w.calls.Go(func() {
			if waits {
				w.await(processor.Accept)
			}
			w.enter(limiter, work, critical, arrived, func(serve func()) { serve() })
		})
	})
	close(w.ended)
	w.calls.Wait()
}

// await returns when the server has done something.
func (w *world) await(start func(done func())) {
	done := make(chan struct{})
	w.working.Lock()
	start(func() { close(done) })
	w.working.Unlock()
	<-done
}

// tellCPU tells the limiter how busy the workers are.
func (w *world) tellCPU() {
	for tick := 0; ; tick++ {
		select {
		case <-w.ended:
			return
		case <-time.After(250 * time.Millisecond):
		}
		if tell := w.limiters[0].cpu; tell != nil && !w.cpuIdle {
			w.working.Lock()
			busy := w.server.Busy()
			w.working.Unlock()
			tell(tick, busy)
		}
	}
}

// enter asks the limiter, again if clients retry. A call that is admitted is served as run says.
func (w *world) enter(limiter *limiter, work int64, critical bool, arrived time.Time, run func(serve func())) {
	leave, ok := limiter.enter(critical)
	for retry := 0; !ok && retry < w.load.retries; retry++ {
		leave, ok = limiter.enter(critical)
	}
	if !ok {
		w.record(refused, critical)
		return
	}
	run(func() {
		defer leave()
		if w.hangs() {
			<-w.ended
			return
		}
		w.await(func(done func()) { w.server.Serve(work, done) })
		w.record(time.Since(arrived), critical)
	})
}

// hangs reports whether a call that was admitted never ends.
func (w *world) hangs() bool {
	if w.load.hang == 0 || time.Since(w.begin) < w.load.hangAt {
		return false
	}
	n := w.hung.Add(1)
	if n <= w.load.working {
		w.calls.Go(func() { w.await(func(done func()) { w.server.Serve(int64(24*time.Hour), done) }) })
	}
	return n <= w.load.hang
}

// A summary is about the calls that ended in an interval.
type summary struct {
	good    float64 // a second, of those within ten times the mean of the work
	p99     time.Duration
	refused float64 // share
	share   float64 // of the calls that ended in time
}

// add adds one of so many runs, of which this is the mean.
func (s *summary) add(one summary, runs int) {
	s.good += one.good / float64(runs)
	s.p99 += one.p99 / time.Duration(runs)
	s.refused += one.refused / float64(runs)
	s.share += one.share / float64(runs)
}

func (c *clients) summary(from, until, good time.Duration, criticalOnly bool) (s summary) {
	var latencies []time.Duration
	calls := 0.0
	for _, o := range c.log {
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
	s.share = s.good / max(calls, 1)
	s.good /= (until - from).Seconds()
	s.refused /= max(calls, 1)
	s.p99 = harness.Quantile(latencies, 0.99)
	return s
}
