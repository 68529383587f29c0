package main

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// A memoryUse is the memory and GC cost of a limiter's keys.
type memoryUse struct {
	Name    string
	Keys    int
	Bytes   float64 // heap bytes a key
	Objects float64 // heap objects a key
	GC      time.Duration
}

// weighInChild measures the memory of one contender in a process of its own, because earlier
// allocations change the heap.
func weighInChild(name string, keys int) (w memoryUse, err error) {
	err = runInChild("weigh", name, keys, &w)
	return w, err
}

// weighByName measures the memory of one contender.
func weighByName(name string, keys int) (memoryUse, error) {
	for _, s := range weighables() {
		if s.name == name {
			return s.weigh(keys)
		}
	}
	return memoryUse{}, fmt.Errorf("unknown contender %q", name)
}

// A weighable is a contender that is full after so many visits to each key.
type weighable struct {
	contender
	visits int
}

// weighables are penstock's variants and the rivals.
func weighables() []weighable {
	log := slidingLog
	log.once = slidingLog.ample
	ws := []weighable{
		{variant{name: "token-bucket", once: tokenBucket(once)}.contender(), 1},
		{log.contender(), logCount},
	}
	for _, f := range variants(1) {
		ws = append(ws, weighable{f.contender(), 1})
	}
	for _, c := range keyed(rivals) {
		ws = append(ws, weighable{c, 1})
	}
	return ws
}

// weigh fills the contender, measures its memory, and verifies that every key was live:
// the visits that fill a key are allowed, and one more after the measurement is denied.
func (s weighable) weigh(keys int) (w memoryUse, err error) {
	err = retryAfterHour(time.Now, func() error {
		w, err = s.weighFilled(keys)
		return err
	})
	return w, err
}

func (s weighable) weighFilled(keys int) (memoryUse, error) {
	before := heap()
	l, err := s.open(once, keys)
	if err != nil {
		return memoryUse{}, err
	}
	for range s.visits {
		if err := s.visit(l, keys, 0); err != nil {
			return memoryUse{}, err
		}
	}
	after := heap()
	w := memoryUse{
		Name: s.name, Keys: keys, GC: bestCollection(),
		Bytes:   (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / float64(keys),
		Objects: math.Max(0, float64(after.HeapObjects)-float64(before.HeapObjects)) / float64(keys),
	}
	return w, s.visit(l, keys, keys)
}

// visit takes every key once; so many must be denied.
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

// weights measures the memory of a million live keys, for every variant and rival.
func (b *bench) weights() error {
	most := map[string]float64{
		"token-bucket": 40, "leaky-bucket": 40, "fixed-window": 56, "sliding-window": 56,
	}
	for _, s := range weighables() {
		if s.visits > 1 {
			continue
		}
		b.logf("weight of %s keys: %s", measure.Thousands(b.sizes.million), s.name)
		w, err := weighInChild(s.name, b.sizes.million)
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

// logWeight measures the memory of full logs.
func (b *bench) logWeight() error {
	name := slidingLog.contender().name
	b.logf("weight of %s full logs", measure.Thousands(b.sizes.logs))
	w, err := weighInChild(name, b.sizes.logs)
	if err != nil {
		return err
	}
	b.report.weights = append(b.report.weights, w)
	b.report.findWeight(w, 1000, 0)
	return nil
}

// findWeight adds the finding of a memory use: at most so many bytes a key and, if that
// is not zero, at most so long a collection.
func (r *report) findWeight(w memoryUse, bytes float64, gc time.Duration) {
	target := fmt.Sprintf("≤ %.0f bytes a key", bytes)
	if gc > 0 {
		target += fmt.Sprintf(", forced GC ≤ %s", gc)
	}
	title := fmt.Sprintf("memory, %s live keys, %s", measure.Thousands(w.Keys), strings.TrimPrefix(w.Name, "penstock "))
	r.Add(title, target, w.Bytes <= bytes && (gc == 0 || w.GC <= gc),
		"%.1f bytes a key, forced GC %s", w.Bytes, millis(w.GC))
}
