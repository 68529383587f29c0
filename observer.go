package penstock

import (
	"context"
	"time"

	"github.com/penstock-io/penstock/internal/monotime"
)

// An Observation is one decision, for the metrics of a program.
type Observation struct {
	Request  Request
	Decision Decision // zero if Err is not nil

	// Duration is how long the store took. Requests that were decided in one call have the
	// same.
	Duration time.Duration

	// Err is why there is no decision. Requests that were decided in one call have the same, a
	// [RequestError] if it is about one of them.
	Err error
}

// WithObserver returns a store that calls observe after each decision of the next, once for
// each request. Decision.Source tells which wrapper inside it decided, so use it as the
// outermost wrapper; around a remote store, inside the wrappers, it observes only what that
// store decides. The function is called concurrently, must not block and must not keep the Key
// or the ID of the request. It costs two readings of the clock, and no memory.
func WithObserver(next Store, observe func(Observation)) BatchFunc {
	clock := monotime.New(nil)
	return func(ctx context.Context, rs []Request, ds []Decision, all bool) error {
		began := clock.Now()
		err := TakeBatch(ctx, next, rs, ds, all)
		took := time.Duration(clock.Now() - began)
		failure := err
		if failure != nil && len(rs) == 1 {
			_, failure = indexOf(failure)
		}
		for i := range rs {
			o := Observation{Request: rs[i], Decision: ds[i], Duration: took}
			if ds[i] == (Decision{}) {
				o.Err = failure
			}
			observe(o)
		}
		return err
	}
}
