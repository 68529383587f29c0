package redisstore

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// An inflightLimiter bounds the calls to a node that are in flight, to those in its window. A call that is abandoned at its
// deadline keeps its slot: its command still waits in the queue of the connection,
// and a full queue would block callers beyond their deadlines. The slot becomes free
// when Redis answers any call, or when the silent connection must have been closed.
// While all slots are taken, a call without a slot probes from time to time whether
// Redis answers again.
type inflightLimiter struct {
	node       int // its number
	slots      chan struct{}
	window     *callWindow
	turn       chan struct{} // of the batch that takes its slots
	maxSilence time.Duration // within which a silent connection is closed
	mu         sync.Mutex
	abandoned  atomic.Int64 // changed under mu
	releases   int          // under mu: how often the slots of all abandoned calls were freed
	start      time.Time
	lastProbe  atomic.Int64 // nanoseconds since start
}

// probeGap is the time between two probes.
const probeGap = 100 * time.Millisecond

var errTooManyCalls = errors.New("too many calls in flight")

// limiterOf returns the limiter of calls to a node.
func (s *Store) limiterOf(node int) *inflightLimiter {
	l := s.inflight[node].Load()
	if l == nil {
		made := newInflightLimiter(s.maxCalls, s.timeout, s.maxSilence)
		made.node = node
		s.inflight[node].CompareAndSwap(nil, made)
		l = s.inflight[node].Load()
	}
	return l
}

// A hold is the slots that a call holds of a limiter: none, if it is a probe.
type hold struct {
	limiter *inflightLimiter
	slots   int
}

// hold waits for a slot of each node, in an order that is the same for all calls.
func (s *Store) hold(d *deadline, nodes uint64, buf []hold) (holds []hold, err error) {
	for holds = buf; nodes != 0; nodes &= nodes - 1 {
		l := s.limiterOf(bits.TrailingZeros64(nodes))
		slots, err := l.acquire(d)
		if err != nil {
			for _, h := range holds {
				h.limiter.release(h.slots)
			}
			return nil, err
		}
		holds = append(holds, hold{l, slots})
	}
	return holds, nil
}

func newInflightLimiter(slots int, timeout, maxSilence time.Duration) *inflightLimiter {
	l := &inflightLimiter{
		slots: make(chan struct{}, slots), turn: make(chan struct{}, 1), maxSilence: maxSilence, start: time.Now(),
	}
	l.window = newCallWindow(l.slots, timeout)
	return l
}

// acquire waits for a slot, and returns how many the call holds: a probe holds none. A caller that has left gets
// none, so that it is not charged.
func (l *inflightLimiter) acquire(d *deadline) (held int, err error) {
	if err = d.ended(); err != nil {
		return 0, err
	}
	select {
	case l.slots <- struct{}{}:
		return 1, nil
	default:
	}
	if l.mayProbe() {
		return 0, nil
	}
	if err = l.wait(d, l.slots); err != nil {
		return 0, err
	}
	d.endWait()
	return 1, nil
}

// admitBatch waits for the slots of a batch, which are as many as it is full. It returns how many these are: a probe has none. As
// long as calls are abandoned, one will do: theirs may not become free before a batch is answered.
func (l *inflightLimiter) admitBatch(d *deadline, weight, most int) (held int, err error) {
	if err = l.wait(d, l.turn); err != nil {
		return 0, err
	}
	defer func() { <-l.turn }()
	if held, err = l.acquire(d); held == 0 {
		return 0, err
	}
	for need := min((fullBatch*weight+most-1)/most, cap(l.slots)); held < need && l.abandoned.Load() == 0; held++ {
		if err = l.wait(d, l.slots); err != nil {
			l.release(held)
			return 0, err
		}
	}
	d.endWait()
	return held, nil
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

// release frees the slots of a call that has ended.
func (l *inflightLimiter) release(held int) {
	for range held {
		l.window.free()
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
	l.release(int(n))
}

// abandon keeps one slot of a call that has reached its deadline.
func (l *inflightLimiter) abandon(held int) {
	if held == 0 {
		return
	}
	l.release(held - 1)
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
		l.release(1)
	}
}
