package overload_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock/overload"
)

// A streamFixture opens streams to one service on a clock that the test advances.
type streamFixture struct {
	*testing.T
	*timeline
	group *overload.BreakerGroup
}

func newStreamFixture(t *testing.T) *streamFixture {
	t.Helper()
	f := &streamFixture{T: t, timeline: newTimeline()}
	f.group = overload.NewBreakerGroup(&overload.BreakerGroupOptions{
		BreakerOptions: overload.BreakerOptions{Now: func() time.Time { return f.now }},
	})
	return f
}

func (f *streamFixture) open() *overload.StreamCall {
	f.Helper()
	s, err := f.group.AllowStream("a")
	if err != nil {
		f.Fatal(err)
	}
	return s
}

func (f *streamFixture) expectOpen(what string, want bool) {
	f.Helper()
	if got := len(f.group.Open()) > 0; got != want {
		f.Errorf("%s: is the breaker open: got %v, want %v", what, got, want)
	}
}

func (f *streamFixture) breakIt() {
	f.Helper()
	for range 9 {
		f.open().Done(overload.Failure)
	}
	f.expectOpen("nine failures", true)
}

func TestStreamCallHangsFromWhenItIsAwaited(t *testing.T) {
	f := newStreamFixture(t)
	var streams []*overload.StreamCall
	for range 9 {
		streams = append(streams, f.open())
	}
	f.run(time.Hour) // the client has not sent anything
	f.open().Done(overload.Canceled)
	f.expectOpen("before the service had anything to answer", false)
	for _, s := range streams {
		s.Await()
	}
	f.run(900 * time.Millisecond)
	f.open().Done(overload.Canceled)
	f.expectOpen("before Slow", false)
	f.run(300 * time.Millisecond)
	if _, err := f.group.AllowStream("a"); !errors.Is(err, overload.ErrOpen) {
		t.Errorf("after Slow: %v, want an OpenError", err)
	}
	for _, s := range streams {
		s.Answered()
		s.Done(overload.Success)
	}
	f.expectOpen("late answers", true)
}

func TestStreamCallIsNeverSlowOnceAnswered(t *testing.T) {
	f := newStreamFixture(t)
	for range 20 {
		s := f.open()
		s.Await()
		s.Answered()
		f.run(time.Hour)
		s.Done(overload.Success)
	}
	f.expectOpen("long streams", false)
}

func TestStreamCallThatFailsLaterCountsOnce(t *testing.T) {
	f := newStreamFixture(t)
	for n := range 9 {
		f.expectOpen("before nine failures", false)
		s := f.open()
		s.Await()
		s.Answered()
		f.run(time.Minute)
		s.Done(overload.Failure)
		s.Done(overload.Failure) // has no effect
		if n < 8 {
			f.open().Done(overload.Canceled)
		}
	}
	f.expectOpen("nine streams that failed after they were answered", true)
}

func TestStreamCallThatWasTooSlowCountsOnce(t *testing.T) {
	f := newStreamFixture(t)
	for range 8 {
		s := f.open()
		s.Await()
		f.run(1200 * time.Millisecond)
		s.Answered()
		s.Done(overload.Failure)
	}
	f.expectOpen("eight failures", false)
}

// Streams that go on are successes already: or else nine that fail would open the breaker,
// however many do not.
func TestStreamCallAnsweredIsASuccessAtOnce(t *testing.T) {
	f := newStreamFixture(t)
	for range 100 {
		f.open().Answered()
		f.open().Answered()
		f.open().Done(overload.Failure)
	}
	f.expectOpen("a third of the streams fail", false)
}

// A service that dies ends all its streams at once.
func TestStreamCallsThatAllFailOpenTheBreaker(t *testing.T) {
	f := newStreamFixture(t)
	var streams []*overload.StreamCall
	for range 9 {
		s := f.open()
		s.Answered()
		streams = append(streams, s)
	}
	for _, s := range streams[:8] {
		s.Done(overload.Failure)
	}
	f.expectOpen("eight of nine", false)
	streams[8].Done(overload.Failure)
	f.expectOpen("nine of nine", true)
}

func TestStreamCallOfEarlierGenerationMeansNothing(t *testing.T) {
	f := newStreamFixture(t)
	var streams []*overload.StreamCall
	for range 20 {
		s := f.open()
		s.Await()
		s.Answered()
		streams = append(streams, s)
	}
	f.breakIt()
	f.run(3 * time.Second)
	probe := f.open()
	probe.Await()
	probe.Answered()
	f.expectOpen("answered probe", false)
	for _, s := range streams {
		s.Done(overload.Failure)
	}
	f.expectOpen("streams from before the breaker opened", false)
	probe.Done(overload.Success)
}

func TestStreamCallProbeClosesBreakerWhenAnswered(t *testing.T) {
	f := newStreamFixture(t)
	f.breakIt()
	f.run(3 * time.Second)
	lost := f.open() // its caller never sends anything
	f.run(3 * time.Second)
	probe := f.open()
	probe.Await()
	lost.Answered()
	f.expectOpen("answer to a probe that timed out", true)
	probe.Answered()
	f.expectOpen("answer to the probe", false)
	probe.Done(overload.Success)
	lost.Done(overload.Canceled)
}

func TestStreamCallMethodsAreSafeForConcurrentUse(t *testing.T) {
	noTimePasses := overload.BreakerOptions{Now: func() time.Time { return time.Unix(1_000_000, 0) }}
	g := overload.NewBreakerGroup(&overload.BreakerGroupOptions{MaxKeys: 1, BreakerOptions: noTimePasses})
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 200 {
				s, err := g.AllowStream("a")
				if err != nil {
					t.Error(err)
					return
				}
				var one sync.WaitGroup
				one.Go(s.Await)
				one.Go(s.Answered)
				one.Go(func() { s.Done(overload.Canceled) })
				one.Wait()
			}
		})
	}
	all.Wait()
	breakKey(g, "b") // there is room for its breaker only if no stream is in flight
	if keys := g.Open(); !slices.Equal(keys, []string{"b"}) {
		t.Errorf("open: %q, want b", keys)
	}
}

func TestStreamCallWithoutBreakerIsHarmless(t *testing.T) {
	g := overload.NewBreakerGroup(&overload.BreakerGroupOptions{MaxKeys: 1})
	breakKey(g, "a")
	s, err := g.AllowStream("b")
	if err != nil {
		t.Fatal(err)
	}
	s.Await()
	s.Answered()
	s.Done(overload.Failure)
}
