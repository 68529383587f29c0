package penstock

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

// A permitRenewer renews the permits of one limiter, and ends the contexts of those that
// may be lost. It has one timer for all of them, and no goroutine while none is due.
type permitRenewer struct {
	mu    sync.Mutex
	heap  permitHeap
	timer *time.Timer
}

const (
	// Permits are renewed from a third of their period on, and if that fails again after
	// each twelfth.
	renewAfter = 3
	renewAgain = 12

	maxRenewals = 128 // in one call
)

// add adds a permit whose request was sent at that time.
func (n *permitRenewer) add(p *Permit, sent time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p.granted(sent)
	if !p.expiry.After(time.Now()) {
		n.lose(p) // the answer took longer than the period
		return
	}
	heap.Push(&n.heap, p)
	n.schedule()
}

// granted sets the times of a permit that was granted, or renewed, by a request that was
// sent at that time.
func (p *Permit) granted(sent time.Time) {
	p.expiry = sent.Add(p.limiter.period())
	p.renewAt = sent.Add(p.limiter.period() / renewAfter)
	p.due = p.renewAt
}

// remove removes a permit. It returns the renewal that may be in flight, and when the
// permit expires.
func (n *permitRenewer) remove(p *Permit) (renewal <-chan struct{}, expiry time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if p.index >= 0 {
		heap.Remove(&n.heap, p.index)
	}
	return p.renewal, p.expiry
}

// schedule sets the timer for the permit that is due first.
func (n *permitRenewer) schedule() {
	if len(n.heap) == 0 {
		return // a timer that is set finds nothing to do
	}
	wait := time.Until(n.heap[0].due)
	if n.timer == nil {
		n.timer = time.AfterFunc(wait, n.run)
		return
	}
	n.timer.Reset(wait)
}

// run renews the permits that are due. While the store answers, the timer may start it
// again for others.
func (n *permitRenewer) run() {
	due := n.collect()
	for len(due) > 0 {
		batch := due[:min(len(due), maxRenewals)]
		n.renew(batch)
		due = due[len(batch):]
	}
}

// collect returns the permits to renew, among them those that would be due soon, and ends
// the contexts of those that have expired.
func (n *permitRenewer) collect() (due []*Permit) {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer n.schedule()
	now := time.Now()
	for len(n.heap) > 0 {
		p := n.heap[0]
		switch soon := now.Add(p.limiter.period() / renewAgain); {
		case !p.expiry.After(now):
			n.lose(p)
		case p.ctx.Err() != nil:
			heap.Pop(&n.heap) // its holder has stopped without releasing it
		case p.due.After(now) && (len(due) == 0 || p.due.After(soon) || p.due.Equal(p.expiry)):
			return due
		default:
			due = append(due, p)
			p.due = p.expiry
			heap.Fix(&n.heap, p.index)
		}
	}
	return due
}

// lose ends the context of a permit that may be lost.
func (n *permitRenewer) lose(p *Permit) {
	if p.index >= 0 {
		heap.Remove(&n.heap, p.index)
	}
	p.cancel(ErrPermitLost)
}

// renew renews permits in one call. When the last of them expires, no answer is of use.
func (n *permitRenewer) renew(batch []*Permit) {
	batch, until, done := n.begin(batch)
	defer close(done)
	if len(batch) == 0 {
		return
	}
	rs, ds := make([]Request, len(batch)), make([]Decision, len(batch))
	for i, p := range batch {
		rs[i] = p.request
	}
	sent := time.Now()
	ctx, cancel := context.WithDeadline(context.WithoutCancel(batch[0].ctx), until)
	defer cancel()
	err := TakeEach(ctx, batch[0].limiter.store, rs, ds)
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, p := range batch {
		n.renewed(p, sent, ds[i].Granted > 0, err)
	}
	n.schedule()
}

// begin returns the permits that have not been released meanwhile, when the last of them
// expires, and the channel to close when their renewal has ended.
func (n *permitRenewer) begin(batch []*Permit) (held []*Permit, until time.Time, done chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	done = make(chan struct{})
	for _, p := range batch {
		if p.index < 0 {
			continue
		}
		p.renewal = done
		held = append(held, p)
		if p.expiry.After(until) {
			until = p.expiry
		}
	}
	return held, until, done
}

// renewed records the answer about a permit. Without an answer, the permit is renewed
// again while there is time. If it was denied, the store has lost it, and another may
// hold it.
func (n *permitRenewer) renewed(p *Permit, sent time.Time, granted bool, err error) {
	switch {
	case p.index < 0: // released meanwhile, or lost
		return
	case granted:
		p.granted(sent)
	case err == nil:
		n.lose(p)
		return
	default:
		p.renewAt = time.Now().Add(p.limiter.period() / renewAgain)
		if p.due = p.renewAt; p.expiry.Before(p.due) {
			p.due = p.expiry
		}
	}
	heap.Fix(&n.heap, p.index)
}

// A permitHeap has the permit that is due first at its root.
type permitHeap []*Permit

func (h permitHeap) Len() int           { return len(h) }
func (h permitHeap) Less(i, j int) bool { return h[i].due.Before(h[j].due) }

func (h permitHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *permitHeap) Push(x any) {
	p := x.(*Permit)
	p.index = len(*h)
	*h = append(*h, p)
}

func (h *permitHeap) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	p.index = -1
	return p
}
