package penstock

import (
	"context"
	"errors"
)

// These are the reasons for which no decision is made. A denial is not among
// them: a denial is a [Decision].
var (
	// ErrBadLimit means that a [Limit] cannot be counted by. The error is a
	// [*FieldError] that names the field.
	ErrBadLimit = errors.New("bad limit")

	// ErrBadKey means that a request names nobody.
	ErrBadKey = errors.New("bad key")

	// ErrBadCost means that a request asks for something that has no meaning,
	// such as to take a negative number of units.
	ErrBadCost = errors.New("bad cost")

	// ErrUnavailable means that the store could not decide. Nothing is known
	// about the key; whether to let the request pass is the caller's choice.
	ErrUnavailable = errors.New("store unavailable")

	// ErrDeadline means that waiting would outlast the context. It is
	// returned at once, and nothing was charged. It is also a
	// [context.DeadlineExceeded].
	ErrDeadline error = deadlineError{}

	// ErrNever means that the cost is more than the limit can ever grant.
	ErrNever = errors.New("cost exceeds what the limit can ever grant")
)

type deadlineError struct{}

func (deadlineError) Error() string { return "wait would outlast the context's deadline" }

func (deadlineError) Is(target error) bool { return target == context.DeadlineExceeded }

// A FieldError names the field of a [Limit] or [Request] that cannot be used, and
// says what was expected of it.
type FieldError struct {
	Field   string // such as "Period"
	Problem string // such as "-1s: must be more than zero"
	Kind    error  // ErrBadLimit, ErrBadKey or ErrBadCost
}

func (e *FieldError) Error() string {
	return "penstock: " + e.Kind.Error() + ": " + e.Field + " " + e.Problem
}

// Unwrap makes errors.Is(err, ErrBadLimit) and its like true.
func (e *FieldError) Unwrap() error { return e.Kind }
