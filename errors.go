package penstock

import (
	"context"
	"errors"
	"fmt"
	"strings"
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

// A RequestError says which of several requests an error is about. Stores return
// it from TakeEach and TakeAll, so that [WithFallback] knows which shard failed.
type RequestError struct {
	Index int // of the request, from 0
	Err   error
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("penstock: request %d: %s", e.Index, strings.TrimPrefix(e.Err.Error(), "penstock: "))
}

func (e *RequestError) Unwrap() error { return e.Err }

func requestError(i int, err error) error { return &RequestError{Index: i, Err: err} }

// reindex turns an error about some requests into one about all of them; index
// holds the position of each among all.
func reindex(err error, index []int) error {
	var about *RequestError
	if !errors.As(err, &about) || uint(about.Index) >= uint(len(index)) {
		return err
	}
	return requestError(index[about.Index], about.Err)
}

// A KeyError says that a store answered but cannot decide about one key, for
// example because another program wrote its value. It is no failure of the
// store: [WithFallback] decides the request and does not count it.
type KeyError struct {
	Key string
	Err error
}

func (e *KeyError) Error() string { return e.Err.Error() }

func (e *KeyError) Unwrap() error { return e.Err }
