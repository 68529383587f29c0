package httplimit

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

// errPermitBesideOthers means that a request has a concurrent limit among others. What a
// request of several limits was charged is settled, while permits are released.
var errPermitBesideOthers = fmt.Errorf(
	"httplimit: %w: a concurrent limit cannot have After or Additional: protect the handler twice", penstock.ErrBadLimit)

// hold acquires a permit, serves the request and releases the permit, also if the handler
// panics.
func (p *protected) hold(w http.ResponseWriter, r *http.Request, l *chargeList) {
	within, release, part, err := l.AcquirePermit(r.Context(), r)
	parts := [1]charge.Part{part}
	switch {
	case errors.Is(err, errPermitBesideOthers):
		p.report(r, err)
		WriteProblem(w, Problem{Status: http.StatusInternalServerError, Detail: "the limits of this request cannot be combined"})
	case err != nil:
		p.fail(w, r, l, parts[:], 0, l.Now(), err)
	case release != nil:
		defer release()
		if p.Shadow == nil { // which enforces nothing, also if the permit is lost
			p.setHeaders(w.Header(), l, parts[:])
			r = r.WithContext(within)
		}
		p.next.ServeHTTP(w, r)
	case part.Decision.Allowed:
		p.next.ServeHTTP(w, r)
	case p.Shadow != nil:
		p.Shadow(r, answers(l, parts[:]))
		p.next.ServeHTTP(w, r)
	default:
		p.deny(w, r, l, parts[:])
	}
}
