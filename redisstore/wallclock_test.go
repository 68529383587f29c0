package redisstore

import "time"

// SetWallClock makes this process take another time for that of the day.
func SetWallClock(ahead time.Duration) {
	wallClock = func() time.Time { return time.Now().Add(ahead) }
}
