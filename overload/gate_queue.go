package overload

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// A waitQueue is the calls that wait at a gate, by rank and then in order of
// arrival.
type waitQueue struct {
	mu    sync.Mutex
	ranks [ranks]rankQueue

	turn   float64 // the time between two turns, in nanoseconds, while calls wait
	turnAt int64   // when the last one was
}

// A rankQueue is the calls of one priority.
type rankQueue struct {
	first, last *waiter
	length      int
}

// A waiter is a call that waits. The queue's mutex guards its links.
type waiter struct {
	prev, next *waiter
	rank       int
	since      int64
	granted    int64         // when it was admitted
	others     int           // in flight then
	ready      chan struct{} // receives when it was admitted
}

// maxWaiting bounds the waiting calls.
const maxWaiting = 10_000

// enterFull is Enter where the gate is full, or calls are waiting.
func (g *Gate) enterFull(ctx context.Context, p Priority, now int64) (Pass, error) {
	if err := ctx.Err(); err != nil {
		return Pass{}, err
	}
	w, wait := g.ask(now, p)
	switch {
	case wait == 0:
		return Pass{}, g.full(p)
	case w == nil:
		return Pass{g, now, limitOf(g.word.Load()) - 1}, nil
	}
	timer := time.NewTimer(time.Duration(wait))
	defer timer.Stop()
	select {
	case <-w.ready:
		return Pass{g, w.granted, w.others}, nil
	case <-timer.C:
		return g.giveUp(w, p)
	case <-ctx.Done():
		g.cancel(w)
		return Pass{}, ctx.Err()
	}
}

// giveUp ends the wait of a call whose time is over.
func (g *Gate) giveUp(w *waiter, p Priority) (Pass, error) {
	if g.queue.remove(w, &g.word) {
		g.meter.refused.Add(1)
		return Pass{}, g.full(p)
	}
	return Pass{g, w.granted, w.others}, nil
}

// cancel ends the wait of a call whose context has ended.
func (g *Gate) cancel(w *waiter) {
	if !g.queue.remove(w, &g.word) {
		Pass{g, w.granted, w.others}.Leave(Canceled)
	}
}

func (g *Gate) full(p Priority) *FullError {
	return &FullError{Priority: p, Limit: limitOf(g.word.Load()), RetryAfter: g.meter.retryAfter()}
}

// ask admits a call (no waiter), lets it wait (a waiter, and for how long), or
// refuses it (no time to wait).
func (g *Gate) ask(now int64, p Priority) (w *waiter, wait int64) {
	if now >= g.meter.checkAt.Load() || g.hasEnough() {
		g.check(now)
	}
	q, rank := &g.queue, p.rank()
	q.mu.Lock()
	defer q.mu.Unlock()
	room := g.room(rank, now)
	for {
		word := g.word.Load()
		switch ahead := q.ahead(rank); {
		case ahead == 0 && !isFull(word):
			if g.word.CompareAndSwap(word, word+oneCall) {
				return nil, 1
			}
		case g.maxWait == 0 || ahead > 0 && float64(ahead+1) > room || ahead >= maxWaiting:
			g.meter.refused.Add(1)
			return nil, 0
		case g.word.CompareAndSwap(word, word|waitingFlag):
			g.meter.waited.Add(1)
			if q.head() == nil {
				q.turn, q.turnAt = g.usualTurn(), now
			}
			return q.add(rank, now), max(min(g.maxWait, 2*g.longestWait(rank)), 1)
		}
	}
}

// turnsWithin is how many calls get their turn within a time, at the pace of the last turns. Before
// calls wait, that pace is what the limit and their latency say.
func (g *Gate) turnsWithin(wait, now int64) float64 {
	q := &g.queue
	turn := g.usualTurn()
	if q.head() != nil {
		turn = max(q.turn, float64(now-q.turnAt)/lateTurns)
	}
	return min(float64(wait)/max(turn, 1), maxWaiting)
}

func (g *Gate) usualTurn() float64 {
	return float64(g.meter.mean.Load()) / float64(max(limitOf(g.word.Load()), 1))
}

