package penstock

import (
	"math"
	"strconv"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// Reset, as the Cost of a [Request], gives everything back: the key is
// forgotten, and as good as new. Grants under an ID stay remembered.
const Reset int64 = math.MinInt64

// A Request asks a [Store] about one key under one limit.
type Request struct {
	// Key says who is asking. Any bytes, but not empty. Required.
	Key string

	// Limit says how much the key may take. Required.
	Limit Limit

	// Cost is how many units are asked for: more than 0 takes, 0 looks, less
	// than 0 gives back, and [Reset] gives everything back. A look is always
	// allowed, so a request without a cost limits nothing.
	Cost int64

	// AtMost takes what is left when the cost does not fit; it is denied only
	// when nothing is left.
	AtMost bool

	// MaxDelay lets a bucket grant the request for a moment within this from
	// now: it is charged at once, and [Decision.Delay] says when to act. On a
	// LeakyBucket, which always grants with a delay, it bounds that delay.
	// Windows ignore it. Default: no delay for a TokenBucket, any for a
	// LeakyBucket.
	MaxDelay time.Duration

	// ID makes a take safe to ask again: within one Period (at most 24 hours)
	// the same ID on the same key and limit is charged once, and answered
	// with the same grant, whatever the cost; what was denied is decided anew.
	// Giving back under an ID reverses that take, once, and no more than was
	// granted. A Memory that has no place left for the record returns
	// [ErrUnavailable] and charges nothing. Optional.
	ID string

	// compiled is what Limit compiles to, carried along so that a store behind
	// decorators need not look it up. It is trusted only while it agrees with
	// Limit, which a decorator may have changed.
	compiled *compiledLimit
}

// Validate returns an error if a store would refuse to decide the request. It
// wraps [ErrBadKey], [ErrBadCost] or [ErrBadLimit]. Stores call it themselves.
func (r Request) Validate() error {
	if err := r.validateShape(); err != nil {
		return err
	}
	return r.Limit.Validate()
}

// ValidateShape is Validate without the limit, for stores that validate a limit
// once and cache the result.
func (r Request) ValidateShape() error { return r.validateShape() }

// validateShape is ValidateShape without copying the request.
func (r *Request) validateShape() error {
	switch {
	case r.Key == "":
		return &FieldError{Field: "Key", Problem: "is empty: want any bytes that say who is asking", Kind: ErrBadKey}
	case r.MaxDelay < 0:
		return costError("MaxDelay", r.MaxDelay.String()+": must not be negative")
	case r.AtMost && r.Cost < 0:
		return costError("AtMost", "has no meaning when units are given back")
	case r.ID != "" && r.Cost == Reset:
		return costError("ID", "has no meaning when a key is reset")
	}
	return nil
}

// validateForAll returns an error if the request, apart from its limit, cannot
// be part of a TakeAll.
func (r *Request) validateForAll() error {
	switch {
	case r.AtMost:
		return costError("AtMost", "has no meaning where all are taken or none")
	case r.Cost < 0:
		return costError("Cost", strconv.FormatInt(r.Cost, 10)+": nothing can be given back where all are taken or none")
	case r.ID != "":
		return costError("ID", "cannot be used where all are taken or none")
	}
	return r.validateShape()
}

// ask returns what the request wants in the words of the algorithms.
func (r Request) ask() algorithm.Ask {
	return algorithm.Ask{Cost: r.Cost, AtMost: r.AtMost, MaxDelay: int64(r.MaxDelay)}
}

func costError(field, problem string) error {
	return &FieldError{Field: field, Problem: problem, Kind: ErrBadCost}
}
