package rlqs

import (
	"math"
	"time"
)

// A lease is units that a proxy was assigned. It is valid until it expires, and void when
// its window ends.
type lease struct {
	units   int64
	number  int32     // tells it from the lease before
	granted time.Time // when it was assigned
	sent    time.Time // when it was assigned or extended
	expires time.Time // at the proxy, if it received the message at once
	ends    time.Time // the end of its window; zero if the limit has none
	used    int64     // reported since it was granted
}

// void reports whether a proxy can no longer spend the lease, or should not.
func (l *lease) void(now time.Time) bool {
	return l.units == 0 || !now.Before(l.expires) || !l.ends.IsZero() && !now.Before(l.ends)
}

// held estimates how many units a proxy still has.
func (l *lease) held(now time.Time, d *demand) int64 {
	if l.void(now) {
		return 0
	}
	since := l.granted
	if d.reported.After(since) {
		since = d.reported
	}
	expected := d.rate * now.Sub(since).Seconds()
	return max(l.units-l.used-int64(min(expected, math.MaxUint32)), 0)
}

// report adds what a proxy let pass.
func (l *lease) report(allowed uint64) {
	l.used += int64(min(allowed, math.MaxUint32))
	l.used = min(l.used, l.units)
}

// extendable reports whether the proxy surely has the lease when a message about it arrives.
// A message that is sent later could find it expired, and begin it anew.
func (l *lease) extendable(now time.Time) bool {
	return !l.void(now) && !now.After(l.safeUntil())
}

// safeUntil returns until when the lease may be extended.
func (l *lease) safeUntil() time.Time { return l.sent.Add(l.expires.Sub(l.sent) / 2) }

// extend makes the lease valid for another time to live.
func (l *lease) extend(now time.Time, ttl time.Duration) {
	l.sent, l.expires = now, now.Add(l.timeToLive(now, ttl))
}

// timeToLive returns how long the lease is valid if it is sent now: not beyond its window,
// but for less than a second.
func (l *lease) timeToLive(now time.Time, ttl time.Duration) time.Duration {
	if l.ends.IsZero() {
		return ttl
	}
	return min(ttl, max(wholeSeconds(l.ends.Sub(now)), time.Second))
}