// longestWait is how long calls of a rank may wait. Longer than some times what they take is of no
// use: callers that have a deadline hardly have more. Critical calls, and all of them while hardly any is
// refused, may wait twice as long. What goroutines wait for a processor has passed before a call is seen.
func (g *Gate) longestWait(rank int) int64 {
	if g.fixed {
		return g.maxWait
	}
	wait := int64(defaultGateWait)
	if base := g.meter.base.Load(); base > 0 {
		wait = waitingMeans * base
	}
	if rank == 0 || g.meter.share.Load() < littleShare {
		wait *= 2
	}
	return max(min(wait, g.maxWait)-int64(rank)*g.meter.delay.Load(), 0)
}

// room is how many calls may wait, with a new one of a rank: as many as get their turn in time, and
// no more than leave no worker idle at this load. With ρ calls for each that the server can serve, a
// queue of n is empty in one of ρⁿ cases, which is to be one in twenty; what the limit has beyond
// the number of workers is part of that queue. Longer ones only add latency. Critical calls go first, so
// they wait only for their own kind; some normal calls wait at any load, or else sheddable ones would get
// their turns.
func (g *Gate) room(rank int, now int64) float64 {
	turns := g.turnsWithin(g.longestWait(rank), now)
	if share := g.meter.share.Load(); rank > 0 && share >= littleShare {
		queue := emptyOnce / -math.Log(max(1-float64(share)/1e6, 0.01))
		queue -= float64(g.meter.surplus.Load()) / 1e6
		if rank == 1 {
			queue = max(queue, math.Sqrt(float64(limitOf(g.word.Load()))))
		}
		turns = min(turns, queue*g.meter.irregularity())
	}
	return turns
}

const (
	waitingMeans = 5
	littleShare  = 10_000 // of a million
	emptyOnce    = 3      // the logarithm of twenty
	lateTurns    = 3      // a turn is late after so many times what the last ones took
	turnWeight   = 1.0 / 8
)

// admitWaiting admits the calls that are first in the queue, as far as there is
// room.
func (g *Gate) admitWaiting(now int64) {
	q := &g.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		w := q.head()
		if w == nil {
			g.word.And(^uint64(waitingFlag))
			return
		}
		word := g.word.Load()
		if isFull(word) {
			return
		}
		if g.word.CompareAndSwap(word, word+oneCall) {
			w.others = inFlight(word)
			g.grant(w, now)
		}
	}
}

func (g *Gate) grant(w *waiter, now int64) {
	q := &g.queue
	q.ranks[w.rank].unlink(w)
	q.turn += turnWeight * (float64(now-q.turnAt) - q.turn)
	q.turnAt = now
	w.granted = now
	w.ready <- struct{}{}
}

// ahead is how many waiting calls go before a new one of a rank.
func (q *waitQueue) ahead(rank int) (n int) {
	for i := range rank + 1 {
		n += q.ranks[i].length
	}
	return n
}

func (q *waitQueue) waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ahead(ranks - 1)
}

// head returns the call whose turn is next, or nil.
func (q *waitQueue) head() *waiter {
	for i := range q.ranks {
		if w := q.ranks[i].first; w != nil {
			return w
		}
	}
	return nil
}

func (q *waitQueue) add(rank int, now int64) *waiter {
	r := &q.ranks[rank]
	w := &waiter{rank: rank, since: now, prev: r.last, ready: make(chan struct{}, 1)}
	if r.last == nil {
		r.first = w
	} else {
		r.last.next = w
	}
	r.last = w
	r.length++
	return w
}

// remove removes a call that no longer waits. It returns false if the call was
// admitted meanwhile.
func (q *waitQueue) remove(w *waiter, word *atomic.Uint64) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if w.granted != 0 {
		return false
	}
	q.ranks[w.rank].unlink(w)
	if q.head() == nil {
		word.And(^uint64(waitingFlag))
	}
	return true
}

func (r *rankQueue) unlink(w *waiter) {
	if w.prev == nil {
		r.first = w.next
	} else {
		w.prev.next = w.next
	}
	if w.next == nil {
		r.last = w.prev
	} else {
		w.next.prev = w.prev
	}
	r.length--
}
