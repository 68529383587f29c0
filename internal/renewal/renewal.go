// Package renewal keeps what a store grants for a period at a time: it renews in the background what
// is held for longer, and tells the holder before another may get it.
package renewal

import (
	"container/heap"
	"context"
	"sync"
	"time"
)

const (
	// Items are renewed from a third of their period on, and if that fails again after
	// each twelfth.
	renewAfter = 3
	renewAgain = 12

	maxRenewals = 128 // in one call
)

// A Renewer renews items of one period, and ends the contexts of those that may be lost. It has
// one timer for all of them, and no goroutine while none is due.
type Renewer[T any] struct {
	period time.Duration
	lost   error
	renew  Func[T]

	mu    sync.Mutex
	heap  items[T]
	timer *time.Timer
}

// A Func renews values, and returns which of them were granted. The error is about those that
// were not: without one the store has denied them.
type Func[T any] func(ctx context.Context, values []T) (granted []bool, err error)

// New returns a renewer without items. The error is the cause that ends the context of a lost one.
func New[T any](period time.Duration, lost error, renew Func[T]) *Renewer[T] {
	return &Renewer[T]{period: period, lost: lost, renew: renew}
}

// An Item is a value while it is held.
type Item[T any] struct {
	Value  T
	ctx    context.Context
	cancel context.CancelCauseFunc

	// Under the renewer's lock:
	expiry  time.Time     // when the store may grant it to another holder
	due     time.Time     // when to renew it, or expiry while it is being renewed
	index   int           // in the renewer's heap; -1 if it is not there
	renewal chan struct{} // closed when the renewal in flight has ended; nil if there was none
}

// Context returns a context that ends when the item may be lost, and when it is ended. It is
// derived from the one that was passed to Hold, and ends one period after the last request
// that the store granted was sent.
func (i *Item[T]) Context() context.Context { return i.ctx }

// End ends the context of an item.
func (i *Item[T]) End() { i.cancel(nil) }

// Hold renews an item until it is dropped, or until ctx ends. It was granted by a request that
// was sent at that time, which is no later than the store's.
func (n *Renewer[T]) Hold(ctx context.Context, i *Item[T], sent time.Time) {
	i.ctx, i.cancel = context.WithCancelCause(ctx)
	i.index = -1
	n.mu.Lock()
	defer n.mu.Unlock()
	n.granted(i, sent)
	if !i.expiry.After(time.Now()) {
		n.lose(i) // the answer took longer than the period
		return
	}
	heap.Push(&n.heap, i)
	n.schedule()
}

// Drop ends the renewals of an item, and waits for one that is in flight: if that arrived after
// a release, it would take the item again. It returns when the item expires.
func (n *Renewer[T]) Drop(i *Item[T]) (expiry time.Time) {
	renewal, expiry := n.remove(i)
	if renewal != nil {
		<-renewal
	}
	return expiry
}

func (n *Renewer[T]) remove(i *Item[T]) (renewal <-chan struct{}, expiry time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if i.index >= 0 {
		heap.Remove(&n.heap, i.index)
	}
	return i.renewal, i.expiry
}

// granted sets the times of an item that was granted, or renewed, by a request that was
// sent at that time.
func (n *Renewer[T]) granted(i *Item[T], sent time.Time) {
	i.expiry = sent.Add(n.period)
	i.due = sent.Add(n.period / renewAfter)
}

// lose ends the context of an item that may be lost.
func (n *Renewer[T]) lose(i *Item[T]) {
	if i.index >= 0 {
		heap.Remove(&n.heap, i.index)
	}
	i.cancel(n.lost)
}

// schedule sets the timer for the item that is due first.
func (n *Renewer[T]) schedule() {
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

// run renews the items that are due. While the store answers, the timer may start it
// again for others.
func (n *Renewer[T]) run() {
	due := n.collect()
	for len(due) > 0 {
		batch := due[:min(len(due), maxRenewals)]
		n.renewBatch(batch)
		due = due[len(batch):]
	}
}

// collect returns the items to renew, among them those that would be due soon, and ends
// the contexts of those that have expired.
func (n *Renewer[T]) collect() (due []*Item[T]) {
	n.mu.Lock()
	defer n.mu.Unlock()
	defer n.schedule()
	now := time.Now()
	soon := now.Add(n.period / renewAgain)
	for len(n.heap) > 0 {
		switch i := n.heap[0]; {
		case !i.expiry.After(now):
			n.lose(i)
		case i.ctx.Err() != nil:
			heap.Pop(&n.heap) // its holder has stopped without releasing it
		case i.due.After(now) && (len(due) == 0 || i.due.After(soon) || i.due.Equal(i.expiry)):
			return due
		default:
			due = append(due, i)
			i.due = i.expiry
			heap.Fix(&n.heap, i.index)
		}
	}
	return due
}

// renewBatch renews items in one call. When the last of them expires, no answer is of use.
func (n *Renewer[T]) renewBatch(batch []*Item[T]) {
	batch, until, done := n.begin(batch)
	defer close(done)
	if len(batch) == 0 {
		return
	}
	values := make([]T, len(batch))
	for i, item := range batch {
		values[i] = item.Value
	}
	sent := time.Now()
	ctx, cancel := context.WithDeadline(context.WithoutCancel(batch[0].ctx), until)
	defer cancel()
	granted, err := n.renew(ctx, values)
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, item := range batch {
		n.renewed(item, sent, granted[i], err)
	}
	n.schedule()
}

// begin returns the items that have not been dropped meanwhile, when the last of them
// expires, and the channel to close when their renewal has ended.
func (n *Renewer[T]) begin(batch []*Item[T]) (held []*Item[T], until time.Time, done chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	done = make(chan struct{})
	for _, i := range batch {
		if i.index < 0 {
			continue
		}
		i.renewal = done
		held = append(held, i)
		if i.expiry.After(until) {
			until = i.expiry
		}
	}
	return held, until, done
}

// renewed records the answer about an item. Without an answer, the item is renewed
// again while there is time. If it was denied, the store has lost it, and another may
// hold it.
func (n *Renewer[T]) renewed(i *Item[T], sent time.Time, granted bool, err error) {
	switch {
	case i.index < 0: // dropped meanwhile, or lost
		return
	case granted:
		n.granted(i, sent)
	case err == nil:
		n.lose(i)
		return
	default:
		if i.due = time.Now().Add(n.period / renewAgain); i.expiry.Before(i.due) {
			i.due = i.expiry
		}
	}
	heap.Fix(&n.heap, i.index)
}

// items is a heap with the one that is due first at its root.
type items[T any] []*Item[T]

func (h items[T]) Len() int           { return len(h) }
func (h items[T]) Less(i, j int) bool { return h[i].due.Before(h[j].due) }

func (h items[T]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *items[T]) Push(x any) {
	i := x.(*Item[T])
	i.index = len(*h)
	*h = append(*h, i)
}

func (h *items[T]) Pop() any {
	last := len(*h) - 1
	i := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	i.index = -1
	return i
}
