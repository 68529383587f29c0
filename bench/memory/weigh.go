package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// A weight is what a limiter's keys cost in memory and to the collector.
type weight struct {
	Name    string
	Keys    int
	Bytes   float64 // heap bytes a key
	Objects float64 // heap objects a key
	GC      time.Duration
}

// weighVar asks a process to weigh one contestant, as "keys name", and to print
// the weight as JSON instead of doing anything else. Each is weighed in a
// process of its own because a heap remembers what was in it before.
const weighVar = "PENSTOCK_BENCH_WEIGH"

// weighElsewhere starts this same program again to weigh one contestant.
func weighElsewhere(name string, keys int) (weight, error) {
	var w weight
	exe, err := os.Executable()
	if err != nil {
		return w, err
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d %s", weighVar, keys, name))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return w, fmt.Errorf("weighing %s: %w", name, err)
	}
	return w, json.Unmarshal(out, &w)
}

// weighIfAsked answers weighElsewhere, and says whether there was anything to
// answer.
func weighIfAsked() (asked bool, err error) {
	order, asked := os.LookupEnv(weighVar)
	if !asked {
		return false, nil
	}
	count, name, _ := strings.Cut(order, " ")
	keys, err := strconv.Atoi(count)
	if err != nil {
		return true, fmt.Errorf("%s: %w", weighVar, err)
	}
	for _, s := range weighables() {
		if s.name == name {
			w, err := s.weigh(keys)
			if err != nil {
				return true, err
			}
			return true, json.NewEncoder(os.Stdout).Encode(w)
		}
	}
	return true, fmt.Errorf("%s: nobody is called %q", weighVar, name)
}

// A weighable is a contestant that is full after so many visits to each key.
type weighable struct {
	contestant
	visits int
}

// weighables are penstock in the forms that have a target, and the rivals.
func weighables() []weighable {
	log := slidingLog
	log.once = slidingLog.roomy
	ws := []weighable{
		{form{name: "token-bucket", once: tokenBucket(once)}.contestant(), 1},
		{log.contestant(), logCount},
	}
	for _, f := range forms(1) {
		ws = append(ws, weighable{f.contestant(), 1})
	}
	for _, c := range keyed(rivals) {
		ws = append(ws, weighable{c, 1})
	}
	return ws
}

// weigh fills the contestant, weighs it, and proves that all was there: the
// visits that fill a key pass, and the one after them, when the weighing is
// done, does not.
func (s weighable) weigh(keys int) (weight, error) {
	before := heap()
	l, err := s.open(once, keys)
	if err != nil {
		return weight{}, err
	}
	for range s.visits {
		if err := s.visit(l, keys, 0); err != nil {
			return weight{}, err
		}
	}
	after := heap()
	w := weight{
		Name: s.name, Keys: keys, GC: bestCollection(),
		Bytes:   (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / float64(keys),
		Objects: math.Max(0, float64(after.HeapObjects)-float64(before.HeapObjects)) / float64(keys),
	}
	return w, s.visit(l, keys, keys)
}

// visit takes every key once, of which so many must be denied.
func (s weighable) visit(l limiter, keys, denied int) error {
	t, err := fill(l, 0, keys)
	if err == nil && t.denied != denied {
		err = fmt.Errorf("%s: %d of %d keys were denied, want %d", s.name, t.denied, keys, denied)
	}
	return err
}

func heap() runtime.MemStats {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m
}

// bestCollection is the shortest of five forced collections.
func bestCollection() time.Duration {
	best := time.Duration(math.MaxInt64)
	for range 5 {
		begin := time.Now()
		runtime.GC()
		best = min(best, time.Since(begin))
	}
	return best
}

// weights weighs a million live keys in every form and in every rival.
func (b *bench) weights() error {
	most := map[string]float64{
		"token-bucket": 40, "leaky-bucket": 40, "fixed-window": 56, "sliding-window": 56,
	}
	for _, s := range weighables() {
		if s.visits > 1 {
			continue
		}
		b.say("weight of %s keys: %s", measure.Thousands(b.sizes.million), s.name)
		w, err := weighElsewhere(s.name, b.sizes.million)
		if err != nil {
			return err
		}
		b.report.weights = append(b.report.weights, w)
		if bytes := most[strings.TrimPrefix(s.name, "penstock ")]; bytes > 0 {
			b.report.findWeight(w, bytes, 2*time.Millisecond)
		}
	}
	return nil
}

// logWeight weighs keys whose logs are full.
func (b *bench) logWeight() error {
	name := slidingLog.contestant().name
	b.say("weight of %s full logs", measure.Thousands(b.sizes.logs))
	w, err := weighElsewhere(name, b.sizes.logs)
	if err != nil {
		return err
	}
	b.report.weights = append(b.report.weights, w)
	b.report.findWeight(w, 1000, 0)
	return nil
}

// findWeight is the finding of a weight: at most so many bytes a key and, where
// that is not zero, at most so long a collection.
func (r *report) findWeight(w weight, bytes float64, gc time.Duration) {
	target := fmt.Sprintf("≤ %.0f bytes a key", bytes)
	if gc > 0 {
		target += fmt.Sprintf(", forced GC ≤ %s", gc)
	}
	title := fmt.Sprintf("memory, %s live keys, %s", measure.Thousands(w.Keys), strings.TrimPrefix(w.Name, "penstock "))
	r.Add(title, target, w.Bytes <= bytes && (gc == 0 || w.GC <= gc),
		"%.1f bytes a key, forced GC %s", w.Bytes, millis(w.GC))
}
