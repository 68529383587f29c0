package penstock

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// patience is how long a caller waits for somebody else's answer about the same
// key before it asks for itself. It is a small part of what a call may take, so
// that a store which hangs keeps nobody for much longer than that.
const patience = 5 * time.Millisecond

// mostPatience is how long it waits if one answer after the other comes and there is
// nothing in it for the caller, because others were there first.
const mostPatience = 10 * patience

// flights are calls under way whose answers others are waiting for. Most calls
// are not among them.
type flights struct {
	mu      sync.Mutex
	landing map[uint64]chan struct{}
}

// join returns a channel that is closed when the call about a hash is back.
func (f *flights) join(hash uint64) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.landing == nil {
		f.landing = map[uint64]chan struct{}{}
	}
	if f.landing[hash] == nil {
		f.landing[hash] = make(chan struct{})
	}
	return f.landing[hash]
}

// land lets those who wait for a hash go on.
func (f *flights) land(hash uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if landed := f.landing[hash]; landed != nil {
		close(landed)
		delete(f.landing, hash)
	}
}

// await returns when a call is back or the wait was long enough. An error means
// that the caller's own time was up before.
func await(ctx context.Context, landed <-chan struct{}, most time.Duration) error {
	t := time.NewTimer(most)
	defer t.Stop()
	select {
	case <-landed:
		return nil
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("penstock: waiting for an answer about the same key: %w", ctx.Err())
	}
}
