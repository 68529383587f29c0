package overload

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

func TestRateTestTellsSlowerCallsFromPause(t *testing.T) {
	var r rateTest
	for _, before := range []float64{changeCalls - 1, 50} { // calls that ended just before the pause
		r = rateTest{}
		if got := r.add(0.5, 1000, before, clearChange); got != 1 {
			t.Errorf("a pause after %g calls: calls take %g times as long, want 1", before, got)
		}
	}
	r = rateTest{}
	for range 3 { // so few calls are chance, however long they take
		if got := r.add(0.5, 1000, 2, clearChange); got != 1 {
			t.Errorf("six calls: they take %g times as long, want 1", got)
		}
	}
	r = rateTest{}
	r.add(0.5, 1000, 50, clearChange)
	for range 30 {
		if got := r.add(0.5, 1, 1, clearChange); got != 1 {
			t.Fatalf("after a pause: calls take %g times as long, want 1", got)
		}
	}
	factor, calls := 1.0, 0
	for ; factor == 1 && calls < 100; calls++ {
		factor = r.add(0.5, 3, 1, clearChange)
	}
	if factor < 2 || calls > 20 {
		t.Errorf("a third of the rate: found %g after %d calls, want 2 or more within 20", factor, calls)
	}
}

// A trialServer works on so many calls at once, which take milliseconds each. Its clients offer so many at once.
type trialServer struct{ workers, millis, offered float64 }

// at is what a gate with a limit measures in a window.
func (s trialServer) at(limit float64) measurement {
	limit = math.Round(limit)
	inFlight := min(limit, s.offered)
	return measurement{
		took: math.Log(s.millis * 1e6 * max(inFlight/s.workers, 1)), variance: 0.001,
		inFlight: inFlight, peak: inFlight, full: s.offered > limit, seconds: 0.2,
	}
}

// transcript runs a finder until trials hardly differ. It has a line for each trial: the calls in flight and what they
// took, in it and before.
func transcript(f limitFinder, s trialServer) string {
	var lines strings.Builder
	var was, of measurement // the last trial
	for range 1000 {
		before, m := f, s.at(f.limit)
		f.update(m)
		if !before.trying {
			continue
		}
		if isAbout(m.inFlight, was.inFlight) && isAbout(before.origin.inFlight, of.inFlight) {
			break
		}
		was, of = m, before.origin
		fmt.Fprintf(&lines, "%.0f instead of %.0f: %.0f ms instead of %.0f\n", was.inFlight, of.inFlight, millis(was.took), millis(of.took))
	}
	return fmt.Sprintf("\n%slimit %.0f, %.0f ms without queueing\n", &lines, f.limit, millis(f.base))
}

func isAbout(a, b float64) bool { return math.Abs(a-b) <= max(0.15*b, 1) }

func millis(took float64) float64 { return math.Exp(took) / 1e6 }

// started is a finder of a process that has just started.
func started(limit, most float64) *limitFinder {
	f := newLimitFinder(limit, most)
	return &f
}

// noticing is a finder that knows a latency of 10 ms, few workers, and that these have become slower.
func noticing(limit, few float64, s trialServer) *limitFinder {
	f := knowing()
	f.limit, f.starting = limit, false
	m := s.at(limit)
	m.workers = few
	f.try(m)
	return f
}

var (
	fewSlow  = trialServer{workers: 2, millis: 30, offered: 50}
	manySlow = trialServer{workers: 64, millis: 100, offered: 200}
)

