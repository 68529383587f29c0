package regions

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/fixedseed"
)

// The simulation runs regions that are up to 250 ms from a home, over networks that fail, with clocks that
// disagree, while regions lose their pools or get an older state of them, and are cut off. A seed chooses a world:
//
//	go test ./regions -run TestWorldsKeepTheBound -regions.worlds 1 -regions.seed 42
var (
	firstSeed = flag.Uint64("regions.seed", 1, "seed of the first simulated world")
	worlds    = flag.Int("regions.worlds", defaultWorlds, "how many worlds to simulate")
)

var defaultWorlds = fixedseed.FewerUnderRace(40)

var worldLimits = []string{
	"1000/1m", "600/1m burst=300", "100/1s", "40/1s burst=20", "3000/1h burst=500",
	"500/20s fixed-window align=clock", "60/5s fixed-window align=clock", "400/20s sliding-window", "300/20s sliding-log", "300/20s rolling-window",
}

func TestWorldsKeepTheBound(t *testing.T) {
	used, events := 0, map[string]int{}
	if testing.Short() && *worlds == defaultWorlds {
		*worlds = max(*worlds/5, 2)
	}
	for n := range *worlds {
		seed := *firstSeed + uint64(n)
		w := runWorld(t, seed, mutation{}, events)
		if over, allowed := w.over(), w.excess(); over > allowed {
			t.Errorf("seed %d: %s exceeded by %d, of which %d may be", seed, w, over, allowed)
		}
		used += w.allowed
	}
	for _, what := range []string{"cut", "deaf", "flush", "older state", "clock forward"} {
		if events[what] == 0 && *worlds >= 40 {
			t.Errorf("no %s in %d worlds: the test covers less than it should", what, *worlds)
		}
	}
	t.Logf("%d worlds granted %d units; %v", *worlds, used, events)
}

// Without any one of its safeguards, the bound breaks. The world is the one that needs them most: pools are filled, home
// becomes idle, and then all regions take all that they can.
func TestWorldsNeedEachSafeguard(t *testing.T) {
	const bucket, window = "1200/1m", "1200/1m fixed-window align=clock"
	for _, test := range []struct {
		name, limit string
		mutation
	}{
		{"nothing is taken out", bucket, mutation{}},
		{"nothing is taken out of a window", window, mutation{}},
		{"home keeps units free", bucket, mutation{nothingFree: true}},
		{"a lot needs its claim", bucket, mutation{lateDeposits: true}},
		{"a claim counts what is left", bucket, mutation{pendingFree: true}},
		{"an absent pool is empty", bucket, mutation{absentIsFull: true}},
		{"the processes of a region share its pools", bucket, mutation{eachProcess: true}},
		{"units end with their window", window, mutation{endless: true}},
	} {
		t.Run(test.name, func(t *testing.T) {
			broken, over := test.mutation != (mutation{}), int64(0)
			for seed := uint64(1); seed <= 200 && over == 0; seed++ { // what happens at one instant does so in any order
				over = rushOver(t, seed, parseLimit(t, test.limit), test.mutation)
				if !broken && (seed == 2 || testing.Short()) {
					break
				}
			}
			if broken != (over > 0) {
				t.Errorf("exceeds %s by %d", test.limit, over)
			}
		})
	}
}

func parseLimit(t *testing.T, text string) penstock.Limit {
	t.Helper()
	l, err := penstock.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// rushOver returns by how much the regions exceed a limit when they rush in after a pause.
func rushOver(t *testing.T, seed uint64, l penstock.Limit, m mutation) (over int64) {
	t.Helper()
	const ms = time.Millisecond
	inBubble(t, func(t *testing.T) {
		w := newWorld(t, seed, l, Settings{Pool: 0.5, Age: time.Hour}, m, 3, 20*ms, 80*ms, 150*ms, 250*ms)
		at := func(rate float64) func(int, time.Duration) float64 {
			return func(int, time.Duration) float64 { return rate }
		}
		late := func(share float64) {
			for _, r := range w.regions {
				w.set(func() { r.toDeposit.late = share })
			}
		}
		if m == (mutation{}) || m.lateDeposits {
			late(0.7)
		}
		w.load(time.Now().Truncate(time.Minute).Add(3*time.Minute-time.Second), 1, at(4))
		late(0)
		time.Sleep(2 * time.Second) // the next window
		if l.IsBucket() {
			time.Sleep(2 * time.Minute) // home is idle, and pools are not
		}
		w.load(time.Now().Add(5*time.Second), 1, at(200))
		for _, r := range w.regions {
			r.restorePools(map[string]*memoryPool{})
		}
		w.load(time.Now().Add(2*time.Second), 1, at(200))
		time.Sleep(time.Minute) // late messages
		over = w.over()
	})
	return over
}

func (w *world) String() string {
	return fmt.Sprintf("%v over %d regions", w.limit, len(w.regions))
}

// excess returns what the bound allows beyond the limit: what a region held, each time that it came back with an
// older state.
func (w *world) excess() int64 {
	return int64(w.restored) * SizesOf(w.limit, w.settings, len(w.regions), w.farthest()).Hold
}

func (w *world) farthest() (most time.Duration) {
	for _, r := range w.regions {
		most = max(most, r.toHome.roundTrip)
	}
	return most
}

// inBubble runs a simulation on one processor, so goroutines run in the order in which they are woken, except
// under the race detector, which shuffles those that are ready.
func inBubble(t *testing.T, run func(t *testing.T)) {
	t.Helper()
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, run)
}

