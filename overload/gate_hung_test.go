//go:build !race

package overload

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/internal/simulation/simserver"
)

// A wave is a time in which some of the calls of a server end in other ways than by being served.
type wave struct {
	millis, rate int
	hang         int // calls in a thousand that never end
	late         int // that end a long time after they hung
	fail, cancel int // that end at once
}

func drawWave(t *rapid.T) wave {
	share := func(name string) int { return rapid.SampledFrom([]int{0, 0, 0, 5, 100, 900, 1000}).Draw(t, name) }
	return wave{
		millis: rapid.SampledFrom([]int{20, 300, 700, 1500, 4000}).Draw(t, "millis"),
		rate:   rapid.SampledFrom([]int{20, 300, 1000}).Draw(t, "rate"),
		hang:   share("hang"), late: share("late"), fail: share("fail"), cancel: share("cancel"),
	}
}

const longestHang = 5e9

// ends is the trouble of the wave.
func (w wave) ends(r *rand.Rand) (took int64, o Outcome, happens bool) {
	switch n := r.IntN(1000); {
	case n < w.hang:
		return never, Success, true
	case n < w.hang+w.late:
		return 1e9 + r.Int64N(longestHang-1e9), Outcome(r.IntN(3)), true
	case n < w.hang+w.late+w.fail:
		return r.Int64N(5e6), Failure, true
	case n < w.hang+w.late+w.fail+w.cancel:
		return r.Int64N(5e6), Canceled, true
	}
	return 0, Success, false
}

// A wavesRun is a server of ten workers of 10 ms under waves, how long nobody was admitted, and the most calls in flight.
type wavesRun struct {
	*simRun
	lastAt, longest, longestAt int64
	most                       int
	served                     departures
}

// A timedServer counts the calls that it has served, and what they took.
type timedServer struct {
	simserver.Server
	*simulation
	served *departures
}

func (s *timedServer) Serve(work int64, done func()) {
	start := s.now
	s.Server.Serve(work, func() {
		s.served.add(departures{1, float64(s.now - start)})
		done()
	})
}

func runWaves(seed uint64, o GateOptions, waves []wave) *wavesRun {
	w := &wavesRun{}
	at := func(now int64) wave {
		for _, one := range waves {
			if now -= int64(one.millis) * 1e6; now < 0 {
				return one
			}
		}
		return waves[len(waves)-1]
	}
	server := func(s *simulation) simserver.Server { return &timedServer{pool(10)(s), s, &w.served} }
	w.simRun = newSimRun(seed, o, server, workload{
		rate:     func(now int64) float64 { return float64(at(now).rate) },
		work:     simserver.Exponential(mean),
		priority: func(r *rand.Rand) Priority { return Priority(r.IntN(3)) },
	})
	w.instead = func(r *rand.Rand, now int64) (int64, Outcome, bool) {
		w.admitted(now)
		return at(now).ends(r)
	}
	until := int64(0)
	for _, one := range waves {
		until += int64(one.millis) * 1e6
	}
	w.run(until)
	w.admitted(until)
	return w
}

func (w *wavesRun) admitted(now int64) {
	if now-w.lastAt > w.longest {
		w.longest, w.longestAt = now-w.lastAt, w.lastAt
	}
	w.lastAt, w.most = now, max(w.most, inFlight(w.gate.word.Load()))
}

// bound is how long a call counts that hangs, by what the others take, and two seconds.
func (w *wavesRun) bound(waves []wave) int64 {
	usual := int64(2 * w.served.nanos / max(w.served.ended, 1)) // in one window of many
	if hasLate(waves) {
		usual = longestHang // may be usual for a while
	}
	return max(hungAfter, hungMeans*usual) + int64(2*time.Second)
}

func hasLate(waves []wave) bool {
	return slices.ContainsFunc(waves, func(one wave) bool { return one.late > 0 })
}

