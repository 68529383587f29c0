package storetest

import (
	"fmt"
	"sync/atomic"
	"time"
)

// tick is the resolution of the clock of a store under test.
const tick = time.Millisecond

// A Clock is the clock of a store under test. It stands still until a test sets it,
// forward or back. No test sets it during a call of the store.
type Clock struct {
	nanos     atomic.Int64 // since 1970
	followers []func(now time.Time) error
}

// Now returns the time, in whole milliseconds. Pass it to a store that accepts a clock.
func (c *Clock) Now() time.Time { return time.Unix(0, c.nanos.Load()).UTC() }

// Follow calls set with the time, at once and whenever a test changes it. It is for
// stores whose clock is elsewhere, such as in a server process: when set returns, the
// store must use the new time. If set fails, so does the test.
func (c *Clock) Follow(set func(now time.Time) error) error {
	c.followers = append(c.followers, set)
	return set(c.Now())
}

// set changes the time, and calls the followers.
func (c *Clock) set(now time.Time) error {
	c.nanos.Store(now.UnixNano())
	for _, follow := range c.followers {
		if err := follow(now); err != nil {
			return fmt.Errorf("setting the store's clock to %s: %w", now.Format(time.RFC3339Nano), err)
		}
	}
	return nil
}
