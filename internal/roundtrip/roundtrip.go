// Package roundtrip measures how long a server takes to answer, and says what that means for a daemon whose
// calls end after a timeout.
package roundtrip

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// A server that stalls now and then is fast in between, so it is measured for a while.
const (
	measureFor   = 2 * time.Second
	measureEvery = 25 * time.Millisecond
)

// Trips are how long calls took.
type Trips []time.Duration

// Measure makes calls for two seconds. It ends with the first error; but a call that has no answer in its own time is the
// last trip if others were answered.
func Measure(ctx context.Context, call func(context.Context) error) (t Trips, err error) {
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	for start := time.Now(); time.Since(start) < measureFor; <-tick.C {
		began := time.Now()
		err := call(ctx)
		if err == nil {
			t.add(time.Since(began))
			continue
		}
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil && len(t) > 0 {
			t.add(time.Since(began))
			return t, nil
		}
		return nil, err
	}
	return t, nil
}

// add adds a trip, and those that would have begun while it lasted: other callers do not wait for it.
func (t *Trips) add(trip time.Duration) {
	for ; trip > measureEvery; trip -= measureEvery {
		*t = append(*t, trip)
	}
	*t = append(*t, trip)
}

// An Assessment says what trips mean for a daemon.
type Assessment struct {
	Grade  Grade
	Detail string // the middle and the slowest
	Advice string // unless they are fast
}

// A Grade says how often a daemon would decide without the server.
type Grade int

// The grades.
const (
	Fast    Grade = iota // never
	Slow                 // seldom
	Failing              // a tenth of its calls would be cut off
)

// Assess says what the trips mean for a daemon whose calls end after a timeout. There is at least one trip.
func (t Trips) Assess(timeout time.Duration) (v Assessment) {
	slices.Sort(t)
	middle, slowest, late := t[len(t)/2], t[len(t)-1], 0
	for _, trip := range t {
		if trip > timeout {
			late++
		}
	}
	v.Detail = fmt.Sprintf("%v, the slowest of %d %v", middle.Round(time.Microsecond), len(t), slowest.Round(time.Microsecond))
	switch {
	case 10*late >= len(t):
		v.Grade = Failing
	case late > 0 || middle > timeout/2:
		v.Grade = Slow
	default:
		return v
	}
	v.Advice = fmt.Sprintf("calls end after %v, which would have cut off %d of %d: find what stops the server or the network, or use a closer server or a longer timeout", timeout, late, len(t))
	return v
}
