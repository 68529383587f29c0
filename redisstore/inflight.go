package redisstore

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// An inflightLimiter bounds the calls in flight. A call that is abandoned at its
// deadline keeps its slot: its command still waits in the queue of the connection,
// and a full queue would block callers beyond their deadlines. The slot becomes free
// when Redis answers any call, or when the silent connection must have been closed.
// While all slots are taken, a call without a slot probes from time to time whether
// Redis answers again.
type inflightLimiter struct {
	slots      chan struct{}
	batches    chan struct{} // parts of batches
	turn       chan struct{} // of the batch that takes its parts
	maxSilence time.Duration // within which a silent connection is closed
	mu         sync.Mutex
	abandoned  atomic.Int64 // changed under mu
	releases   int          // under mu: how often the slots of all abandoned calls were freed
	start      time.Time
	lastProbe  atomic.Int64 // nanoseconds since start
}

// probeGap is the time between two probes.
const probeGap = 100 * time.Millisecond

var errTooManyCalls = errors.New("too many calls in flight (MaxCalls)")

func newInflightLimiter(slots int, maxSilence time.Duration) *inflightLimiter {
	return &inflightLimiter{
		slots: make(chan struct{}, slots), batches: make(chan struct{}, max(slots/maxBatch, 1)), turn: make(chan struct{}, 1),
		maxSilence: maxSilence, start: time.Now(),
	}
}

// acquire waits for a slot. It reports whether the call holds
// one: a probe does not. A caller that has left gets none, so that it is not charged.
func (l *inflightLimiter) acquire(d *deadline) (held bool, err error) {
	if err = d.ended(); err != nil {
		return false, err
	}
	select {
	case l.slots <- struct{}{}:
		return true, nil
	default:
	}
	if l.mayProbe() {
		return false, nil
	}
	if err = l.wait(d, l.slots); err != nil {
		return false, err
	}
	d.endWait()
	return true, nil
}

// batchParts is how many parts a full batch has; a small one has fewer. Redis carries out what it has read of all
// connections before it sends an answer, so what is in flight must take much less than a timeout: of 2048 calls
// four full batches, or 32 small ones.
const batchParts = 8

// admitBatch waits for the parts of a batch, which needs the slot of a call as well, and returns how many these are.
func (l *inflightLimiter) admitBatch(d *deadline, weight, most int) (parts int, err error) {
	if err = l.wait(d, l.turn); err != nil {
		return 0, err
	}
	defer func() { <-l.turn }()
	for need := min((batchParts*weight+most-1)/most, cap(l.batches)); parts < need; parts++ {
		if err = l.wait(d, l.batches); err != nil {
			l.endBatch(parts)
			return 0, err
		}
	}
	d.endWait()
	return parts, nil
}

// endBatch frees the parts of a batch.
func (l *inflightLimiter) endBatch(parts int) {
	for range parts {
		<-l.batches
	}
}

// wait waits for a slot if there is none, until the deadline or longer: see [deadline.expire].
func (l *inflightLimiter) wait(d *deadline, slots chan struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	default:
	}
	d.waitIn(l)
	select {
	case slots <- struct{}{}:
		if d.ended() == nil {
			return nil
		}
		<-slots // both had happened: the caller has left, and is not charged
	case <-d.Done():
	}
	return fmt.Errorf("not sent: %w: %w", errTooManyCalls, d.ended())
}

func (l *inflightLimiter) mayProbe() bool {
	last, now := l.lastProbe.Load(), int64(time.Since(l.start))
	return l.abandoned.Load() > 0 && now-last > int64(probeGap) && l.lastProbe.CompareAndSwap(last, now)
}

// release frees the slot of a call that has ended.
func (l *inflightLimiter) release(held bool) {
	if held {
		<-l.slots
	}
}

// releaseAbandoned frees the slots of all abandoned calls, because Redis answers.
func (l *inflightLimiter) releaseAbandoned() {
	if l.abandoned.Load() == 0 {
		return
	}
	l.mu.Lock()
	n := l.abandoned.Swap(0)
	l.releases++
	l.mu.Unlock()
	for range n {
		<-l.slots
	}
}

// abandon keeps the slot of a call that has reached its deadline.
func (l *inflightLimiter) abandon(held bool) {
	if !held {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.abandoned.Add(1)
	releases := l.releases
	time.AfterFunc(l.maxSilence, func() { l.expireAbandoned(releases) })
}

// expireAbandoned frees the slot of a call that was abandoned after so many releases, unless
// another release has.
func (l *inflightLimiter) expireAbandoned(releases int) {
	l.mu.Lock()
	expired := l.releases == releases
	if expired {
		l.abandoned.Add(-1)
	}
	l.mu.Unlock()
	if expired {
		<-l.slots
	}
}
