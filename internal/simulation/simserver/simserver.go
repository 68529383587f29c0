// Package simserver simulates servers, and what clients send to them: workers with a queue,
// processors that calls share, one processor with a run queue, and latency alone. The tests of
// package overload run them by events, and bench/overload in the time of a testing/synctest bubble.
// All times and work are in nanoseconds.
package simserver

import (
	"container/heap"
	"math"
)

// A Timeline is the time in which a server works. It runs one function at a time.
type Timeline interface {
	Now() int64
	After(d int64, do func())
}

// A Server works on calls.
type Server interface {
	// Serve calls done when a call has got its work, which is time of one worker.
	Serve(work int64, done func())

	// Busy is the share of the workers that work.
	Busy() float64
}

// A Pool has workers, and a queue in order of arrival.
type Pool struct {
	Timeline
	Workers  int
	Patience int64 // after how long a call in the queue needs no work, because its client has given up; 0 for never

	busy  int
	queue []func()
}

// Serve implements [Server].
func (p *Pool) Serve(work int64, done func()) {
	arrived := p.Now()
	p.queue = append(p.queue, func() {
		if p.Patience > 0 && p.Now()-arrived > p.Patience {
			work = 0
		}
		p.After(work, func() {
			p.busy--
			p.next()
			done()
		})
	})
	p.next()
}

func (p *Pool) next() {
	for p.busy < p.Workers && len(p.queue) > 0 {
		start := p.queue[0]
		p.queue = p.queue[1:]
		p.busy++
		start()
	}
}

// Busy implements [Server].
func (p *Pool) Busy() float64 { return float64(p.busy) / float64(p.Workers) }

// A Shared server has processors that all calls share evenly. With contention, each call beyond
// them costs all of them some of their speed.
type Shared struct {
	Timeline
	Processors, Contention float64

	jobs    sharedJobs
	served  float64 // work that each call has got since the beginning
	at      int64
	version int
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

func (p *Shared) speed() float64 {
	n := float64(len(p.jobs))
	return min(1, p.Processors/max(n, 1)) / (1 + p.Contention*max(n-p.Processors, 0))
}

func (p *Shared) advance() {
	now := p.Now()
	p.served += float64(now-p.at) * p.speed()
	p.at = now
}

// Serve implements [Server].
func (p *Shared) Serve(work int64, done func()) {
	p.advance()
	heap.Push(&p.jobs, sharedJob{p.served + float64(work), done})
	p.schedule()
}

func (p *Shared) schedule() {
	p.version++
	if len(p.jobs) == 0 {
		return
	}
	version := p.version
	p.After(int64(math.Ceil((p.jobs[0].until-p.served)/p.speed())), func() {
		if version == p.version {
			p.finish()
		}
	})
}

// finish ends the calls that have got their work.
func (p *Shared) finish() {
	p.advance()
	var ended []func()
	for len(p.jobs) > 0 && p.jobs[0].until <= p.served+1 {
		ended = append(ended, heap.Pop(&p.jobs).(sharedJob).done)
	}
	p.schedule()
	for _, done := range ended {
		done()
	}
}

// Busy implements [Server].
func (p *Shared) Busy() float64 { return min(1, float64(len(p.jobs))/p.Processors) }

// Remote is latency without queueing.
type Remote struct{ Timeline }

// Serve implements [Server].
func (r Remote) Serve(work int64, done func()) { r.After(work, done) }

// Busy implements [Server]: the workers are elsewhere.
func (Remote) Busy() float64 { return 0 }
