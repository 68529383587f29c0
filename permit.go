package penstock

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/internal/renewal"
)

// A Permit is held by one of at most Count callers at once. [Limiter.Acquire] returns
// it. It is safe for concurrent use.
//
// A permit that is held for longer than a third of the limit's Period is renewed in the
// background, until it is released, or until the context that was passed to Acquire
// ends. If its process dies, it expires within one Period.
type Permit struct {
	limiter *Limiter
	item    renewal.Item[Request] // the request that takes and renews it
	release sync.Once
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
	p := &Permit{limiter: l, item: renewal.Item[Request]{Value: r}}
	l.renewer.Hold(ctx, &p.item, sent)
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
func (p *Permit) Context() context.Context { return p.item.Context() }

// Release releases the permit, even if its context has ended. It returns when the store
// has answered. If the store cannot be reached, the permit expires. A second call has no
// effect.
func (p *Permit) Release() {
	p.release.Do(func() {
		expiry := p.limiter.renewer.Drop(&p.item)
		p.limiter.releaseRequest(p.Context(), p.item.Value, expiry)
		p.item.End()
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

// renewPermits is what the limiter's renewer calls.
func (l *Limiter) renewPermits(ctx context.Context, rs []Request) (granted []bool, err error) {
	ds := make([]Decision, len(rs))
	err = TakeEach(ctx, l.store, rs, ds)
	for i := range ds {
		granted = append(granted, ds[i].Granted > 0)
	}
	return granted, err
}