// runWorld runs one random world.
func runWorld(t *testing.T, seed uint64, m mutation, events map[string]int) (w *world) {
	t.Helper()
	inBubble(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(seed, 1))
		limit := parseLimit(t, worldLimits[rng.IntN(len(worldLimits))])
		trips := make([]time.Duration, 2+rng.IntN(9))
		for i := range trips {
			trips[i] = time.Duration(1+rng.IntN(250)) * time.Millisecond
		}
		settings := Settings{Pool: []float64{0, 0, 0.05, 0.5, 0.9}[rng.IntN(5)], Age: time.Duration(1+rng.IntN(15)) * time.Second}
		w = newWorld(t, seed, limit, settings, m, 1+rng.IntN(3), trips...)
		w.batches = seed%2 == 0
		for _, r := range w.regions {
			r.offset = time.Duration(rng.Int64N(int64(6*time.Hour))) - 3*time.Hour
			r.drift = (rng.Float64() - 0.5) / 1000
			r.toHome.loss, r.toPool.loss, r.toPool.late, r.toDeposit.late = rng.Float64()/20, rng.Float64()/100, rng.Float64()/50, rng.Float64()/5
		}
		time.Sleep(time.Duration(rng.Int64N(int64(time.Minute))))
		end := time.Now().Add(30 * time.Second)
		go w.breakThings(rand.New(rand.NewPCG(seed, 2)), end, events)
		mean := float64(limit.Count) / limit.Period.Seconds() * (0.5 + 3*rng.Float64())
		mean = min(max(mean, 5), 150)
		hot := rng.IntN(len(trips))
		w.load(end, 1+rng.Int64N(3), func(i int, at time.Duration) float64 {
			switch {
			case int(at.Seconds())%10 < 2: // all rest, and then come at once
				return 0
			case i == hot:
				return mean
			}
			return mean / float64(len(trips))
		})
		time.Sleep(time.Minute) // late messages
	})
	return w
}

// breakThings lets regions fail, one after the other.
func (w *world) breakThings(rng *rand.Rand, end time.Time, events map[string]int) {
	for time.Now().Before(end) {
		time.Sleep(time.Duration(rng.Int64N(int64(4 * time.Second))))
		r := w.regions[rng.IntN(len(w.regions))]
		pause := time.Duration(rng.Int64N(int64(5 * time.Second)))
		switch what := []string{"cut", "deaf", "flush", "older state", "clock forward", "clock back"}[rng.IntN(6)]; what {
		case "cut", "deaf":
			events[what]++
			w.set(func() { r.toHome.cut, r.toHome.deaf = what == "cut", what == "deaf" })
			time.Sleep(pause)
			w.set(func() { r.toHome.cut, r.toHome.deaf = false, false })
		case "flush":
			events[what]++
			r.restorePools(map[string]*memoryPool{})
		case "older state":
			if w.restored >= 1 {
				continue
			}
			kept := r.keepPools()
			time.Sleep(pause)
			events[what]++
			r.restorePools(kept)
			w.restored++
		case "clock forward":
			events[what]++
			w.set(func() { r.offset += pause })
		case "clock back":
			if w.limit.Algorithm != penstock.FixedWindow { // whose units need the duration of a clock
				events[what]++
				w.set(func() { r.offset -= pause })
			}
		}
	}
}

func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// sleep sleeps in a bubble.
func sleep(d time.Duration) { time.Sleep(d) }
