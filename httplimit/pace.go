package httplimit

import (
	"cmp"
	"fmt"
	"net/http"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/pacing"
)

// ErrTooManyWaiting means that a request was not sent because too many others
// were waiting.
var ErrTooManyWaiting = pacing.ErrTooManyWaiting

// PaceOptions configure [Pace]. The zero PaceOptions pace the requests to each
// host.
type PaceOptions struct {
	// Transport sends the requests. Default: [http.DefaultTransport].
	Transport http.RoundTripper

	// Key returns the quota that a request uses. Default: the target host in
	// lower case, and the port unless it is the scheme's default.
	Key func(*http.Request) string

	// Cost returns how much of it the request uses. A negative cost is an
	// error. Default: 1.
	Cost func(*http.Request) int64

	// MaxWaiting is how many requests may wait at once; more fail with
	// [ErrTooManyWaiting]. Requests that need not wait, and those in flight,
	// do not count. Default: 1000.
	MaxWaiting int

	// MaxPause is the longest pause that a server can ask for. Default: 10
	// minutes.
	MaxPause time.Duration
}

// Pace returns a transport that keeps to the limits of a remote server. A request
// waits until lim allows it: in order of arrival for a bucket, in no particular
// order for a window, and together with other processes if the store is shared.
// If a response says that nothing is left (RateLimit fields of any form) or when
// to retry (Retry-After), this process's requests under the same key wait for
// that too. Responses are returned as they are: a 429 is not retried.
//
// Waiting ends with the request's context. If its deadline is too near, the
// request fails at once with [penstock.ErrDeadline] and costs nothing. If the
// store fails, the request fails.
func Pace(lim *penstock.Limiter, o *PaceOptions) http.RoundTripper {
	o = cmp.Or(o, &PaceOptions{})
	p := &pacer{PaceOptions: *o, queue: pacing.NewQueue(lim, o.MaxWaiting, o.MaxPause)}
	p.Transport = cmp.Or(p.Transport, http.DefaultTransport)
	if p.Key == nil {
		p.Key = func(r *http.Request) string { return hostOf(r.URL) }
	}
	return p
}

type pacer struct {
	PaceOptions
	queue *pacing.Queue
}

// RoundTrip sends the request when the limits allow it.
func (p *pacer) RoundTrip(r *http.Request) (*http.Response, error) {
	key, cost := p.Key(r), int64(1)
	if p.Cost != nil {
		cost = p.Cost(r)
	}
	if err := p.queue.Wait(r.Context(), key, cost); err != nil {
		closeBody(r)
		return nil, fmt.Errorf("httplimit: pacing: %w", err)
	}
	resp, err := p.Transport.RoundTrip(r)
	if err == nil {
		if left, within, ok := serverLimits(resp); ok && left == 0 {
			p.queue.Pause(key, within)
		}
	}
	return resp, err
}

// CloseIdleConnections implements [http.Client.CloseIdleConnections].
func (p *pacer) CloseIdleConnections() {
	closeIdleConnections(p.Transport)
}
