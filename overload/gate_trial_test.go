package overload

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

func TestRateTestTellsSlowerCallsFromPause(t *testing.T) {
	var r rateTest
	for _, before := range []float64{changeCalls - 1, 50} { // calls that ended just before the pause
		r = rateTest{}
		if got := r.add(0.5, 1000, before, clearChange); got != 1 {
			t.Errorf("a pause after %g calls: calls take %g times as long, want 1", before, got)
		}
	}
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

// transcript runs a trial of a gate that has a limit, and believes in a number of workers. Calls now take a tenth of a
// second each at a server that works on so many of them at once. Of those that the trial admits, so many are there.
func transcript(limit, believed, workers, offered float64) string {
	var lines strings.Builder
	rate := func(inFlight float64) float64 { return min(inFlight, workers) / 1e8 }
	t := &trial{workers: believed, most: 100, from: limit, before: departures{4, 4 / rate(limit)}}
	if !t.begin(believed+1, min(limit, offered)) {
		return "no trial\n"
	}
	for calls := 1; ; calls++ {
		held, inFlight := t.limit, min(t.limit, offered)
		d := departures{1, 1 / rate(inFlight)}
		if t.settle > 0 { // those that end now began at the limit before
			d = departures{1, 1 / rate(min(t.from, offered))}
		}
		filled := d
		if !t.fills(inFlight) {
			filled = departures{}
		}
		c := t.add(d, filled, inFlight)
		if c == noConclusion && calls < 1000 {
			continue
		}
		fmt.Fprintf(&lines, "held %g for %d calls: %s\n", held, calls, [...]string{"?", "rate follows", "calls queue", "calls are slow", "too few"}[c])
		if calls = 0; c != nextLimit {
			break
		}
	}
	return fmt.Sprintf("%slimit %g, workers %.3g\n", &lines, t.from, t.workers)
}

// The limit of the last line is that from which the trial went on last.
var trialTranscripts = []struct {
	what                              string
	limit, believed, workers, offered float64
	want                              string
}{
	{"far too high a limit, and as many calls end at the three that two workers need", 20, 2, 2, 50, `
held 3 for 36 calls: calls queue
limit 20, workers 2
`},
	{"no faster with twice the limit", 8, 5, 5, 50, `
held 16 for 17 calls: calls queue
limit 8, workers 5
`},
	{"calls wait for something else: the rate follows the limit, down and then up", 20, 2, 50, 90, `
held 3 for 25 calls: rate follows
held 40 for 43 calls: rate follows
held 80 for 64 calls: calls are slow
limit 40, workers 0
`},
	{"the rate follows up to half of the most", 40, 30, 1000, 1000, `
held 80 for 120 calls: calls are slow
limit 80, workers 0
`},
	{"eight workers, of which one was known: a quarter of the calls end at two", 20, 1, 8, 50, `
held 2 for 28 calls: calls queue
limit 20, workers 8
`},
	{"the crowd has gone, so that twice the limit is not filled", 8, 5, 5, 6, `
held 16 for 38 calls: too few
limit 8, workers 5
`},
	{"no faster with twice the limit, and the workers are not known", 8, math.Inf(1), 5, 50, `
held 16 for 17 calls: calls queue
limit 8, workers +Inf
`},
	{"they are not known, and the rate follows until all calls are there", 8, math.Inf(1), 50, 25, `
held 16 for 24 calls: rate follows
held 32 for 116 calls: too few
limit 16, workers 0
`},
	{"a low limit is not doubled", 4, 3, 3, 50, "\nno trial\n"},
	{"nor is one beyond half of the most", 99, 90, 90, 500, "\nno trial\n"},
}

func TestTrialTranscripts(t *testing.T) {
	for _, c := range trialTranscripts {
		if got := "\n" + transcript(c.limit, c.believed, c.workers, c.offered); got != c.want {
			t.Errorf("%s: got %s\nwant %s", c.what, got, c.want)
		}
	}
}

// A finder ends with what the workers need if calls queue, and with more calls if they do not.
func TestLimitFinderConcludesTrial(t *testing.T) {
	unknowing := newLimitFinder(20, 1000)
	for _, c := range []struct {
		f           *limitFinder
		workers     float64
		conclusion  conclusion
		limit, base float64 // milliseconds
	}{
		{knowing(), 2, callsQueue, 3.2, 50},
		{&unknowing, 2, callsQueue, 3.2, 50},
		{knowing(), math.Inf(1), callsQueue, 8, 10},
		{knowing(), 2, callsAreSlow, 8, 200},
		{knowing(), 2, tooFewCalls, 16, 10},
	} {
		f, tr := c.f, &trial{workers: c.workers, from: 8, limit: 16, before: departures{16, 4e8}}
		f.conclude(tr, c.conclusion, 2e-7, 1)
		if math.Abs(f.limit-c.limit) > 0.1 || f.baseMillis() != c.base {
			t.Errorf("conclusion %d: limit %.3g, %g ms without queueing, want %g and %g ms", c.conclusion, f.limit, f.baseMillis(), c.limit, c.base)
		}
	}
}

// gateInTrial returns a gate with eight calls in flight, of which a trial doubles the limit at the next check.
func gateInTrial(t *testing.T) *Gate {
	t.Helper()
	g := NewGate(&GateOptions{MaxLimit: 1000})
	g.delay = nil
	g.control.finder.limit = 8
	g.publish()
	for range 8 {
		if !g.tryEnter(1) {
			t.Fatal("the gate is full too early")
		}
	}
	g.curve.trial = &trial{workers: 0, most: 1000, from: 4, limit: 8, before: departures{16, 4e8}, after: departures{40, 4e8}}
	return g
}

// A trial that raises the limit while a call asks admits those that wait, and not only when the next one leaves.
func TestGateTrialAdmitsWaitingCalls(t *testing.T) {
	g := gateInTrial(t)
	held := g.curve.trial
	g.curve.trial = nil
	now := g.clock.Now()
	g.meter.checkAt.Store(math.MaxInt64)
	g.curve.dueAt.Store(math.MaxInt64)
	w, _ := g.ask(now, Normal)
	if w == nil || w.granted != 0 {
		t.Fatal("the call does not wait")
	}
	g.curve.trial = held
	g.curve.dueAt.Store(now + 1)
	if _, wait := g.ask(now+1, Normal); wait == 0 || limitOf(g.word.Load()) != 16 {
		t.Fatalf("limit %d, want 16, and the second call admitted", limitOf(g.word.Load()))
	}
	if w.granted == 0 {
		t.Error("the call that waited was not admitted")
	}
}

// A change that is noticed during a probe ends it: the limit from before is in force, calls know of no probe, and a
// new cohort measures them.
func TestGateNoticedChangeEndsProbe(t *testing.T) {
	g := gateInTrial(t)
	c, f := &g.curve, &g.control.finder
	c.trial, c.few, c.took = nil, 3, 1e7
	f.limit, f.probing, f.resume = 2, true, 4
	g.publish()
	if !g.meter.probing.Load() {
		t.Fatal("calls do not know of the probe")
	}
	for range 40 {
		g.noticeChange(math.MaxInt64/2, curveSample{all: departures{1, 1e7}, expected: 3})
	}
	if limitOf(g.word.Load()) != 4 || g.meter.probing.Load() || c.trial != nil {
		t.Errorf("limit %d, probing %t, trial %+v, want 4, no probe and no trial", limitOf(g.word.Load()), g.meter.probing.Load(), c.trial)
	}
	if g.meter.from.Load() != math.MaxInt64/2 {
		t.Error("the cohort of the probe goes on")
	}
}

// A limit that is halved because calls wait for a processor during a trial ends it, so that the limit stays low.
func TestGateHalvedLimitEndsTrial(t *testing.T) {
	g := gateInTrial(t)
	g.delay = &delayMeter{procs: func() int { return 1 }}
	g.meter.refused.Store(1)
	now := g.clock.Now()
	g.checkDelay(now, 50e6)
	g.checkCurve(now + curveEvery)
	if limitOf(g.word.Load()) != 4 || g.curve.trial != nil {
		t.Errorf("limit %d, trial %+v, want half of 8 and no trial", limitOf(g.word.Load()), g.curve.trial)
	}
}

// Six calls in flight fill a limit of five only if fewer than two of them hang.
func TestDepartureCurveDoesNotCountHungCallsInTrial(t *testing.T) {
	for hung, want := range map[float64]float64{0: 1, 1: 1, 2: 0} {
		c := departureCurve{trial: &trial{from: 4, limit: 5}}
		c.changed(1e6, 6, 1)
		if got := c.collectStates(2e6, 0, hung).filled.ended; got != want {
			t.Errorf("%g of six calls hang: got %g calls that ended while the limit was filled, want %g", hung, got, want)
		}
	}
}
