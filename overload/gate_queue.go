package overload

import (
	"container/list"
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
}

// A rankQueue is the calls of one priority. While it is standing, waiting calls
// are always there, and waiting longer would admit no more of them.
type rankQueue struct {
	calls    list.List // of *waiter, in order of arrival
	standing bool
	promptAt int64 // when a call was last admitted soon, or began to wait alone
	askedAt  int64 // when a call last found the gate full
}

// A waiter is a call that waits. The queue's mutex guards its place.
type waiter struct {
	rank    int
	place   *list.Element // among the calls of its rank
	since   int64
	granted int64         // when it was admitted
	ready   chan struct{} // receives when it was admitted
}

// maxWaiting bounds the waiting calls.
const maxWaiting = 10_000

// standingShare is the share of MaxWait that a call waits in a standing queue.
const standingShare = 20

// criticalPatience is how many times longer critical calls may wait without pause until that counts as standing.
const criticalPatience = 10

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
		return Pass{g, now}, nil
	}
	look := hungAfter
	if g.fixed {
		look = wait
	}
	timer := time.NewTimer(time.Duration(min(wait, look)))
	defer timer.Stop()
	for {
		select {
		case <-w.ready:
			return Pass{g, w.granted}, nil
		case <-timer.C:
			if wait -= look; wait <= 0 {
				return g.giveUp(w, p)
			}
			g.check(g.clock.Now()) // or else nobody looks for calls that hang while no other comes
			timer.Reset(time.Duration(min(wait, look)))
		case <-ctx.Done():
			g.cancel(w)
			return Pass{}, ctx.Err()
		}
	}
}

// giveUp ends the wait of a call whose time is over.
func (g *Gate) giveUp(w *waiter, p Priority) (Pass, error) {
	if g.queue.remove(w, &g.word) {
		g.meter.refused.Add(1)
		return Pass{}, g.full(p)
	}
	return Pass{g, w.granted}, nil
}

// cancel ends the wait of a call whose context has ended.
func (g *Gate) cancel(w *waiter) {
	if !g.queue.remove(w, &g.word) {
		Pass{g, w.granted}.Leave(Canceled)
	}
}

func (g *Gate) full(p Priority) *FullError {
	return &FullError{Priority: p, Limit: limitOf(g.word.Load()), RetryAfter: g.meter.retryAfter()}
}

// ask admits a call (no waiter), lets it wait (a waiter, and for how long), or
// refuses it (no time to wait).
func (g *Gate) ask(now int64, p Priority) (w *waiter, wait int64) {
	g.check(now)
	q, rank := &g.queue, p.rank()
	q.mu.Lock()
	defer q.mu.Unlock()
	wait = g.maxWaitOf(rank, now)
	room := g.turnsWithin(wait, q.ranks[rank].standing)
	if q.ranks[rank].standing {
		wait, room = g.roomAtFewWorkers(wait, room)
	}
	for {
		word := g.word.Load()
		switch ahead := q.ahead(rank); {
		case ahead == 0 && !isFull(word):
			if g.admit(word, now) {
				return nil, max(wait, 1)
			}
		case wait == 0 || ahead > 0 && ahead+1 > room || ahead >= maxWaiting:
			g.meter.refused.Add(1)
			return nil, 0
		case g.word.CompareAndSwap(word, word|waitingFlag):
			g.meter.waited.Add(1)
			return q.add(rank, now), wait
		}
	}
}

