package httplimit

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"runtime"
	"strconv"

	"github.com/penstock-io/penstock/overload"
)

// AdmitOptions configure [Admit]. The zero AdmitOptions treat all requests alike.
type AdmitOptions struct {
	// Priority returns the priority of a request. Do not let clients choose it.
	// Default: [overload.Normal].
	Priority func(*http.Request) overload.Priority

	// Skip returns true for requests that are always admitted and never
	// measured, such as health checks, and connections that stay open.
	// Default: none.
	Skip func(*http.Request) bool

	// Instead answers a refused request, after Retry-After is set. The error
	// is an [overload.FullError], or that of the request's context if the
	// client disconnected while the request waited. Default:
	// [ServiceUnavailable].
	Instead func(http.ResponseWriter, *http.Request, error)
}

// Admit returns middleware that admits as many requests at once as the gate
// allows, by priority. It refuses the rest with status 503 and Retry-After. A
// response with status 500 or above, and a handler that panics, have failed.
//
// An admitted request yields the processor once before it is served. Requests that wait for
// it have not reached the gate yet. If handlers only computed, and each ended in its turn,
// the gate would see one at a time, however many wait.
func Admit(g *overload.Gate, o *AdmitOptions) func(http.Handler) http.Handler {
	a := &admission{gate: g, AdmitOptions: *cmp.Or(o, &AdmitOptions{})}
	if a.Instead == nil {
		a.Instead = ServiceUnavailable
	}
	return func(next http.Handler) http.Handler { return &admitted{a, next} }
}

type admission struct {
	AdmitOptions
	gate *overload.Gate
}

type admitted struct {
	*admission
	next http.Handler
}

// ServeHTTP serves the request if the gate admits it.
func (a *admitted) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if a.Skip != nil && a.Skip(r) {
		a.next.ServeHTTP(w, r)
		return
	}
	priority := overload.Normal
	if a.Priority != nil {
		priority = a.Priority(r)
	}
	pass, err := a.gate.Enter(r.Context(), priority)
	if err != nil {
		a.refuse(w, r, err)
		return
	}
	runtime.Gosched() // so that those that wait for the processor reach the gate
	a.serve(w, r, pass)
}

func (a *admission) refuse(w http.ResponseWriter, r *http.Request, err error) {
	if full, ok := errors.AsType[*overload.FullError](err); ok {
		w.Header().Set("Retry-After", strconv.FormatInt(max(seconds(full.RetryAfter), 1), 10))
	}
	a.Instead(w, r, err)
}

func (a *admitted) serve(w http.ResponseWriter, r *http.Request, pass overload.Pass) {
	recorder := &statusRecorder{ResponseWriter: w}
	outcome := overload.Failure // of a panic
	defer func() { pass.Leave(outcome) }()
	a.next.ServeHTTP(recorder.withMethodsOf(w), r)
	outcome = outcomeOf(r.Context(), recorder.result())
}

func outcomeOf(ctx context.Context, status int) overload.Outcome {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return overload.Canceled
	case status >= 500:
		return overload.Failure
	}
	return overload.Success
}
