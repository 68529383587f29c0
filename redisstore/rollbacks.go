package redisstore

import (
	"errors"
	"fmt"
	"sync"

	"github.com/penstock-io/penstock"
)

// rollBacks are the refunds in the background. A retry under the same ID waits for them: a
// refund that came after it would take back what it was granted.
type rollBacks struct {
	mu       sync.Mutex
	inFlight map[grantName]chan struct{} // closed at the end
}

// A grantName names what is granted under an ID.
type grantName struct{ key, id string }

// begin begins a roll-back, which the result ends. It ends after those before it on its grants.
func (r *rollBacks) begin(grants []grantName) (end func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.inFlight == nil {
		r.inFlight = map[grantName]chan struct{}{}
	}
	done, before := make(chan struct{}), []chan struct{}(nil)
	for _, g := range grants {
		if earlier := r.inFlight[g]; earlier != nil && earlier != done {
			before = append(before, earlier)
		}
		r.inFlight[g] = done
	}
	return func() {
		for _, earlier := range before {
			<-earlier
		}
		r.remove(grants, done)
		close(done)
	}
}

func (r *rollBacks) remove(grants []grantName, done chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range grants {
		if r.inFlight[g] == done {
			delete(r.inFlight, g)
		}
	}
}

// wait waits until no grant under the IDs of the requests is being rolled back.
func (r *rollBacks) wait(d *deadline, rs []penstock.Request, items []takeAllItem) error {
	for i := range rs {
		r.mu.Lock()
		done := r.inFlight[grantName{items[i].key, rs[i].ID}]
		r.mu.Unlock()
		if rs[i].ID == "" || done == nil {
			continue
		}
		select {
		case <-done:
		case <-d.Done():
			return requestError(i, rollBackError(d))
		}
	}
	return nil
}

var errRollingBack = errors.New("an earlier call under this ID is being rolled back")

// rollBackError returns the error of a call that has waited until its deadline. As that of
// callError, it is not [penstock.ErrUnavailable] if the caller's context has ended.
func rollBackError(d *deadline) error {
	if ended := d.callerErr(); ended != nil {
		return fmt.Errorf("redisstore: take all: %w: %w", ended, errRollingBack)
	}
	return fmt.Errorf("redisstore: take all: %w: %w", penstock.ErrUnavailable, errRollingBack)
}
