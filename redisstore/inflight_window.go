package redisstore

import (
	"sync"
	"sync/atomic"
	"time"
)

// A callWindow is how many of the slots calls may hold now. Redis carries out what it has read of all connections before it
// sends an answer. What is in flight must therefore take much less than a timeout, or a crowd looks like an outage to those
// who wait for the first answer. How long a call takes is not known: the window begins small, grows with each answer
// while all of it is in use, and shrinks when Redis has been silent for longer than the base round-trip time and a few milliseconds.
//
// No call holds a slot outside the window.
type callWindow struct {
	slots chan struct{}
	owed  atomic.Int64 // slots outside the window that calls in flight still hold

	mu       sync.Mutex
	size     int
	silence  time.Duration // of Redis beyond baseRTT, from which the window shrinks; it grows up to half of it
	baseRTT  time.Duration // of a call that waits behind no others; 0 while it is not known
	slowSeen time.Time     // when an answer last came too late to grow: what was sent before it says nothing
}

const (
	minWindow  = 2 * fullBatch
	fullBatch  = 8                                  // slots of a batch that is full: it takes longer than a call, and not as long as its takes would
	rttAverage = 64                                 // how many answers baseRTT is averaged over if it rises
	rttProbes  = 1024                               // the same, if that is seen only because the smallest window is not small enough
	maxTurn    = 50 * time.Millisecond / turnsInOne // the longest silence
	turnsInOne = 8                                  // turns in a timeout
)

func newCallWindow(slots chan struct{}, timeout time.Duration) *callWindow {
	w := &callWindow{slots: slots, silence: min(timeout/turnsInOne, maxTurn), size: min(minWindow, cap(slots))}
	for range cap(slots) - w.size {
		slots <- struct{}{}
	}
	return w
}

// free frees a slot, or puts it outside the window.
func (w *callWindow) free() {
	for {
		owed := w.owed.Load()
		if owed == 0 {
			<-w.slots
			return
		}
		if w.owed.CompareAndSwap(owed, owed-1) {
			return
		}
	}
}

// note changes the window after an answer to a call that holds slots. Redis had been silent for a time, at most since the
// call was sent.
func (w *callWindow) note(sent, now time.Time, silent time.Duration, held int) {
	full := len(w.slots) == cap(w.slots)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.measureRTT(now.Sub(sent), full)
	queueing := silent - w.baseRTT
	switch sentLater := sent.After(w.slowSeen); {
	case 2*queueing > w.silence:
		if w.slowSeen = now; full && sentLater && queueing > w.silence {
			w.resize(int(int64(w.size) * int64(w.silence) / int64(queueing)))
		}
	case full && sentLater:
		w.resize(w.size + held)
	}
}

// measureRTT follows the base round-trip time: that of calls that wait behind no others in Redis, because the window is not full.
// A window that cannot be smaller may be so because the network has become slower.
func (w *callWindow) measureRTT(took time.Duration, full bool) {
	switch {
	case took < w.baseRTT || w.baseRTT == 0 && !full:
		w.baseRTT = took
	case !full:
		w.baseRTT += (took - w.baseRTT) / rttAverage
	case w.size <= minWindow:
		w.baseRTT += (took - w.baseRTT) / rttProbes
	}
}

// noteRTT notes how long a call took while there were no others.
func (w *callWindow) noteRTT(took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.measureRTT(max(took, 1), false)
}

// resize sets the size of the window. Slots that are held leave it when they become free.
func (w *callWindow) resize(size int) {
	size = min(max(size, minWindow), cap(w.slots))
	for ; w.size < size; w.size++ {
		w.free()
	}
	for ; w.size > size; w.size-- {
		select {
		case w.slots <- struct{}{}:
		default:
			w.owed.Add(1)
		}
	}
}
