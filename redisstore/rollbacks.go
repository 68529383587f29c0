package redisstore

import (
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
)

// A grantName names what is granted under an ID.
type grantName struct{ key, id string }

// awaitRollBacks waits until no grant under the IDs of the requests is being refunded in the background: a refund that came
// after a retry would take back what it was granted.
func (s *Store) awaitRollBacks(d *deadline, rs []penstock.Request, items []takeAllItem) error {
	for i := range rs {
		if rs[i].ID == "" {
			continue
		}
		for _, ended := range s.rollBacks.Of(grantName{items[i].key, rs[i].ID}) {
			d.waitIn(s.limiterOf(s.nodeOfKey(items[i].key))) // as the refund does
			select {
			case <-ended:
				d.set(time.Now(), d.timeout, d.latest)
			case <-d.Done():
				return requestError(i, fmt.Errorf("redisstore: take all: %w: %w", whyEnded(d), errRollingBack))
			}
		}
	}
	return nil
}

// whyEnded returns why a call ended without an answer, as callError does.
func whyEnded(d *deadline) error {
	switch ended := d.callerErr(); {
	case ended != nil:
		return endedError(ended, d.busy())
	case d.busy():
		return penstock.ErrBusy
	}
	return penstock.ErrUnavailable
}

var errRollingBack = errors.New("an earlier call under this ID is being rolled back")
