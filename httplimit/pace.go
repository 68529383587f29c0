package httplimit

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/pacing"
)

// ErrTooManyWaiting means that a request was not sent, because too many others
// were waiting for their turn already.
var ErrTooManyWaiting = pacing.ErrTooManyWaiting

// PaceOptions say what [Pace] does. The zero PaceOptions pace the requests to each
// host.
type PaceOptions struct {
	// Transport sends the requests. Default: [http.DefaultTransport].
	Transport http.RoundTripper

	// Key says whose quota a request uses. Default: the host it goes to, in
	// lower case, and the port, unless it is the scheme's own.
	Key func(*http.Request) string

	// Cost says how much of it. Less than 0 is an error. Default: 1.
	Cost func(*http.Request) int64

	// MaxWaiting is how many requests may wait for their turn at once; more
	// fail with [ErrTooManyWaiting]. Those that go at once, and those that are
	// under way, do not count. Default: 1000.
	MaxWaiting int

	// MaxPause is the longest that a server's word is taken for, when it says
	// how long to wait. Default: 10 minutes.
	MaxPause time.Duration
}

// Pace returns a transport that keeps to the limits of somebody else's server. A
// request waits until lim lets it go: on a bucket in the order in which requests
// came, on a window in no particular order, and with a store that is shared, in
// turn with those of all other processes. Where a server says that no more is left,
// in RateLimit fields of any form, or when to come back, in Retry-After, this
// process's requests under the same key wait for that, too. A response is returned as it is: a 429 is not repeated.
//
// Waiting ends with the context of the request. If its deadline is too near, the
// request fails at once, with [penstock.ErrDeadline], and costs nothing. If the
// store fails, the request does.
func Pace(lim *penstock.Limiter, o *PaceOptions) http.RoundTripper {
	if o == nil {
		o = &PaceOptions{}
	}
	p := &pacer{PaceOptions: *o, line: pacing.NewQueue(lim, o.MaxWaiting, o.MaxPause)}
	if p.Transport == nil {
		p.Transport = http.DefaultTransport
	}
	if p.Key == nil {
		p.Key = func(r *http.Request) string { return hostOf(r.URL) }
	}
	return p
}

type pacer struct {
	PaceOptions
	line *pacing.Queue
}

// RoundTrip sends the request when its turn has come.
func (p *pacer) RoundTrip(r *http.Request) (*http.Response, error) {
	key, cost := p.Key(r), int64(1)
	if p.Cost != nil {
		cost = p.Cost(r)
	}
	if err := p.line.Wait(r.Context(), key, cost); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // as transports must
		}
		return nil, fmt.Errorf("httplimit: pacing: %w", err)
	}
	resp, err := p.Transport.RoundTrip(r)
	if err == nil {
		if left, within, ok := told(resp); ok && left == 0 {
			p.line.Pause(key, within)
		}
	}
	return resp, err
}

// CloseIdleConnections is what [http.Client.CloseIdleConnections] asks for.
func (p *pacer) CloseIdleConnections() {
	if t, ok := p.Transport.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}

// hostOf returns the host of an address, in one of the many ways to write it.
func hostOf(u *url.URL) string {
	host, port := strings.TrimSuffix(strings.ToLower(u.Hostname()), "."), u.Port()
	if port == "" || u.Scheme == "http" && port == "80" || u.Scheme == "https" && port == "443" {
		return host
	}
	return net.JoinHostPort(host, port)
}
