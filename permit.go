package penstock

import (
	"container/heap"
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/monotime"
)

// A Permit is held by one of at most Count callers at once. [Limiter.Acquire] returns
// it. It is safe for concurrent use.
//
// A permit that is held for longer than a third of the limit's Period is renewed in the
// background, until it is released, or until the context that was passed to Acquire
// ends. If its process dies, it expires within one Period.
type Permit struct {
	limiter *Limiter
	request Request // that takes and renews it
	ctx     context.Context
	cancel  context.CancelCauseFunc
	release sync.Once

	// Of the limiter's renewer, under its lock:
	expiry  time.Time // when the store may give it to another holder
	renewAt time.Time
	due     time.Time     // the earlier of both, or expiry while it is being renewed
	index   int           // in the renewer's heap; -1 if it is not there
	renewal chan struct{} // closed when the renewal in flight has ended; nil if there was none
}

// Acquire takes a permit of the key, if one is free. The limit must be [Concurrent].
// Without a permit the Decision is a denial, and the Permit is nil: RetryAfter is when
// the next permit expires, but one may be released before. Release the permit when the
// work is done:
//
//	p, d, err := lim.Acquire(ctx, key)
//	if err != nil || !d.Allowed {
//		…
//	}
//	defer p.Release()
//	work(p.Context())
//
// After an error, the store may hold the permit nevertheless, until it expires.
func (l *Limiter) Acquire(ctx context.Context, key string) (*Permit, Decision, error) {
	return l.AcquireN(ctx, key, 1)
}

// AcquireN takes n permits of the key, from 1 to 100, all of them or none.
func (l *Limiter) AcquireN(ctx context.Context, key string, n int64) (*Permit, Decision, error) {
	r, err := l.permitRequest(key, n)
	if err != nil {
		return nil, Decision{}, err
	}
	return l.acquire(ctx, r)
}

// AcquireWait waits until a permit of the key is free, and takes it. It fails only if ctx
// ends, or if the store does not decide.
//
// It asks again and again, after 5 milliseconds at first and 250 in the end, at random
// times around that, and when a permit expires. So callers get permits in no particular
// order.
func (l *Limiter) AcquireWait(ctx context.Context, key string) (*Permit, error) {
	return l.AcquireWaitN(ctx, key, 1)
}

// AcquireWaitN waits until n permits of the key are free, and takes them. If n exceeds
// the limit's Count, the error is [ErrNever].
func (l *Limiter) AcquireWaitN(ctx context.Context, key string, n int64) (*Permit, error) {
	r, err := l.permitRequest(key, n)
	if err != nil {
		return nil, err
	}
	for pause := minAcquirePause; ; pause = min(2*pause, maxAcquirePause) {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		p, d, err := l.acquire(ctx, r)
		switch {
		case p != nil || err != nil:
			return p, err
		case d.RetryAfter == Never:
			return nil, fmt.Errorf("penstock: %w: %d of at most %d", ErrNever, n, d.Limit)
		}
		jittered := pause/2 + mathrand.N(pause) //nolint:gosec // only jitter
		if err := monotime.Sleep(ctx, max(min(jittered, d.RetryAfter), minSleep)); err != nil {
			return nil, err
		}
	}
}

const (
	minAcquirePause = 5 * time.Millisecond
	maxAcquirePause = 250 * time.Millisecond
)

// permitRequest returns the request for n permits under a new ID.
func (l *Limiter) permitRequest(key string, n int64) (Request, error) {
	r := l.request(key, n)
	switch {
	case !l.compiled.limit.hasPermits():
		return r, badLimit("Algorithm", "%s: Acquire requires a %s limit", l.compiled.limit.Algorithm, Concurrent)
	case n < 1:
		return r, costError("Cost", fmt.Sprintf("%d: must be at least 1", n))
	}
	r.ID = rand.Text()
	return r, r.validateShape()
}

// acquire takes permits. The holder's time counts from before the request is sent, which
// is no later than the store's.
func (l *Limiter) acquire(ctx context.Context, r Request) (*Permit, Decision, error) {
	sent := time.Now()
	d, err := l.store.Take(ctx, r)
	if err != nil {
		if ctx.Err() != nil { // the store may have granted it; the caller no longer wants it
			go l.releaseRequest(ctx, r, sent.Add(l.period()))
		}
		return nil, Decision{}, err
	}
	if !d.Allowed {
		return nil, d, nil
	}
	p := &Permit{limiter: l, request: r, index: -1}
	p.ctx, p.cancel = context.WithCancelCause(ctx)
	l.renewer.add(p, sent)
	return p, d, nil
}

func (l *Limiter) period() time.Duration { return l.compiled.limit.Period }

// Context returns a context that ends when the permit may be lost, because it was not
// renewed in time, and when it is released. [context.Cause] is [ErrPermitLost] if it was
// lost. It is derived from the one that was passed to Acquire.
//
// It ends one Period after the last request that the store granted was sent, on the
// monotonic clock of this machine. The store counts from later, so a holder that stops
// when the context ends stops before another gets its permit. A holder that is suspended
// meanwhile, or does not look, may go on for longer: a limit of one permit is no lock.
func (p *Permit) Context() context.Context { return p.ctx }

// Release releases the permit, even if its context has ended. It returns when the store
// has answered. If the store cannot be reached, the permit expires. A second call has no
// effect.
func (p *Permit) Release() {
	p.release.Do(func() {
		renewal, expiry := p.limiter.renewer.remove(p)
		if renewal != nil {
			<-renewal // if it arrived after the release, it would take the permit again
		}
		p.limiter.releaseRequest(p.ctx, p.request, expiry)
		p.cancel(nil)
	})
}

// releaseRequest releases the permits of a request. After they have expired there is
// nothing to release.
func (l *Limiter) releaseRequest(ctx context.Context, r Request, expiry time.Time) {
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), expiry)
	defer cancel()
	r.Cost = -r.Cost
	_, _ = l.store.Take(ctx, r) // on an error the permits expire
}

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