var trialTranscripts = []struct {
	what   string
	f      *limitFinder
	server trialServer
	want   string
}{
	{"calls queue for two workers", knowing(), trialServer{2, 10, 50}, `
7 instead of 13: 35 ms instead of 65
2 instead of 3: 10 ms instead of 15
limit 3, 10 ms without queueing
`},
	{"calls take longer, and queue for ten workers", knowing(), trialServer{10, 30, 50}, `
7 instead of 13: 30 ms instead of 39
3 instead of 6: 30 ms instead of 30
11 instead of 3: 33 ms instead of 30
22 instead of 11: 66 ms instead of 31
6 instead of 13: 30 ms instead of 39
limit 12, 30 ms without queueing
`},
	{"calls wait for something else, up to all that come", knowing(), trialServer{math.Inf(1), 100, 90}, `
7 instead of 13: 100 ms instead of 100
27 instead of 7: 100 ms instead of 100
53 instead of 27: 100 ms instead of 100
90 instead of 53: 100 ms instead of 100
limit 364, 100 ms without queueing
`},
	{"they queue for something else", knowing(), manySlow, `
7 instead of 13: 100 ms instead of 100
27 instead of 7: 100 ms instead of 100
53 instead of 27: 100 ms instead of 100
107 instead of 53: 167 ms instead of 100
36 instead of 72: 100 ms instead of 112
limit 69, 100 ms without queueing
`},
	{"a start in an overload of three workers", started(20, 1000), trialServer{3, 10, 500}, `
40 instead of 20: 133 ms instead of 67
11 instead of 23: 37 ms instead of 77
6 instead of 11: 20 ms instead of 37
3 instead of 6: 10 ms instead of 20
1 instead of 3: 10 ms instead of 10
limit 4, 10 ms without queueing
`},
	{"a start in an overload of ten workers", started(20, 1000), trialServer{10, 10, 500}, `
40 instead of 20: 40 ms instead of 20
11 instead of 23: 11 ms instead of 23
6 instead of 11: 10 ms instead of 11
6 instead of 13: 10 ms instead of 13
limit 12, 10 ms without queueing
`},
	{"a start in an overload, by hardly more calls than the limit", started(20, 1000), trialServer{10, 10, 34}, `
34 instead of 20: 34 ms instead of 20
11 instead of 23: 11 ms instead of 23
6 instead of 11: 10 ms instead of 11
6 instead of 13: 10 ms instead of 13
limit 12, 10 ms without queueing
`},
	{"a start at a large server", started(20, 1000), trialServer{320, 10, 1000}, `
40 instead of 20: 10 ms instead of 10
80 instead of 40: 10 ms instead of 10
160 instead of 80: 10 ms instead of 10
320 instead of 160: 10 ms instead of 10
640 instead of 320: 20 ms instead of 10
171 instead of 341: 10 ms instead of 11
limit 331, 10 ms without queueing
`},
	{"a start at a large server, up to half of the most", started(20, 100), trialServer{320, 10, 1000}, `
40 instead of 20: 10 ms instead of 10
80 instead of 40: 10 ms instead of 10
50 instead of 100: 10 ms instead of 10
limit 100, 10 ms without queueing
`},
	{"known two workers are three times slower", noticing(20, 2, fewSlow), fewSlow, `
3 instead of 20: 45 ms instead of 300
1 instead of 3: 30 ms instead of 45
limit 3, 30 ms without queueing
`},
	{"they are, and the limit is hardly what they need", noticing(5, 2, fewSlow), fewSlow, `
10 instead of 5: 150 ms instead of 75
3 instead of 5: 45 ms instead of 75
2 instead of 3: 30 ms instead of 45
limit 3, 30 ms without queueing
`},
	{"known two workers wait for something else", noticing(20, 2, manySlow), manySlow, `
3 instead of 20: 100 ms instead of 100
40 instead of 3: 100 ms instead of 100
80 instead of 40: 125 ms instead of 100
160 instead of 80: 250 ms instead of 125
45 instead of 90: 100 ms instead of 141
35 instead of 70: 100 ms instead of 109
limit 69, 100 ms without queueing
`},
	{"they do, and the limit is hardly what they need", noticing(5, 2, manySlow), manySlow, `
10 instead of 5: 100 ms instead of 100
20 instead of 10: 100 ms instead of 100
40 instead of 20: 100 ms instead of 100
80 instead of 40: 125 ms instead of 100
160 instead of 80: 250 ms instead of 125
45 instead of 90: 100 ms instead of 141
35 instead of 70: 100 ms instead of 109
limit 69, 100 ms without queueing
`},
}

func TestTrialTranscripts(t *testing.T) {
	for _, c := range trialTranscripts {
		if got := transcript(*c.f, c.server); got != c.want {
			t.Errorf("%s: got %s\nwant %s", c.what, got, c.want)
		}
	}
}

// By chance the rate may seem not to follow limits that are too low already. What they have shown of base, and the
// rate before, say how many workers there are.
func TestTrialHalvesReturnToWorkers(t *testing.T) {
	f := started(20, 1000)
	f.setBase(measured(100, 20, 0.001))
	f.try(measured(100, 20, 0.001))
	for _, m := range []measurement{measured(60, 8, 0.02), measured(43, 4, 0.02)} {
		if f.conclude(m); !f.trying {
			t.Fatalf("no other trial after %.0f calls in flight", m.inFlight)
		}
	}
	f.conclude(measured(44, 2, 0.02))
	if want := 8.7 + f.surplus(8.7); f.trying || math.Abs(f.limit-want) > 0.1 {
		t.Errorf("limit %.2g, trying %t, want %.2g: 20 calls in flight took 100 ms, and take 43.5 without queueing", f.limit, f.trying, want)
	}
}