// Whatever hung before, somebody is admitted soon.
func TestGateAdmitsSomebodyWhateverHangs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		waves := rapid.SliceOfN(rapid.Custom(drawWave), 1, 6).Draw(t, "waves")
		o := GateOptions{
			MaxLimit: rapid.SampledFrom([]int{1, 3, 0}).Draw(t, "MaxLimit"),
			MaxWait:  rapid.SampledFrom([]time.Duration{-1, 0, 5 * time.Second}).Draw(t, "MaxWait"),
		}
		after := wave{millis: 3000, rate: 20}
		if hasLate(waves) {
			after = wave{millis: 110_000, rate: 5}
		}
		w := runWaves(rapid.Uint64().Draw(t, "seed"), o, append(waves, after))
		bound := w.bound(waves)
		if w.longest > bound {
			t.Fatalf("nobody was admitted for %v from %v on, want at most %v: %+v, base %v",
				time.Duration(w.longest), time.Duration(w.longestAt), time.Duration(bound), w.gate.Stats(), base(w.simRun))
		}
	})
}

// Calls that hang fill what others that hung before made room for, and again.
func TestGateAdmitsSomebodyAfterEachWaveThatHangs(t *testing.T) {
	for _, good := range []int{0, 1000} {
		now := int64(1)
		g := NewGate(&GateOptions{MaxWait: -1, Now: func() time.Time { return time.Unix(0, now) }})
		for range good {
			now += 1e6
			pass, err := g.Enter(t.Context(), Normal)
			if err != nil {
				t.Fatal(err)
			}
			now += 5e6
			pass.Leave(Success)
		}
		for wave := range 6 {
			for g.tryEnter(now) { // and never leaves
			}
			filled := now
			for !enters(t, g) {
				if now += 10e6; now-filled > hungAfter+int64(time.Second) {
					t.Fatalf("after %d good calls, wave %d: nobody was admitted for %v: %+v", good, wave, time.Duration(now-filled), g.Stats())
				}
			}
		}
	}
}

func enters(t *testing.T, g *Gate) bool {
	_, err := g.Enter(t.Context(), Normal)
	return err == nil
}

// Where a dependency hangs for ten minutes, as many calls as the limit get in each half second at most, and the limit does
// not grow.
func TestGateLetsFewCallsHang(t *testing.T) {
	now := int64(1)
	g := NewGate(&GateOptions{MaxWait: -1, Now: func() time.Time { return time.Unix(0, now) }})
	begin := now
	for entered := 0; now < 600e9; now += 20e6 {
		for enters(t, g) {
			entered++
		}
		if most := startLimit * (1 + int((now-begin)/hungAfter)); entered > most {
			t.Fatalf("after %v: %d calls are in flight, want at most %d", time.Duration(now), entered, most)
		}
	}
	if s := g.Stats(); s.Limit-s.Hung > startLimit || s.InFlight > s.Limit {
		t.Errorf("got %+v, want a limit of %d beside those that hang", s, startLimit)
	}
}

// What calls take is measured too high beside calls that hang: here by one that ends, hours after the others began.
func TestGateFullOfHungCallsWaitsOnlyByCallsThatEnded(t *testing.T) {
	for _, idle := range []time.Duration{0, time.Second, time.Minute, time.Hour, 24 * time.Hour} {
		now := int64(1)
		g := NewGate(&GateOptions{MaxWait: -1, Now: func() time.Time { return time.Unix(0, now) }})
		for range startLimit - 1 {
			g.tryEnter(now) // and never leaves
		}
		now += int64(idle)
		for range 20 {
			start := now
			if !g.tryEnter(now) {
				t.Fatalf("idle for %v: no room beside %+v", idle, g.Stats())
			}
			now += 1e6
			g.leave(start, Success, now)
			now += 200e6
		}
		for wave := range 3 {
			for g.tryEnter(now) {
			}
			filled := now
			for !enters(t, g) {
				if now += 10e6; now-filled > 2*hungAfter+int64(100*time.Millisecond) {
					t.Fatalf("idle for %v, wave %d: nobody was admitted for %v: %+v, %v without queueing",
						idle, wave, time.Duration(now-filled), g.Stats(), time.Duration(g.control.finder.baseLatency()))
				}
			}
		}
	}
}

