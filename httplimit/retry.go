package httplimit

import (
	"cmp"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/overload"
)

// RetryOptions configure [Retry]. A number of zero or less means its default.
type RetryOptions struct {
	// Transport sends the requests, such as that of [Break]. Default: [http.DefaultTransport].
	Transport http.RoundTripper

	// Most is how often a request is sent again. Default: 2.
	Most int

	// MaxWait is how long a request may wait before it is sent again. If the service, or its breaker,
	// asks for more, the answer is final. Default: two seconds.
	MaxWait time.Duration

	// IsRetryable reports whether a request that was answered so may be sent again. The response is nil
	// if there is an error. Default: errors, and statuses 429, 502, 503 and 504, of requests that are
	// idempotent by their method or have an Idempotency-Key.
	IsRetryable func(*http.Request, *http.Response, error) bool

	// Instead returns the answer in place of one that failed in the end: an error, or a status of 429, or
	// of 500 and above. It works as that of [BreakOptions], which would hide failures from Retry. It gets
	// the request as it was, whose body was read. Default: none.
	Instead func(*http.Request, *http.Response, error) (*http.Response, error)
}

const (
	defaultRetries   = 2
	defaultRetryWait = 2 * time.Second
	firstRetryWait   = 50 * time.Millisecond
)

// Retry returns a transport that sends requests again that failed, within a budget: a share of the requests
// that succeeded. When most of them fail, there are hardly any retries, so a fleet of clients does not
// storm a service that is in trouble. A nil budget is one with all defaults, for this transport.
//
// It waits for as long as Retry-After says, or an [overload.OpenError] of a breaker; otherwise at random for up
// to 50 ms, and twice as long with each attempt. A request whose body cannot be read again (GetBody), or
// whose context would end before, is not sent again.
func Retry(b *overload.RetryBudget, o *RetryOptions) http.RoundTripper {
	r := &retrying{budget: cmp.Or(b, overload.NewRetryBudget(nil)), RetryOptions: *cmp.Or(o, &RetryOptions{})}
	r.Transport = cmp.Or(r.Transport, http.DefaultTransport)
	r.Most = defaults.Or(r.Most, defaultRetries)
	r.MaxWait = defaults.Duration(r.MaxWait, defaultRetryWait)
	if r.IsRetryable == nil {
		r.IsRetryable = isRetryable
	}
	return r
}

type retrying struct {
	RetryOptions
	budget *overload.RetryBudget
}

// RoundTrip sends the request, and again if it fails and the budget allows it.
func (t *retrying) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := t.send(r)
	if t.Instead == nil || hasSucceeded(resp, err) || err != nil && errors.Is(r.Context().Err(), context.Canceled) {
		return resp, err
	}
	return t.Instead(r, resp, err)
}

func hasSucceeded(resp *http.Response, err error) bool {
	return err == nil && resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests
}

func (t *retrying) send(r *http.Request) (*http.Response, error) {
	for attempt := 0; ; attempt++ {
		resp, err := t.Transport.RoundTrip(r)
		if hasSucceeded(resp, err) {
			t.budget.Succeeded()
			return resp, nil
		}
		if attempt == t.Most || !t.IsRetryable(r, resp, err) {
			return resp, err
		}
		wait := retryWait(resp, err, attempt)
		next, ok := t.again(r, wait)
		if !ok {
			return resp, err
		}
		if resp != nil {
			discard(resp)
		}
		if err := monotime.Sleep(r.Context(), wait); err != nil {
			closeBody(next)
			return nil, err
		}
		r = next
	}
}

// again returns the request with its body from the beginning, if it may be sent again after a wait.
func (t *retrying) again(r *http.Request, wait time.Duration) (*http.Request, bool) {
	deadline, has := r.Context().Deadline()
	if wait > t.MaxWait || r.Context().Err() != nil || has && time.Until(deadline) <= wait {
		return nil, false
	}
	hasBody := r.Body != nil && r.Body != http.NoBody
	if hasBody && r.GetBody == nil || !t.budget.Take() {
		return nil, false
	}
	next := r.Clone(r.Context())
	if hasBody {
		body, err := r.GetBody()
		if err != nil {
			return nil, false
		}
		next.Body = body
	}
	return next, true
}

// retryWait is how long to wait before an attempt.
func retryWait(resp *http.Response, err error, attempt int) time.Duration {
	if open, ok := errors.AsType[*overload.OpenError](err); ok {
		return open.RetryAfter
	}
	if resp != nil {
		if after, ok := parseRetryAfter(resp.Header.Get("Retry-After"), time.Now()); ok {
			return after
		}
	}
	return rand.N(firstRetryWait << min(attempt, 10)) //nolint:gosec // only jitter
}

// discard lets the connection of a response be used again, unless its body is long.
func discard(resp *http.Response) {
	_, _ = io.CopyN(io.Discard, resp.Body, 64<<10) // or else the connection is closed
	_ = resp.Body.Close()
}

func isRetryable(r *http.Request, resp *http.Response, err error) bool {
	switch r.Method {
	case http.MethodPost, http.MethodPatch, http.MethodConnect:
		if r.Header.Get("Idempotency-Key") == "" {
			return false
		}
	}
	if err != nil {
		return true
	}
	switch resp.StatusCode {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// CloseIdleConnections implements [http.Client.CloseIdleConnections].
func (t *retrying) CloseIdleConnections() { closeIdleConnections(t.Transport) }
