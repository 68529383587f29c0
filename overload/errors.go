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
