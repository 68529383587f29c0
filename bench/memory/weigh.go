package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// A memoryUse is the memory and GC cost of a limiter's keys.
type memoryUse struct {
	Name    string
	Keys    int
	Bytes   float64 // heap bytes a key
	Objects float64 // heap objects a key
	GC      time.Duration
}

// weigh measures what a function that fills n keys leaves in memory.
func weigh(n int, fill func()) memoryUse {
	before := harness.Heap()
	fill()
	after := harness.Heap()
	return memoryUse{
		Keys: n, GC: bestCollection(),
		Bytes:   (float64(after.HeapAlloc) - float64(before.HeapAlloc)) / float64(n),
		Objects: math.Max(0, float64(after.HeapObjects)-float64(before.HeapObjects)) / float64(n),
	}
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

// A weighable is a library whose keys are full after so many visits to each.
type weighable struct {
	library
	visits int
}

// weighables are penstock's variants and the rivals.
func weighables() []weighable {
	log := slidingLog
	log.once = slidingLog.ample
	ws := []weighable{
		{variant{name: "token-bucket", once: tokenBucket(once)}.library(), 1},
		{log.library(), logCount},
	}
	for _, f := range variants(1) {
		ws = append(ws, weighable{f.library(), 1})
	}
	for _, l := range keyed(rivals) {
		ws = append(ws, weighable{l, 1})
	}
	return ws
}

// weigh fills the keys, measures their memory, and verifies that every key was live:
// the visits that fill a key are allowed, and one more after the measurement is denied.
func (s weighable) weigh(keys int) (use memoryUse) {
	retryAfterHour(time.Now, func() {
		var l limiter
		use = weigh(keys, func() {
			l = s.open(once, keys)
			for range s.visits {
				s.visit(l, keys, 0)
			}
		})
		use.Name = s.name
		s.visit(l, keys, keys)
	})
	return use
}

// weights measures the memory of a million live keys, for every variant and rival.
func (b *bench) weights() {
	most := map[string]float64{
		"token-bucket": 40, "leaky-bucket": 40, "fixed-window": 56, "sliding-window": 56,
	}
	for _, s := range weighables() {
		if s.visits == 1 {
			b.weighInChild(s.name, b.million, most[strings.TrimPrefix(s.name, "penstock ")], 2*time.Millisecond)
		}
	}
}

// logWeight measures the memory of full logs.
func (b *bench) logWeight() { b.weighInChild(slidingLog.library().name, b.Size(100_000, 100), 1000, 0) }

// weighInChild measures the memory of one library in a process of its own, because earlier
// allocations change the heap. Its targets are at most so many bytes a key and, if that is not zero, at
// most so long a collection.
func (b *bench) weighInChild(name string, keys int, bytes float64, gc time.Duration) {
	b.Logf("weight of %s keys: %s", harness.Thousands(keys), name)
	use := runInChild[memoryUse]("weigh", name, keys)
	b.Table("Memory: each in its own process, every key live", "limiter", "keys", "heap bytes a key", "heap objects a key", "forced GC, best of five").
		Row(use.Name, harness.Thousands(use.Keys), harness.Decimals(1)(use.Bytes), harness.Decimals(2)(use.Objects), millis(use.GC))
	if bytes == 0 {
		return
	}
	target := fmt.Sprintf("≤ %.0f bytes a key", bytes)
	if gc > 0 {
		target += fmt.Sprintf(", forced GC ≤ %s", gc)
	}
	title := fmt.Sprintf("memory, %s live keys, %s", harness.Thousands(keys), strings.TrimPrefix(name, "penstock "))
	b.Find(title, target, use.Bytes <= bytes && (gc == 0 || use.GC <= gc), "%.1f bytes a key, forced GC %s", use.Bytes, millis(use.GC))
}

func millis(d time.Duration) string { return fmt.Sprintf("%.2f ms", harness.Millis(d)) }

// runInChild runs this program again for a task about one library, and returns its result.
func runInChild[Result any](task, name string, keys int) (result Result) {
	out, err := harness.Child(fmt.Sprintf("%s %d %s", task, keys, name)).Output()
	if err != nil {
		harness.Failf("%s %s: %w", task, name, err)
	}
	harness.Check(json.Unmarshal(out, &result))
	return result
}

// runTask measures one library by itself, as "task keys name", and prints the result as JSON.
func runTask(order string) {
	words := append(strings.SplitN(order, " ", 3), "", "")
	keys := harness.Must(strconv.Atoi(words[1]))
	all := append(weighables(), weighable{ours, 1})
	i := slices.IndexFunc(all, func(s weighable) bool { return s.name == words[2] })
	if i < 0 {
		harness.Failf("bad task %q", order)
	}
	var result any
	if words[0] == "time" {
		result = all[i].timeAlone(keys)
	} else {
		result = all[i].weigh(keys)
	}
	harness.Check(json.NewEncoder(os.Stdout).Encode(result))
}
