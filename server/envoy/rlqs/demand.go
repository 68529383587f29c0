package rlqs

import (
	"math"
	"time"
)

// A demand estimates how many requests a proxy has for a bucket, by its reports. It goes by
// the times at which reports arrive: the times in reports are whole seconds, and the
// caller's choice.
type demand struct {
	rate     float64       // requests per second
	known    bool          // whether there is a rate
	interval time.Duration // between reports
	reported time.Time     // when the last report arrived
	busy     time.Time     // when the last report with requests arrived
	since    time.Time     // the begin of what requests counts
	requests float64       // reported since then
}

const (
	// unknownInterval is assumed until the second report, so that the first assignment
	// does not expire before it: it is valid for a minute.
	unknownInterval = 20 * time.Second
	minInterval     = time.Second
	maxInterval     = time.Minute

	// minSpan is the shortest time over which a rate is measured.
	minSpan = 500 * time.Millisecond

	maxRate = 1e12 // requests per second; a report may claim any number
)

// report adds a report.
func (d *demand) report(now time.Time, allowed, denied uint64) {
	requests := float64(allowed) + float64(denied)
	if requests > 0 || d.busy.IsZero() {
		d.busy = now
	}
	d.reported = now
	if d.since.IsZero() { // its requests have no duration
		d.since, d.interval = now, unknownInterval
		return
	}
	d.requests += requests
	if span := now.Sub(d.since); span >= minSpan {
		d.measure(span)
		d.since, d.requests = now, 0
	}
}

// measure updates the estimates. The rate rises at once, so that a proxy that denies gets
// more with its next report, and falls by half, so that one quiet interval costs little.
func (d *demand) measure(span time.Duration) {
	rate := min(d.requests/span.Seconds(), maxRate)
	if rate < d.rate {
		rate = (rate + d.rate) / 2
	}
	if !d.known || span > d.interval {
		d.interval = span
	} else {
		d.interval += (span - d.interval) / 4
	}
	d.rate, d.known = rate, true
	d.interval = min(max(d.interval, minInterval), maxInterval)
}

// within returns how many requests are expected in a span of time, at least one.
func (d *demand) within(span time.Duration) int64 {
	return max(int64(math.Ceil(min(d.rate*span.Seconds(), math.MaxUint32))), 1)
}

// silent reports whether reports have stopped to arrive, though the stream is open.
func (d *demand) silent(now time.Time) bool {
	return now.Sub(d.reported) > d.timeToLive()
}

// timeToLive returns how long an assignment is valid: three reports, so that one that is
// late or lost does not matter, and in whole seconds, because Envoy drops the rest.
func (d *demand) timeToLive() time.Duration {
	return wholeSeconds(3 * (d.interval + time.Second))
}

// wholeSeconds rounds up.
func wholeSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}
