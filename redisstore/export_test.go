package redisstore

import (
	"context"
	"time"
)

// What tests need that others must not have.

// SetWallClock makes this process take another time for that of the day.
func SetWallClock(ahead time.Duration) {
	wallClock = func() time.Time { return time.Now().Add(ahead) }
}

// Share returns another store that goes through the connections of the first, and
// ends with it.
func (s *Store) Share(o Options) (*Store, error) {
	return open(context.Background(), s.client, &o)
}
