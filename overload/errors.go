package overload

import (
	"errors"
	"fmt"
	"time"
)

// ErrOpen is the error of calls that a [Breaker] denies. The error that callers
// get is an [OpenError]; use errors.Is to recognize it.
var ErrOpen = errors.New("overload: circuit breaker is open")

// An OpenError is the error of a call that a [Breaker] denied.
type OpenError struct {
	// Key is the key of a [BreakerGroup], and "" for a single Breaker.
	Key string

	// RetryAfter is when the next call may be admitted.
	RetryAfter time.Duration
}

// Error describes which breaker is open, and when to try again.
func (e *OpenError) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("%v, retry after %v", ErrOpen, e.RetryAfter)
	}
	return fmt.Sprintf("%v for %q, retry after %v", ErrOpen, e.Key, e.RetryAfter)
}

// Is reports whether the target is [ErrOpen].
func (e *OpenError) Is(target error) bool { return target == ErrOpen }

// ErrFull is the error of calls that a [Gate] refuses. The error that callers get
// is a [FullError]; use errors.Is to recognize it.
var ErrFull = errors.New("overload: too many calls in flight")

// A FullError is the error of a call that a [Gate] refused.
type FullError struct {
	// Priority is that of the call.
	Priority Priority

	// Limit is how many calls may be in flight.
	Limit int

	// RetryAfter is when to try again. It grows with the share of the calls
	// that are refused, so that those that come back are no overload again.
	RetryAfter time.Duration
}

// Error describes which limit is reached, and when to try again.
func (e *FullError) Error() string {
	return fmt.Sprintf("%v: limit %d, %v priority, retry after %v", ErrFull, e.Limit, e.Priority, e.RetryAfter)
}

// Is reports whether the target is [ErrFull].
func (e *FullError) Is(target error) bool { return target == ErrFull }
