package httplimit

import (
	"context"
	"fmt"
	"net/http"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

// errPermitBesideOthers means that a request has a concurrent limit among others. What a
// request of several limits was charged is settled, while permits are released.
var errPermitBesideOthers = fmt.Errorf(
	"httplimit: %w: a concurrent limit cannot have After or Additional: protect the handler twice", penstock.ErrBadLimit)

// checkPermits panics if a concurrent limit is among others, for all requests.
func checkPermits(given []Charge) {
	for _, c := range given {
		if charge.IsConcurrent(c.Limiter) && (len(given) > 1 || c.After != nil) {
			panic(errPermitBesideOthers.Error()) //nolint:forbidigo // no error to return, and no limit would be worse
		}
	}
}

// hold acquires a permit, serves the request and releases the permit, also if the handler
// panics.
func (p *protected) hold(w http.ResponseWriter, r *http.Request, l *chargeList) {
	if len(l.charges) > 1 || l.settles {
		p.report(r, errPermitBesideOthers)
		WriteProblem(w, Problem{Status: http.StatusInternalServerError, Detail: "the limits of this request cannot be combined"})
		return
	}
	c := &l.charges[0]
	parts := [1]charge.Part{{Key: p.keyOf(c, r), Cost: 1}}
	if c.Cost != nil {
		parts[0].Cost = c.Cost(r)
	}
	var within context.Context
	var release func()
	err := errUnknownClient
	switch {
	case parts[0].Cost == 0:
		p.next.ServeHTTP(w, r)
		return
	case parts[0].Key != "":
		within, release, parts[0].Decision, err = charge.Acquire(r.Context(), c.Limiter, parts[0].Key, parts[0].Cost)
	}
	switch {
	case err != nil:
		p.fail(w, r, l, nil, l.now(), err)
	case release != nil:
		defer release()
		if p.Shadow == nil { // which enforces nothing, also if the permit is lost
			p.setHeaders(w.Header(), l, parts[:])
			r = r.WithContext(within)
		}
		p.next.ServeHTTP(w, r)
	case p.Shadow != nil:
		p.Shadow(r, l.answers(parts[:]))
		p.next.ServeHTTP(w, r)
	default:
		p.deny(w, r, l, parts[:])
	}
}
