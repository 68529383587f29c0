package redisstore

import (
	"sync"
	"sync/atomic"
	"time"
)

// unansweredCalls counts the calls that have ended without an answer. They stay in the queue of
// their connection until it is closed, and rueidis ignores the context of a call while its queue is
// full. The inflightLimiter does not prevent that if the server has several connections, or is a
// Cluster: an answer on one connection frees the slots of calls on another that hangs.
type unansweredCalls struct {
	room  int           // in a queue, beside Options.MaxCalls
	span  time.Duration // within which a silent connection is closed
	start time.Time

	fullUntil atomic.Int64 // nanoseconds since start; 0 if no queue was ever full

	mu     sync.Mutex
	began  time.Duration // of the current span, since start
	counts [2]int        // of the current span and the one before
}

// newUnansweredCalls returns a counter for queues of that size.
func newUnansweredCalls(queue int, o Options) *unansweredCalls {
	return &unansweredCalls{room: queue - o.MaxCalls, span: maxSilence(o), start: time.Now()}
}

// maxSilence is within which time a silent connection is closed: after two checks and the wait for
// a PING.
func maxSilence(o Options) time.Duration { return 3 * o.connTimeout }

// add counts a call.
func (u *unansweredCalls) add() {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Since(u.start)
	switch past := now - u.began; {
	case past >= 2*u.span:
		u.began, u.counts = now, [2]int{}
	case past >= u.span:
		u.began, u.counts = u.began+u.span, [2]int{0, u.counts[0]}
	}
	if u.counts[0]++; u.counts[0]+u.counts[1]+spareRoom > u.room {
		u.fullUntil.Store(int64(now + u.span))
	}
}

// spareRoom is for the calls that have no slot: probes, and what rueidis sends by itself.
const spareRoom = 64

// mayFillQueue reports whether the queue of a connection may be full.
func (u *unansweredCalls) mayFillQueue() bool {
	until := u.fullUntil.Load()
	return until != 0 && int64(time.Since(u.start)) < until
}
