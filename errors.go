package penstock

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

// Errors, which mean that no decision was made. A denial is not an error: it is a
// [Decision].
var (
	// ErrBadLimit means that a [Limit] is invalid. The error is a [*FieldError]
	// that names the field.
	ErrBadLimit = errors.New("bad limit")

	// ErrBadKey means that the key of a request is empty.
	ErrBadKey = errors.New("bad key")

	// ErrBadCost means that the cost of a request is invalid, or conflicts with
	// its other fields.
	ErrBadCost = errors.New("bad cost")

	// ErrUnavailable means that the store could not decide. Whether to allow the
	// request is up to the caller.
	ErrUnavailable = errors.New("store unavailable")

	// ErrBusy means that the store answers, but had not come to this call when its time was up,
	// because others were before it. That is no outage, so it is not [ErrUnavailable]:
	// [WithFallback] counts no failure, decides nothing and returns it. To let the request pass
	// would lift the limit just when most ask for it. Repeat it later, with fewer at once. Unless the text
	// says that the call was not sent, it may be charged. An error of the caller's
	// context matches both.
	ErrBusy = errors.New("store busy")

	// ErrDeadline means that the wait would exceed the deadline of the context.
	// It is returned at once, and nothing is charged. It matches
	// [context.DeadlineExceeded].
	ErrDeadline error = deadlineError{}

	// ErrPermitLost is the cause of a [Permit.Context] that ended because the
	// permit was not renewed in time, or the store no longer has it.
	ErrPermitLost = errors.New("permit lost")

	// ErrNever means that the cost exceeds the [Limit.Capacity].
	ErrNever = errors.New("cost exceeds what the limit can ever grant")

	// ErrUnknownID means that the store does not remember what was granted under a
	// [Request.ID]: nothing was, or it has expired. Nothing was charged.
	ErrUnknownID = errors.New("unknown ID")
)

type deadlineError struct{}

func (deadlineError) Error() string { return "wait would exceed the context's deadline" }

func (deadlineError) Is(target error) bool { return target == context.DeadlineExceeded }

// A FieldError names an invalid field of a [Limit] or [Request] and the problem
// with it.
type FieldError struct {
	Field   string // such as "Period"
	Problem string // such as "-1s: must be more than zero"
	Kind    error  // ErrBadLimit, ErrBadKey or ErrBadCost
}

func (e *FieldError) Error() string {
	return "penstock: " + e.Kind.Error() + ": " + e.Field + " " + e.Problem
}

// Unwrap returns the Kind, for errors.Is(err, ErrBadLimit).
func (e *FieldError) Unwrap() error { return e.Kind }

// A RequestError says which of several requests caused an error. Stores return it
// from TakeEach and TakeAll, so that [WithFallback] knows which shard failed.
type RequestError struct {
	Index int // of the request, from 0
	Err   error
}

func (e *RequestError) Error() string {
	return fmt.Sprintf("penstock: request %d: %s", e.Index, strings.TrimPrefix(e.Err.Error(), "penstock: "))
}

func (e *RequestError) Unwrap() error { return e.Err }

func requestError(i int, err error) error { return &RequestError{Index: i, Err: err} }

// indexOf returns the index of the request that an error is about, and the error without it. If
// it names none, the index is negative.
func indexOf(err error) (int, error) {
	var about *RequestError
	if errors.As(err, &about) {
		return about.Index, about.Err
	}
	return -1, err
}

// reindex translates the index in a RequestError about a subset of requests.
// index holds the position of each among all requests.
func reindex(err error, index []int) error {
	if i, about := indexOf(err); uint(i) < uint(len(index)) {
		return requestError(index[i], about)
	}
	return err
}

// A KeyError means that a store answered but cannot decide about one key, for
// example because another program wrote its value. The store has not failed:
// [WithFallback] decides the request and does not count a failure.
type KeyError struct {
	Key string
	Err error
}

func (e *KeyError) Error() string { return e.Err.Error() }

func (e *KeyError) Unwrap() error { return e.Err }
