package redisstore

import "time"

// What tests need that others must not have.

// SetWallClock makes this process take another time for that of the day.
func SetWallClock(ahead time.Duration) {
	wallClock = func() time.Time { return time.Now().Add(ahead) }
}

// Share returns another store that goes through the connections of the first, and
// ends with it.
func (s *Store) Share(o Options) (*Store, error) {
	opts, err := o.withDefaults()
	return newStore(s.client, opts), err
}
