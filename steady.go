package penstock

import "time"

// A steady clock counts nanoseconds, and nobody sets it. What wraps a store
// remembers things for a while, and goes by this.
type steady struct {
	base time.Time
	now  func() time.Time // nil for the machine's own
}

func newSteady(now func() time.Time) steady { return steady{base: time.Now(), now: now} }

// read returns the time, which is never 0.
func (s *steady) read() int64 {
	if s.now != nil {
		return max(s.now().UnixNano(), 1)
	}
	return int64(time.Since(s.base)) + 1
}