// gateInTrial returns a full gate in which a trial of twice the limit has just shown that the rate follows.
func gateInTrial(t *testing.T) *Gate {
	t.Helper()
	g := NewGate(&GateOptions{MaxLimit: 1000, Now: func() time.Time { return time.Unix(0, 1) }})
	f := &g.control.finder
	f.limit = 4
	f.hold(measured(50, 4, 0.01), 8)
	g.publish()
	for range 8 {
		if !g.tryEnter(1) {
			t.Fatal("the gate is full too early")
		}
	}
	g.control.window = windowOf(400*time.Millisecond, 64, 8)
	g.control.window.refused = 64
	return g
}

// A trial that raises the limit while a call asks admits those that wait, and not only when the next one leaves.
func TestGateTrialAdmitsWaitingCalls(t *testing.T) {
	g := gateInTrial(t)
	g.meter.dueAt.Store(math.MaxInt64)
	w, _ := g.ask(1, Normal)
	if w == nil || w.granted != 0 {
		t.Fatal("the call does not wait")
	}
	g.meter.dueAt.Store(tickEvery)
	if _, wait := g.ask(tickEvery, Normal); wait == 0 || limitOf(g.word.Load()) != 16 {
		t.Fatalf("limit %d, want 16, and the second call admitted", limitOf(g.word.Load()))
	}
	if w.granted == 0 {
		t.Error("the call that waited was not admitted")
	}
}

// A limit that is halved because calls wait for a processor during a trial ends it, so that the limit stays low.
func TestGateHalvedLimitEndsTrial(t *testing.T) {
	g := gateInTrial(t)
	g.delay = &delayMeter{procs: func() int { return 1 }}
	g.control.refusing = true
	g.checkDelay(1, 50e6)
	g.check(1 + tickEvery)
	if limitOf(g.word.Load()) != 4 || g.control.finder.trying || g.control.window.nanos != 0 {
		t.Errorf("limit %d, trying %t, want half of 8, no trial and no window of it", limitOf(g.word.Load()), g.control.finder.trying)
	}
}

// notice gives a gate the evidence that its three workers have become slower.
func notice(g *Gate) {
	g.curve.few, g.curve.took = 3, 1e7
	for range 40 {
		g.noticeChange(&sample{all: departures{1, 1e7}, expected: 3})
	}
}

// During a trial the rate says more about the limit than about the workers. After it, the gate tries what they need, and
// the window has none of the calls so far.
func TestGateNoticesChangeOnlyAfterTrial(t *testing.T) {
	g := gateInTrial(t)
	f := &g.control.finder
	f.limit = 20
	f.hold(measured(50, 20, 0.01), 8)
	if notice(g); !f.trying || f.origin.workers != 0 || f.limit != 8 || g.curve.slower.evidence != 0 {
		t.Errorf("trying %t, workers %g, limit %g, evidence %g, want the trial of 8 to go on", f.trying, f.origin.workers, f.limit, g.curve.slower.evidence)
	}
	f.trying, f.limit = false, 20
	notice(g)
	if want := 3 + f.surplus(3); !f.trying || f.origin.workers != 3 || f.resume != 20 || f.limit != want || limitOf(g.word.Load()) != 4 {
		t.Errorf("trying %t, resume %g, limit %g, in force %d, want a trial of %.3g instead of 20", f.trying, f.resume, f.limit, limitOf(g.word.Load()), want)
	}
	if g.control.settle < 4 || g.control.window.nanos != 0 {
		t.Errorf("%g calls to end, window of %g ns, want those in flight, and another window", g.control.settle, g.control.window.nanos)
	}
}

// A gate that is not full has room for what comes, and its latency may rise.
func TestGateNoticesChangeOnlyIfFull(t *testing.T) {
	g := gateInTrial(t)
	g.control.finder.trying = false
	g.leave(1, Success, 1)
	before := limitOf(g.word.Load())
	if notice(g); g.control.finder.trying || limitOf(g.word.Load()) != before {
		t.Errorf("limit %d, trying %t, want %d and no trial", limitOf(g.word.Load()), g.control.finder.trying, before)
	}
}
