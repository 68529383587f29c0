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

// A load takes one unit at a time of a few keys, moves on to new ones when they are
// used up, and returns to used-up ones at times. One call in eight is for the key that
// refills.
type load struct {
	run       *run
	nodes     []penstock.Store
	drain     func(penstock.Request) (penstock.Decision, error) // takes from the store without wrappers
	close     func()
	pause     time.Duration // between calls; local decisions without one would fill the memory with history
	stop      chan struct{}
	ended     sync.Once
	wg        sync.WaitGroup
	firstKey  int64
	newestKey atomic.Int64

	finished bool
}

const (
	// callers is the number of concurrent callers.
	callers = 16

	// shortPause is the pause of a load on a store that decides locally.
	shortPause = 100 * time.Microsecond
)

func (l *load) start() {
	l.stop = make(chan struct{})
	l.newestKey.Store(l.firstKey)
	for i := range callers {
		l.wg.Go(func() { l.call(i % len(l.nodes)) })
	}
	l.run.Cleanup(l.end) // also if the run fails early
}

// end stops the load, once.
func (l *load) end() {
	l.ended.Do(func() { close(l.stop) })
	l.wg.Wait()
}

// call makes calls until the load stops.
func (l *load) call(node int) {
	for {
		select {
		case <-l.stop:
			return
		default:
		}
		newest := l.newestKey.Load()
		key := int(max(newest-rand.Int64N(8), l.firstKey))
		switch rand.IntN(16) {
		case 0, 1:
			if !l.run.noRefill {
				key = refillingKey
			}
		case 2:
			key = int(l.firstKey + rand.Int64N(newest-l.firstKey+1)) // one that was used up before
		}
		if e := l.take(node, key); e.denied() && key != refillingKey {
			l.newestKey.CompareAndSwap(newest, newest+1)
		}
		time.Sleep(l.pause)
	}
}

// take takes one unit.
func (l *load) take(node, key int) event {
	r := l.run.request(key, 1)
	if rand.IntN(8) == 0 && key != refillingKey && l.run.layers != viaDaemon && l.run.layers != viaDaemons {
		r.ID = strconv.FormatUint(rand.Uint64(), 36)
	}
	return l.run.history.record(node%l.run.nodes, l.historyKey(node, key), 1, func() (penstock.Decision, error) {
		return l.nodes[node].Take(context.Background(), r)
	})
}

// keysPerAPI separates the keys of APIs that share none.
const keysPerAPI = 1 << 20

// historyKey returns the key to record: an API with prefixed keys has its own.
func (l *load) historyKey(node, key int) int {
	if _, ok := l.nodes[node].(prefixedKeys); ok {
		return key + (node+1)*keysPerAPI
	}
	return key
}

// awaitCalls waits until the load has made some more calls.
func (l *load) awaitCalls(times int) { l.await("the load makes calls", &l.run.history.calls, times) }

// awaitAnswers waits until the store has answered some more calls.
func (l *load) awaitAnswers(times int) { l.await("the store answers", &l.run.history.answered, times) }

// awaitMisses waits until some more calls have missed the store.
func (l *load) awaitMisses(times int) { l.await("calls miss the store", &l.run.history.missed, times) }

func (l *load) await(what string, counter *int, times int) {
	l.run.Helper()
	at := l.run.history.count(counter)
	for until := at + times; at < until; at = l.run.history.count(counter) { // the deadline is for one call, as machines differ
		redistest.WaitFor(l.run, what, func() bool { return l.run.history.count(counter) > at })
	}
}

// finish stops the load and takes what is left of its keys, so that all that could be
// admitted was.
func (l *load) finish() {
	if l.finished {
		return
	}
	l.finished = true
	l.end()
	l.close()
	if l.run.layers == viaDaemon || l.run.layers == viaDaemons {
		l.drainByCalls()
		return
	}
	for key := range l.run.history.granted() {
		if key == refillingKey {
			continue
		}
		r := l.run.request(key, 10*capacity(l.run.limitOf(key)))
		r.AtMost = true
		redistest.WaitFor(l.run, "what is left can be taken", func() bool {
			start := time.Since(l.run.history.start)
			d, err := l.drain(r)
			if err != nil {
				l.run.Logf("taking what is left of key %d: %v", key, err)
				return false
			}
			l.run.history.add(event{begin: start, end: time.Since(l.run.history.start), key: key, cost: r.Cost, decision: d})
			return true
		})
	}
}

// drainByCalls takes one unit after the other of each key, because not every API can
// take all that is left at once.
func (l *load) drainByCalls() {
	for key := range l.run.history.granted() {
		node := max(key/keysPerAPI-1, 0)
		redistest.WaitFor(l.run, "what is left can be taken", func() bool {
			e := l.take(node, key%keysPerAPI)
			for e.err == nil && e.decision.Allowed {
				e = l.take(node, key%keysPerAPI)
			}
			return e.denied()
		})
	}
}
