package roundtrip

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A server that stalls is measured while it does and while it does not. One that stops is measured until then.
func TestMeasureSeesStalls(t *testing.T) {
	errOther := errors.New("no rights")
	for _, c := range []struct {
		name   string
		call   func(n int, since time.Duration) (trip time.Duration, err error)
		trips  int
		err    error
		grade  Grade
		detail string
	}{
		{"fast", func(int, time.Duration) (time.Duration, error) { return time.Millisecond, nil }, 80, nil, Fast, "1ms, the slowest of 80 1ms"},
		{"250 of every 300 ms", func(_ int, since time.Duration) (time.Duration, error) {
			return max(250*time.Millisecond-since%(300*time.Millisecond), 0), nil
		}, 82, nil, Failing, "slowest of 82 250ms"},
		{"once", func(n int, _ time.Duration) (time.Duration, error) {
			return map[bool]time.Duration{true: 110 * time.Millisecond}[n == 7], nil
		}, 81, nil, Slow, "slowest of 81 110ms"},
		{"stops", func(n int, _ time.Duration) (time.Duration, error) {
			if n == 5 {
				return 2 * time.Second, context.DeadlineExceeded
			}
			return 0, nil
		}, 85, nil, Failing, "slowest of 85 2s"},
		{"never answers", func(int, time.Duration) (time.Duration, error) { return time.Second, context.DeadlineExceeded }, 0, context.DeadlineExceeded, 0, ""},
		{"refuses", func(n int, _ time.Duration) (time.Duration, error) {
			return 0, map[bool]error{true: errOther}[n == 3]
		}, 0, errOther, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, start := 0, time.Now()
				trips, err := Measure(t.Context(), func(context.Context) error {
					trip, err := c.call(n, time.Since(start))
					n++
					time.Sleep(trip)
					return err
				})
				if !errors.Is(err, c.err) || len(trips) != c.trips {
					t.Fatalf("%d trips, %v, want %d, %v", len(trips), err, c.trips, c.err)
				}
				if err != nil {
					return
				}
				if v := trips.Assess(100 * time.Millisecond); v.Grade != c.grade || !strings.HasSuffix(v.Detail, c.detail) {
					t.Errorf("%+v, want grade %d, %s", v, c.grade, c.detail)
				}
			})
		})
	}
}

// Calls of other callers do not wait for one that stalls: all that would have begun meanwhile are counted.
func TestTripsCountThoseThatWouldHaveBegunMeanwhile(t *testing.T) {
	var trips Trips
	trips.add(60 * time.Millisecond)
	if want := (Trips{60 * time.Millisecond, 35 * time.Millisecond, 10 * time.Millisecond}); !slices.Equal(trips, want) {
		t.Errorf("got %v, want %v", trips, want)
	}
}

// A server that stalls most of the time is not healthy because it is fast in between.
func TestAssessCountsTripsThatADaemonCutsOff(t *testing.T) {
	fast, slow := 66*time.Microsecond, 250*time.Millisecond
	for _, c := range []struct {
		slow   int
		grade  Grade
		detail string
	}{
		{0, Fast, "66µs, the slowest of 40 66µs"},
		{1, Slow, "66µs, the slowest of 40 250ms"},
		{4, Failing, "66µs, the slowest of 40 250ms"},
		{30, Failing, "250ms, the slowest of 40 250ms"},
	} {
		v := slices.Concat(slices.Repeat(Trips{slow}, c.slow), slices.Repeat(Trips{fast}, 40-c.slow)).Assess(100 * time.Millisecond)
		if v.Grade != c.grade || v.Detail != c.detail || (v.Advice == "") != (c.grade == Fast) || c.slow > 0 && !strings.Contains(v.Advice, fmt.Sprintf("cut off %d of 40", c.slow)) {
			t.Errorf("%d slow trips: %+v, want grade %d, %s", c.slow, v, c.grade, c.detail)
		}
	}
}
