// Package monotime provides a monotonic clock that counts in nanoseconds. Steps of
// the machine's wall clock do not move it.
package monotime

import (
	"context"
	"time"
)

// A Clock measures ages and deadlines in the wrappers of a store.
type Clock struct {
	base time.Time
	now  func() time.Time // nil for the machine's monotonic clock
}

// New returns a clock that reads now, or the machine's monotonic clock if now is
// nil.
func New(now func() time.Time) Clock { return Clock{base: time.Now(), now: now} }

// Now returns the time in nanoseconds since an arbitrary origin. It is never 0,
// so callers can use 0 for "not set".
func (c *Clock) Now() int64 {
	if c.now != nil {
		return max(c.now().UnixNano(), 1)
	}
	return int64(time.Since(c.base)) + 1
}

// Sleep waits for d. If ctx ends first, it returns the error of ctx.
func Sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
