package main

import (
	"sync"
	"time"
)

// An entrant is a limiter in a race: its walks, one goroutine each, and what
// was measured of it, round by round.
type entrant struct {
	name    string
	limiter limiter
	walks   []*walk
	least   int // the fewest calls a round, so that enough keys are touched
	calls   int // calls a round
	nanos   []float64
	tally   tally
}

func newEntrant(name string, l limiter, r ring, goroutines int) *entrant {
	return &entrant{name: name, limiter: l, walks: r.walks(goroutines)}
}

// race calibrates every entrant to rounds of about the given length and then
// lets them take turns: first, second, third, first, second, third…
func race(rounds int, length time.Duration, entrants ...*entrant) {
	for _, e := range entrants {
		e.calibrate(length)
		e.nanos = make([]float64, 0, rounds)
	}
	for range rounds {
		for _, e := range entrants {
			took := e.lap(e.calls)
			e.nanos = append(e.nanos, float64(took)/float64(e.calls))
		}
	}
}

func (e *entrant) calibrate(length time.Duration) {
	calls := 64
	for {
		took := e.lap(calls)
		if took >= length/4 {
			calls = max(int(int64(calls)*int64(length)/int64(took)), e.least)
			e.calls = (calls/len(e.walks) + 1) * len(e.walks)
			return
		}
		calls *= 4
	}
}

// lap makes that many calls, shared among the walks, and says how long it took.
func (e *entrant) lap(calls int) time.Duration {
	if len(e.walks) == 1 {
		return e.lapAlone(calls)
	}
	each := calls / len(e.walks)
	tallies := make([]tally, len(e.walks))
	start := make(chan struct{})
	var running sync.WaitGroup
	for i, w := range e.walks {
		running.Go(func() {
			<-start
			tallies[i] = e.limiter.run(w, each)
		})
	}
	begin := time.Now()
	close(start)
	running.Wait()
	took := time.Since(begin)
	for i, t := range tallies {
		e.walks[i].steps += t.calls
		e.tally.merge(t)
	}
	return took
}

func (e *entrant) lapAlone(calls int) time.Duration {
	begin := time.Now()
	t := e.limiter.run(e.walks[0], calls)
	took := time.Since(begin)
	e.walks[0].steps += t.calls
	e.tally.merge(t)
	return took
}