// roomAtFewWorkers lets more calls wait in a standing queue if the limit is low: few workers are idle whenever
// some calls end soon. With ρ calls for each that the server can serve, and K in it or waiting, one worker is idle
// for (ρ−1)/(ρᴷ⁺¹−1) of the time, which is to be one in twenty, and less if all calls take equally long.
func (g *Gate) roomAtFewWorkers(wait int64, room int) (int64, int) {
	m, limit := &g.meter, limitOf(g.word.Load())
	served := max(1-float64(m.share.Load())/1e6, 0.01)
	if limit > mostFew || served > 1-idleShare { // or the overload has just begun
		return wait, room
	}
	load := 1 / served
	queue := math.Log(1+(load-1)/idleShare)/math.Log(load) - 1 - surplusShare*math.Sqrt(float64(limit))
	more := int(min(queue, 3*float64(limit))*float64(m.variety.Load())/1e6 + 0.5)
	if more <= room {
		return wait, room
	}
	turn := m.mean.Load() / int64(max(limit, 1))
	return min(max(wait, 2*int64(more+1)*turn), g.maxWait), more
}

const (
	idleShare = 0.05
	mostFew   = 8
)

// turnsWithin is how many waiting calls may get their turn within a time. In a standing queue,
// where that time is short, they are those of one in twenty such times: if latencies vary, several
// calls end at once now and then, and no worker should wait for a call then. Elsewhere they are
// those of the mean, because more would wait for long in vain.
func (g *Gate) turnsWithin(wait int64, standing bool) int {
	mean := g.meter.mean.Load()
	if mean == 0 {
		return maxWaiting
	}
	turns := float64(wait) * float64(limitOf(g.word.Load())) / float64(mean)
	if standing {
		turns += oneInTwenty * float64(g.meter.variety.Load()) / 1e6 * math.Sqrt(turns)
	}
	return int(min(turns, maxWaiting))
}

// oneInTwenty is the number of standard deviations that one in twenty exceeds.
const oneInTwenty = 1.65

// maxWaitOf returns how long a call of a rank may wait. In a standing queue, it is
// also no more than half of what the call takes: longer waits only add latency. Elsewhere, what
// goroutines wait for a processor has passed before a call is seen: it counts once for normal calls,
// and twice for sheddable ones.
func (g *Gate) maxWaitOf(rank int, now int64) int64 {
	r := &g.queue.ranks[rank]
	if now-r.askedAt > g.maxWait {
		r.promptAt, r.standing = now, false
	}
	r.askedAt = now
	waiting := now - r.promptAt
	if rank == 0 { // a burst of critical calls passes while worse ones are refused
		waiting /= criticalPatience
	}
	if waiting > g.maxWait {
		r.standing = true
	}
	switch {
	case g.maxWait == 0:
		return 0
	case r.standing:
		return g.shortWait()
	}
	return max(g.maxWait-int64(rank)*g.meter.delay.Load(), g.shortWait())
}

func (g *Gate) shortWait() int64 {
	short := g.maxWait / standingShare
	if mean := g.meter.mean.Load(); mean > 0 {
		short = min(short, mean/2)
	}
	return max(short, 1)
}

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
		if g.admit(word, now) {
			g.grant(w, now)
		}
	}
}

func (g *Gate) grant(w *waiter, now int64) {
	r := &g.queue.ranks[w.rank]
	r.calls.Remove(w.place)
	if now-w.since <= g.shortWait() {
		r.promptAt = now
	}
	for i := range w.rank { // no better call waits, so those get their turns soon
		g.queue.ranks[i].promptAt, g.queue.ranks[i].standing = now, false
	}
	w.granted = now
	w.ready <- struct{}{}
}

// ahead is how many waiting calls go before a new one of a rank.
func (q *waitQueue) ahead(rank int) (n int) {
	for i := range rank + 1 {
		n += q.ranks[i].calls.Len()
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
		if first := q.ranks[i].calls.Front(); first != nil {
			return first.Value.(*waiter)
		}
	}
	return nil
}

func (q *waitQueue) add(rank int, now int64) *waiter {
	w := &waiter{rank: rank, since: now, ready: make(chan struct{}, 1)}
	w.place = q.ranks[rank].calls.PushBack(w)
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
	q.ranks[w.rank].calls.Remove(w.place)
	if q.head() == nil {
		word.And(^uint64(waitingFlag))
	}
	return true
}
