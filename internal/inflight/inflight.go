// Package inflight coalesces concurrent calls about the same key: one caller makes
// the call, and the others wait for it to finish.
package inflight

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// MaxWait is how long a caller waits for another caller's call before it makes
// its own. It is a small part of a call's timeout, so if the store hangs, waiting
// adds little to the caller's own timeout.
const MaxWait = 5 * time.Millisecond

// Calls tracks the calls in flight that other callers wait for. A call without
// waiters needs no entry. The zero value is ready to use.
type Calls struct {
	mu      sync.Mutex
	waiting map[uint64]chan struct{}
}

// Wait returns a channel that [Calls.Done] closes when the call for a hash has
// finished.
func (c *Calls) Wait(hash uint64) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.waiting == nil {
		c.waiting = map[uint64]chan struct{}{}
	}
	if c.waiting[hash] == nil {
		c.waiting[hash] = make(chan struct{})
	}
	return c.waiting[hash]
}

// Done wakes all callers that wait for the call for a hash.
func (c *Calls) Done(hash uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if done := c.waiting[hash]; done != nil {
		close(done)
		delete(c.waiting, hash)
	}
}

// Await returns when done is closed or maxWait has passed. It returns an error only
// if ctx ended first.
func Await(ctx context.Context, done <-chan struct{}, maxWait time.Duration) error {
	t := time.NewTimer(maxWait)
	defer t.Stop()
	select {
	case <-done:
		return nil
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("penstock: waiting for a call in flight for the same key: %w", ctx.Err())
	}
}
