package httplimit

import (
	"net/http"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

// held is middleware with a concurrent limit: a request holds a permit while its handler
// runs.
type held struct {
	*protection
	limiter *penstock.Limiter
	next    http.Handler
}

// isConcurrent reports whether a limiter has permits. They are held by one middleware
// each: what a request of several limits was charged is settled, not released.
func isConcurrent(lim *penstock.Limiter, o *Options) bool {
	if lim == nil || lim.Limit().Algorithm != penstock.Concurrent {
		return false
	}
	if o.LimiterFor != nil || o.After != nil || len(o.Additional) > 0 {
		panic("httplimit: a concurrent limit cannot have LimiterFor, After or Additional: protect the handler twice") //nolint:forbidigo // no error to return, and no limit would be worse
	}
	return true
}

// ServeHTTP acquires a permit, serves the request and releases the permit, also if the
// handler panics.
func (h *held) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.Skip != nil && h.Skip(r) {
		h.next.ServeHTTP(w, r)
		return
	}
	parts := [1]charge.Part{{Key: h.keyOf(&h.fixed.charges[0], r), Cost: 1}}
	if h.Cost != nil {
		parts[0].Cost = h.Cost(r)
	}
	var permit *penstock.Permit
	err := errUnknownClient
	if parts[0].Key != "" {
		permit, parts[0].Decision, err = h.limiter.AcquireN(r.Context(), parts[0].Key, parts[0].Cost)
	}
	switch {
	case err != nil:
		(&protected{h.protection, h.next}).fail(w, r, h.fixed, nil, h.fixed.now(), err)
	case permit != nil:
		defer permit.Release()
		if h.Shadow == nil {
			h.setHeaders(w.Header(), h.fixed, parts[:])
		}
		h.next.ServeHTTP(w, r.WithContext(permit.Context()))
	case h.Shadow != nil:
		h.Shadow(r, h.fixed.answers(parts[:]))
		h.next.ServeHTTP(w, r)
	default:
		h.deny(w, r, h.fixed, parts[:])
	}
}
