package httplimit

import (
	"cmp"
	"context"
	"errors"
	"net/http"

	"github.com/penstock-io/penstock/overload"
)

// BreakOptions configure [Break]. The zero BreakOptions have a breaker for each
// host.
type BreakOptions struct {
	// Transport sends the requests. Default: [http.DefaultTransport].
	Transport http.RoundTripper

	// Key returns the key of the request's breaker. Default: the target host
	// in lower case, and the port unless it is the scheme's default.
	Key func(*http.Request) string

	// IsFailure reports whether the service has failed. The response is nil if
	// there is an error. Default: errors, and statuses of 500 and above.
	IsFailure func(*http.Response, error) bool

	// Instead returns the answer in place of a failed one. The error is an
	// [overload.OpenError] if the request was not sent, or what the transport
	// returned. The response is nil, or the one that failed, whose body Instead
	// must close unless it returns it. Under [Retry], set that of [RetryOptions]:
	// an answer in place of a failed one is not retried. Default: none.
	Instead func(*http.Request, *http.Response, error) (*http.Response, error)
}

// Break returns a transport that does not send requests to a service that fails
// or hangs: a [overload.BreakerGroup] decides, by host. A request that is not sent
// fails with an [overload.OpenError]. A request whose context is canceled counts
// as neither success nor failure. The call ends with the header of the response;
// reading the body is not part of it. A nil group means one with all defaults.
func Break(g *overload.BreakerGroup, o *BreakOptions) http.RoundTripper {
	b := &breaking{group: cmp.Or(g, overload.NewBreakerGroup(nil)), BreakOptions: *cmp.Or(o, &BreakOptions{})}
	b.Transport = cmp.Or(b.Transport, http.DefaultTransport)
	if b.Key == nil {
		b.Key = func(r *http.Request) string { return hostOf(r.URL) }
	}
	if b.IsFailure == nil {
		b.IsFailure = func(resp *http.Response, err error) bool { return err != nil || resp.StatusCode >= 500 }
	}
	if b.Instead == nil {
		b.Instead = func(_ *http.Request, resp *http.Response, err error) (*http.Response, error) { return resp, err }
	}
	return b
}

type breaking struct {
	BreakOptions
	group *overload.BreakerGroup
}

// RoundTrip sends the request if the service's breaker allows it.
func (b *breaking) RoundTrip(r *http.Request) (*http.Response, error) {
	call, err := b.group.Allow(b.Key(r))
	if err != nil {
		closeBody(r)
		return b.Instead(r, nil, err)
	}
	resp, outcome, err := b.send(r, call)
	if outcome == overload.Failure {
		return b.Instead(r, resp, err)
	}
	return resp, err
}

func (b *breaking) send(r *http.Request, call overload.GroupCall) (resp *http.Response, outcome overload.Outcome, err error) {
	outcome = overload.Failure // of a panic
	defer func() { call.Done(outcome) }()
	resp, err = b.Transport.RoundTrip(r)
	switch {
	case err != nil && errors.Is(r.Context().Err(), context.Canceled):
		outcome = overload.Canceled
	case !b.IsFailure(resp, err):
		outcome = overload.Success
	}
	return resp, outcome, err
}

// CloseIdleConnections implements [http.Client.CloseIdleConnections].
func (b *breaking) CloseIdleConnections() {
	closeIdleConnections(b.Transport)
}