// Calls that hung and end together are no crowd that needs room.
func TestGateMakesNoRoomForHungCallsThatEnd(t *testing.T) {
	const rate, stall, until = 5000, 10e9, 25e9
	s := newSimulation(1)
	g := NewGate(&GateOptions{MaxWait: -1, Now: func() time.Time { return time.Unix(0, s.now) }})
	limit, before, most := func() int { s := g.Stats(); return s.Limit - s.Hung }, 0, 0
	var arrive func()
	arrive = func() {
		s.After(1e9/rate, arrive)
		start, took := s.now, int64(mean)
		if !enters(t, g) {
			return
		}
		if s.now >= stall && s.now < until {
			took = until - s.now + s.random.Int64N(100e6)
		}
		s.After(took, func() { g.leave(start, Success, s.now) })
		if s.now < stall {
			before = limit()
		}
		most = max(most, limit())
	}
	s.After(0, arrive)
	s.run(until - 1)
	hung := g.Stats().Hung
	s.run(until + 10e9)
	if hung < 10*before || most > 4*before+4 {
		t.Errorf("%d calls hung at a limit of %d, and then it was %d, want at most room for four times as many", hung, before, most)
	}
}

// A server of few workers that has become slow ends a call now and then, and none of its calls hangs.
func TestGateTakesFewSlowCallsForHung(t *testing.T) {
	const slowAt, slower, most = 20e9, 100, 100
	for _, workers := range []int{1, 2} {
		for seed := range uint64(3) {
			load := workload{
				rate: func(now int64) float64 {
					if now < slowAt {
						return float64(workers) * 50
					}
					return float64(workers) * 200 / slower // twice the capacity
				},
				work: func(r *rand.Rand, now int64) int64 {
					if now < slowAt {
						return int64(r.ExpFloat64() * mean)
					}
					return int64(r.ExpFloat64() * mean * slower)
				},
			}
			r, inGate := newSimRun(seed, GateOptions{MaxWait: -1}, pool(workers), load), 0
			for now := int64(0); now < slowAt+180e9; now += 100e6 {
				r.run(now)
				inGate = max(inGate, r.gate.Stats().InFlight)
			}
			if inGate > most {
				t.Errorf("%d workers, seed %d: %d calls were in flight, want at most %d: %+v", workers, seed, inGate, most, r.gate.Stats())
			}
		}
	}
}

// Nobody comes after a call that waits, and it gets its turn.
func TestGateLooksForHungCallsWhileOneWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := NewGate(&GateOptions{MaxWait: time.Minute, Now: time.Now})
		for range startLimit {
			if !enters(t, g) {
				t.Fatal("no room in a new gate")
			}
		}
		begin := time.Now()
		if !enters(t, g) || time.Since(begin) > 2*time.Second {
			t.Errorf("waited for %v, and the gate is %+v", time.Since(begin), g.Stats())
		}
	})
}

// A fixed limit counts calls that hang, until they end.
func TestGateWithFixedLimitRefusesOnlyWhileFull(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(1, 40).Draw(t, "limit")
		o := GateOptions{Limit: limit, MaxWait: rapid.SampledFrom([]time.Duration{-1, 0, 5 * time.Second}).Draw(t, "MaxWait")}
		waves := rapid.SliceOfN(rapid.Custom(drawWave), 1, 4).Draw(t, "waves")
		for i := range waves {
			waves[i].hang = 0
		}
		w := runWaves(rapid.Uint64().Draw(t, "seed"), o, append(waves, wave{millis: 10_000, rate: 20}))
		if s := w.gate.Stats(); w.longest > longestHang+int64(time.Second) || w.most > limit || s.Limit != limit || s.Hung != 0 {
			t.Fatalf("nobody was admitted for %v, though calls hang for %v at most; %d were in flight: %+v",
				time.Duration(w.longest), time.Duration(longestHang), w.most, s)
		}
	})
}
