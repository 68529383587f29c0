package main

import (
	"sync"
	"time"
)

// A runner calls a limiter: its walks, one goroutine each, and its measurements, round
// by round.
type runner struct {
	name    string
	limiter limiter
	walks   []*walk
	least   int // the fewest calls a round, so that enough keys are used
	calls   int // calls a round
	nanos   []float64
	counts  counts
}

func newRunner(name string, l limiter, r ring, goroutines int) *runner {
	return &runner{name: name, limiter: l, walks: r.walks(goroutines)}
}

// runRounds calibrates every runner to rounds of about the given length and then runs
// them in turns: first, second, third, first, second, third…
func runRounds(rounds int, length time.Duration, runners ...*runner) {
	for _, e := range runners {
		e.calibrate(length)
		e.nanos = make([]float64, 0, rounds)
	}
	for range rounds {
		for _, e := range runners {
			took := e.runCalls(e.calls)
			e.nanos = append(e.nanos, float64(took)/float64(e.calls))
		}
	}
}

func (e *runner) calibrate(length time.Duration) {
	calls := 64
	for {
		took := e.runCalls(calls)
		if took >= length/4 {
			calls = max(int(int64(calls)*int64(length)/int64(took)), e.least)
			e.calls = (calls/len(e.walks) + 1) * len(e.walks)
			return
		}
		calls *= 4
	}
}

// runCalls makes that many calls, split among the walks, and returns the time taken.
func (e *runner) runCalls(calls int) time.Duration {
	if len(e.walks) == 1 {
		return e.runSerial(calls)
	}
	each := calls / len(e.walks)
	all := make([]counts, len(e.walks))
	start := make(chan struct{})
	var running sync.WaitGroup
	for i, w := range e.walks {
		running.Go(func() {
			<-start
			all[i] = e.limiter.run(w, each)
		})
	}
	begin := time.Now()
	close(start)
	running.Wait()
	took := time.Since(begin)
	for i, t := range all {
		e.walks[i].steps += t.calls
		e.counts.add(t)
	}
	return took
}

func (e *runner) runSerial(calls int) time.Duration {
	begin := time.Now()
	t := e.limiter.run(e.walks[0], calls)
	took := time.Since(begin)
	e.walks[0].steps += t.calls
	e.counts.add(t)
	return took
}
