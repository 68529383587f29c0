package redisstore

import (
	"cmp"
	"errors"
	"fmt"

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
			select {
			case <-ended:
			case <-d.Done():
				// As that of callError, this is not ErrUnavailable if the caller's context has ended.
				why := cmp.Or(d.callerErr(), penstock.ErrUnavailable)
				return requestError(i, fmt.Errorf("redisstore: take all: %w: %w", why, errRollingBack))
			}
		}
	}
	return nil
}

var errRollingBack = errors.New("an earlier call under this ID is being rolled back")
