package faults

import (
	"context"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
)

// A load asks for one unit at a time of a few keys, goes on to others when they are
// used up, and comes back to those now and then. One call in eight is about the key
// of which units come back all the time.
type load struct {
	run    *run
	nodes  []penstock.Store
	drain  func(penstock.Request) (penstock.Decision, error) // by the store itself
	close  func()
	pace   time.Duration // between calls, or else decisions without a trip would fill the memory with history
	stop   chan struct{}
	ended  sync.Once
	wg     sync.WaitGroup
	first  int64        // key
	newest atomic.Int64 // key

	finished bool
}

const (
	// members is how many ask at once.
	members = 16

	// brisk is the pace of a load that is not to wait for trips.
	brisk = 100 * time.Microsecond
)

func (l *load) start() {
	l.stop = make(chan struct{})
	l.newest.Store(l.first)
	for i := range members {
		l.wg.Go(func() { l.ask(i % len(l.nodes)) })
	}
	l.run.Cleanup(l.end) // also if the run fails before it ends the load
}

// end ends the load, once.
func (l *load) end() {
	l.ended.Do(func() { close(l.stop) })
	l.wg.Wait()
}

// ask asks until the load is to stop.
func (l *load) ask(node int) {
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		newest := l.newest.Load()
		key := int(max(newest-rand.Int64N(8), l.first))
		switch rand.IntN(16) {
		case 0, 1:
			if !l.run.still {
				key = flow
			}
		case 2:
			key = int(l.first + rand.Int64N(newest-l.first+1)) // one that was used up long ago
		}
		if e := l.take(node, key); e.denied() && key != flow {
			l.newest.CompareAndSwap(newest, newest+1)
		}
		time.Sleep(l.pace)
	}
}

// take asks for one unit.
func (l *load) take(node, key int) event {
	r := l.run.request(key, 1)
	if rand.IntN(8) == 0 && key != flow && l.run.layers != daemonic {
		r.ID = strconv.FormatUint(rand.Uint64(), 36)
	}
	return l.run.history.ask(node%l.run.nodes, l.apart(node, key), 1, func() (penstock.Decision, error) {
		return l.nodes[node].Take(context.Background(), r)
	})
}

// perDoor tells apart the keys of doors that share none.
const perDoor = 1 << 20

// apart returns a key as history knows it: those of a door that does not name the
// rule are others.
func (l *load) apart(node, key int) int {
	if _, ok := l.nodes[node].(apart); ok {
		return key + (node+1)*perDoor
	}
	return key
}

// asks waits until the load has asked some more.
func (l *load) asks(times int) { l.await("the load goes on", &l.run.history.asked, times) }

// answers waits until the store has answered some more of it.
func (l *load) answers(times int) { l.await("the store answers", &l.run.history.answered, times) }

// misses waits until some more calls have missed the store.
func (l *load) misses(times int) { l.await("callers notice", &l.run.history.missed, times) }

func (l *load) await(what string, counter *int, times int) {
	l.run.Helper()
	until := l.run.history.count(counter) + times
	redistest.WaitFor(l.run, what, func() bool { return l.run.history.count(counter) >= until })
}

// finish ends the load, and takes whatever is left of its keys, so that all that
// could be admitted was.
func (l *load) finish() {
	if l.finished {
		return
	}
	l.finished = true
	l.end()
	l.close()
	if l.run.layers == daemonic {
		l.exhaust()
		return
	}
	for key := range l.run.history.granted() {
		if key == flow {
			continue
		}
		r := l.run.request(key, 10*capacity(l.run.limitOf(key)))
		r.AtMost = true
		redistest.WaitFor(l.run, "what is left can be taken", func() bool {
			began := time.Since(l.run.history.began)
			d, err := l.drain(r)
			if err != nil {
				l.run.Logf("taking what is left of key %d: %v", key, err)
				return false
			}
			l.run.history.add(event{begin: began, end: time.Since(l.run.history.began), key: key, cost: r.Cost, decision: d})
			return true
		})
	}
}

// exhaust takes one unit after the other of each key, because not every door can
// take all that is left.
func (l *load) exhaust() {
	for key := range l.run.history.granted() {
		node := max(key/perDoor-1, 0)
		redistest.WaitFor(l.run, "what is left can be taken", func() bool {
			e := l.take(node, key%perDoor)
			for e.err == nil && e.decision.Allowed {
				e = l.take(node, key%perDoor)
			}
			return e.denied()
		})
	}
}
