package httplimit

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

// ErrTooManyWaiting means that a request was not sent, because too many others
// were waiting for their turn already.
var ErrTooManyWaiting = errors.New("too many requests are waiting")

// PaceOptions say what [Pace] does. The zero PaceOptions pace the requests to each
// host.
type PaceOptions struct {
	// Transport sends the requests. Default: [http.DefaultTransport].
	Transport http.RoundTripper

	// Key says whose quota a request uses. Default: the host it goes to.
	Key func(*http.Request) string

	// Cost says how much of it. Default: 1.
	Cost func(*http.Request) int64

	// MaxWaiting is how many requests may wait for their turn at once; more
	// fail with [ErrTooManyWaiting]. Default: 1000.
	MaxWaiting int

	// MaxPause is the longest that a server's word is taken for, when it says
	// how long to wait. Default: 10 minutes.
	MaxPause time.Duration
}

// Pace returns a transport that keeps to the limits of somebody else's server. A
// request waits until lim lets it go, in the order in which requests came, and
// with a store that is shared, in turn with those of all other processes. Where a
// server says that no more is left, in RateLimit fields of any form, or when to
// come back, in Retry-After, this process's requests under the same key wait for
// that, too. A response is returned as it is: a 429 is not repeated.
//
// Waiting ends with the context of the request. If its deadline is too near, the
// request fails at once, with [penstock.ErrDeadline], and costs nothing. If the
// store fails, the request does.
func Pace(lim *penstock.Limiter, o *PaceOptions) http.RoundTripper {
	if o == nil {
		o = &PaceOptions{}
	}
	p := &pacer{limiter: lim, PaceOptions: *o, closed: map[string]time.Time{}}
	if p.Transport == nil {
		p.Transport = http.DefaultTransport
	}
	if p.Key == nil {
		p.Key = func(r *http.Request) string { return r.URL.Host }
	}
	if p.MaxWaiting <= 0 {
		p.MaxWaiting = 1000
	}
	if p.MaxPause <= 0 {
		p.MaxPause = 10 * time.Minute
	}
	return p
}

type pacer struct {
	PaceOptions
	limiter *penstock.Limiter
	waiting atomic.Int64

	mu     sync.Mutex
	closed map[string]time.Time // until when servers take no more, by key
}

// RoundTrip sends the request when its turn has come.
func (p *pacer) RoundTrip(r *http.Request) (*http.Response, error) {
	key := p.Key(r)
	if err := p.wait(r, key); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as transports must
		}
		return nil, fmt.Errorf("httplimit: pacing: %w", err)
	}
	resp, err := p.Transport.RoundTrip(r)
	if err == nil {
		p.heed(key, resp)
	}
	return resp, err
}

// CloseIdleConnections is what [http.Client.CloseIdleConnections] asks for.
func (p *pacer) CloseIdleConnections() {
	if t, ok := p.Transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// wait returns when the request may go.
func (p *pacer) wait(r *http.Request, key string) error {
	defer p.waiting.Add(-1)
	if p.waiting.Add(1) > int64(p.MaxWaiting) {
		return ErrTooManyWaiting
	}
	cost := int64(1)
	if p.Cost != nil {
		cost = p.Cost(r)
	}
	for {
		if err := p.waitForServer(r.Context(), key); err != nil {
			return err
		}
		if err := p.limiter.WaitN(r.Context(), key, cost); err != nil {
			return err
		}
		if p.closedUntil(key).IsZero() {
			return nil
		}
		// Meanwhile the server has said that it takes no more. To go on with
		// what was taken would let all who waited go at once when it does.
		if err := p.giveUp(r.Context(), key, cost); err != nil {
			return err
		}
	}
}

// giveUp gives back a turn that was not used. The turns of a bucket are moments,
// and this one has passed: whoever got it back would go in somebody else's.
func (p *pacer) giveUp(ctx context.Context, key string, cost int64) (err error) {
	switch p.limiter.Limit().Algorithm {
	case penstock.TokenBucket, penstock.LeakyBucket:
		return nil
	}
	if cost > 0 {
		_, err = p.limiter.Refund(ctx, key, cost)
	}
	return err
}

// waitForServer waits for as long as the server wants us to.
func (p *pacer) waitForServer(ctx context.Context, key string) error {
	for {
		until := p.closedUntil(key)
		if until.IsZero() {
			return nil
		}
		if deadline, ok := ctx.Deadline(); ok && deadline.Before(until) {
			return fmt.Errorf("%w: the server wants %v, %v left", penstock.ErrDeadline, time.Until(until), time.Until(deadline))
		}
		t := time.NewTimer(time.Until(until))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return ctx.Err()
		}
	}
}

// closedUntil returns until when the server takes no more, or the zero time if it
// does.
func (p *pacer) closedUntil(key string) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	until := p.closed[key]
	if time.Now().Before(until) {
		return until
	}
	delete(p.closed, key)
	return time.Time{}
}

// maxClosed is how many servers may be closed before those are looked for that are
// open again.
const maxClosed = 1024

// heed closes a server for as long as its response says. An answer that was late
// does not open it sooner.
func (p *pacer) heed(key string, resp *http.Response) {
	left, within, ok := told(resp)
	if !ok || left > 0 || within <= 0 {
		return
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if until := now.Add(min(within, p.MaxPause)); until.After(p.closed[key]) {
		p.closed[key] = until
	}
	if len(p.closed) > maxClosed {
		maps.DeleteFunc(p.closed, func(_ string, until time.Time) bool { return !now.Before(until) })
	}
}
