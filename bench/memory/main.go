// Command memory compares penstock's memory store with the rate limiters that Go
// programs use today, and with the floor: the least that any of them could do. It
// prints Markdown.
//
//	go run ./memory                     # everything, some minutes
//	go run ./memory -run 'hot|many'     # some cases
//	go run ./memory -quick              # a few seconds, to see that it runs
//
// The results are ratios: medians over many short rounds in which the contenders take
// turns, so that other load on the machine affects all of them alike. Every case
// verifies its workload: how many different keys were used, and how many calls were
// denied.
package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

func main() {
	harness.RunIfChild(runTask)
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

// A bench is one run. It has cases of many keys, which fit into a cache, and of a million, which do not.
type bench struct {
	*harness.Run
	many, million int
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := &bench{Run: harness.New("memory", stdout, stderr)}
	b.TurnFlags("rounds", "round", harness.Turns{Rounds: 80, Turn: 10 * time.Millisecond}, harness.Turns{Rounds: 5, Turn: 200 * time.Microsecond})
	file := b.Flags.String("series", "", "only measure decisions at growing numbers of keys, and write CSV to this `file`")
	for _, l := range rivals {
		b.Rivals = append(b.Rivals, l.module)
	}
	b.Settings = func() string {
		return fmt.Sprintf("%d rounds of %s a contender, %d-byte keys", b.Rounds, b.Turn, keySize)
	}
	b.Prepare = func() {
		b.many, b.million = b.Size(10_000, 200), b.Size(1_000_000, 2_000)
		if *file != "" {
			b.writeSeries(*file)
			b.Done = true
		}
	}
	return b.Main(args, []harness.Case{
		{Name: "hot", Run: func() { b.againstFloorAndRivals("one hot key, token bucket, allowed", 1, 1.8, rivals) }},
		{Name: "denied", Run: func() { b.againstFloor("one hot key, token bucket, denied", newComparison(1, once, nil), 0) }},
		{Name: "store", Run: b.throughStore},
		{Name: "many", Run: func() { b.againstFloorAndRivals(harness.Thousands(b.many)+" keys", b.many, 2.3, keyed(rivals)) }},
		{Name: "algorithms", Run: b.otherAlgorithms},
		{Name: "log", Run: b.turningLog},
		{Name: "million", Run: b.millionKeys},
		{Name: "idle", Run: b.idleKeys},
		{Name: "alone", Run: b.aloneKeys},
		{Name: "flood", Run: b.floodOfNewKeys},
		{Name: "weight", Run: b.weights},
		{Name: "logweight", Run: func() { b.weighInChild(slidingLog.library().name, b.Size(100_000, 100), 1000, 0) }},
		{Name: "tenmillion", Run: b.tenMillionKeys},
	})
}

// A comparison is the floor, penstock and perhaps a rival, filled with the same keys. With one
// rival at a time, its garbage and cache footprint affect no other comparison.
type comparison struct {
	limit     benchLimit
	ring      ring
	ours      limiter
	rival     limiter // nil if penstock is compared with the floor alone
	rivalName string
}

// newComparison opens and fills penstock and the rival, if there is one.
func newComparison(n int, p benchLimit, rival *library) *comparison {
	c := &comparison{limit: p, ring: newRing(0, n)}
	c.ours = ours.openFilled(p, n)
	if rival != nil {
		c.rival, c.rivalName = rival.openFilled(p, n), rival.name
	}
	runtime.GC()
	return c
}

// A timing is the result of one subject. The ratios are nanoseconds over nanoseconds of
// the same round; they are zero without a counterpart.
type timing struct {
	name                   string
	nanos, toFloor, toOurs harness.Spread
	allocs                 float64
	keys                   int
	denied                 float64
}

// enoughKeys is how many different keys a comparison must use if there are more: then
// hardly any entry is found in a cache.
const enoughKeys = 100_000

// measure runs the rounds on so many goroutines, verifies the workload and returns the timings in
// the order floor, penstock, rival. On more than one goroutine there is no floor: contention for its
// one word makes it slower than a limiter could be.
func (b *bench) measure(c *comparison, goroutines int) (timings []timing) {
	mine := newSubject(ours.name, c.ours, c.ring, goroutines)
	subjects, base := []*subject{mine}, &harness.Contender{}
	if goroutines == 1 {
		least := newSubject("floor", newFloor(c.limit), c.ring, 1)
		subjects, base = []*subject{least, mine}, &least.Contender
	}
	if c.rival != nil {
		subjects = append(subjects, newSubject(c.rivalName, c.rival, c.ring, goroutines))
	}
	w := workload{keys: min(c.ring.len(), enoughKeys), denied: c.limit == once}
	takeTurns(b.Rounds, b.Turn, w.keys/b.Rounds+1, subjects)
	for _, s := range subjects {
		t := timing{name: s.Name, nanos: harness.SpreadOf(s.Of("ns")), toFloor: s.To(base, "ns"), toOurs: s.To(mine, "ns"), allocs: s.Allocations(allocationCalls)}
		t.keys = s.verify(w)
		t.denied = float64(s.Total.Denied) / float64(s.Total.Calls)
		timings = append(timings, t)
	}
	return timings
}

// addTimings adds rows to the table.
func (b *bench) addTimings(title string, ts ...timing) {
	t := b.Table("Speed: medians of the rounds, in brackets the 10th to the 90th percentile",
		"case", "limiter", "ns a call", "to the floor", "to penstock", "allocations", "keys touched", "denied")
	for _, m := range ts {
		t.Row(title, m.name, harness.Decimals(1)(m.nanos.Median), m.toFloor, m.toOurs,
			count(m.allocs), harness.Thousands(m.keys), fmt.Sprintf("%.0f %%", 100*m.denied))
	}
}

// count formats allocations per call.
func count(x float64) string {
	if x < noAllocations {
		return "0"
	}
	return fmt.Sprintf("%.2f", x)
}

// findAgainstFloor adds the finding of a case with a target relative to the floor, or without one.
func (b *bench) findAgainstFloor(title string, t timing, atMost float64) {
	target, met := "", true
	if atMost > 0 {
		target = fmt.Sprintf("≤ %s the floor, 0 allocations", harness.Times(atMost))
		met = t.toFloor.Median <= atMost && t.allocs < noAllocations
	}
	b.Find(title, target, met, "%s the floor, %s allocations", t.toFloor, count(t.allocs))
}

// againstFloor compares penstock with the floor.
func (b *bench) againstFloor(title string, c *comparison, target float64) {
	b.Logf("%s", title)
	timings := b.measure(c, 1)
	b.addTimings(title, timings...)
	b.findAgainstFloor(title, timings[1], target)
}

// againstRival compares penstock with a rival, or with the floor alone, on each of the given numbers
// of goroutines, and then checks that penstock held all keys.
func (b *bench) againstRival(title string, n int, rival *library, goroutines ...int) (all [][]timing) {
	c := newComparison(n, ample(n), rival)
	defer release(c.rival)
	b.Logf("%s: penstock and %s", title, cmp.Or(c.rivalName, "the floor"))
	for _, g := range goroutines {
		all = append(all, b.measure(c, g))
	}
	checkHeld(c.ours.(*limited).store, n)
	return all
}

// againstFloorAndRivals compares penstock with the floor alone, for the target, and
// then with each rival.
func (b *bench) againstFloorAndRivals(title string, n int, target float64, rivals []library) {
	b.againstFloor(title, newComparison(n, ample(n), nil), target)
	for _, rival := range rivals {
		b.addTimings(title, last(b.againstRival(title, n, &rival, 1)[0]))
	}
}

func last(ts []timing) timing { return ts[len(ts)-1] }

// throughStore measures one hot key through the Store interface: through a wrapper, as
// in most programs, and with a Request passed to Take.
func (b *bench) throughStore() {
	limit := tokenBucket(ample(1))
	wrapped, direct := newLimited(wrapper{penstock.NewMemory(nil)}, limit), directStore(penstock.NewMemory(nil), limit)
	b.againstFloor("one hot key, through a wrapper and the Store interface", &comparison{ring: newRing(0, 1), ours: wrapped}, 2.7)
	b.againstFloor("one hot key, Store.Take with a Request", &comparison{ring: newRing(0, 1), ours: direct}, 0)
}

// otherAlgorithms measures keys that fit into a cache, for each variant.
func (b *bench) otherAlgorithms() {
	n := b.many
	for _, f := range variants {
		c := &comparison{ring: newRing(0, n), ours: f.library().openFilled(ample(n), n)}
		b.againstFloor(harness.Thousands(n)+" keys, "+f.name, c, f.atMost)
	}
}

// millionKeys measures keys that do not fit into a cache, on one goroutine and on two.
func (b *bench) millionKeys() {
	title := harness.Thousands(b.million) + " keys"
	var all [2][]timing // penstock's once, and each rival's
	for i, rival := range keyed(rivals) {
		for g, timings := range b.againstRival(title, b.million, &rival, 1, 2) {
			if i > 0 {
				timings = timings[len(timings)-1:]
			}
			all[g] = append(all[g], timings...)
		}
	}
	b.findFastest(title, all[0], 2.5)
	b.findFastest(title+", two goroutines", all[1], 2.5)
}

// findFastest adds timings of penstock and of rivals, and the finding how much longer the next takes.
func (b *bench) findFastest(title string, timings []timing, least float64) {
	b.addTimings(title, timings...)
	others := slices.DeleteFunc(slices.Clone(timings), func(t timing) bool { return t.name == ours.name || t.name == "floor" })
	next := slices.MinFunc(others, func(t, u timing) int { return cmp.Compare(t.toOurs.Median, u.toOurs.Median) })
	b.Find(title, fmt.Sprintf("≥ %s faster than every rival", harness.Times(least)), next.toOurs.Median >= least,
		"%s faster than the next, %s", next.toOurs, next.name)
}

// idleKeys measures keys that are full again at each visit, so that their entries are
// free space: a store that reuses it too early is slow here.
func (b *bench) idleKeys() {
	title := harness.Thousands(b.million) + " keys, idle between visits"
	b.addTimings(title, b.measure(newComparison(b.million, alwaysFull, nil), 1)[1])
}

// aloneKeys measures a million keys with each limiter alone in a process of its own, as a
// program has it: no other limiter evicts its entries from the caches. The processes take
// three turns each.
func (b *bench) aloneKeys() {
	title := harness.Thousands(b.million) + " keys, each limiter alone in its process"
	var contenders []*harness.Contender
	for _, l := range slices.Concat([]library{ours}, keyed(rivals)) {
		contenders = append(contenders, &harness.Contender{Name: l.name, Measure: func(c *harness.Contender) {
			b.Logf("%s: %s", title, c.Name)
			for figure, x := range runInChild[map[string]float64]("time", c.Name, b.million) {
				c.Add(figure, x)
			}
		}})
	}
	harness.TakeTurns(3, contenders...)
	var all []timing
	for _, c := range contenders {
		t := timing{name: c.Name, nanos: harness.SpreadOf(c.Of("ns")), toOurs: c.To(contenders[0], "ns")}
		t.allocs, t.keys = c.Median("allocations"), int(c.Median("keys"))
		all = append(all, t)
	}
	b.findFastest(title, all, 2)
}

// timeAlone returns the nanoseconds of a call, its allocations, and how many different keys were used.
func (l library) timeAlone(keys int) map[string]float64 {
	opened := l.openFilled(ample(keys), keys)
	defer release(opened)
	s := newSubject(l.name, opened, newRing(0, keys), 1)
	rounds, enough := max(keys/25_000, 1), min(keys, enoughKeys)
	takeTurns(rounds, 10*time.Millisecond, enough/rounds+1, []*subject{s})
	return map[string]float64{"ns": s.Median("ns"), "allocations": s.Allocations(allocationCalls), "keys": float64(s.verify(workload{keys: enough}))}
}

// tenMillionKeys measures a table that no cache holds. It has no target.
func (b *bench) tenMillionKeys() {
	n := b.Size(10_000_000, 4_000)
	title := harness.Thousands(n) + " keys, token bucket"
	b.Logf("%s: filling", title)
	c := &comparison{limit: ample(n), ring: newRing(0, n)}
	use := weigh(n, func() { c.ours = ours.openFilled(c.limit, n) })
	serial, parallel := b.measure(c, 1), b.measure(c, 2)
	b.addTimings(title, serial...)
	b.addTimings(title+", two goroutines", parallel...)
	checkHeld(c.ours.(*limited).store, n)
	b.Find(title, "", true, "%.0f ns serial, %.0f ns on two goroutines, %.1f bytes a key, forced GC %s",
		last(serial).nanos.Median, last(parallel).nanos.Median, use.Bytes, millis(use.GC))
}

// seriesKeys are the numbers of keys of the plot of time against keys.
var seriesKeys = []int{1, 10, 100, 1_000, 10_000, 100_000, 1_000_000}

// writeSeries measures a decision at growing numbers of keys, penstock beside each
// rival, and writes CSV that bench/plots draws.
func (b *bench) writeSeries(file string) {
	lines := [][]string{{"limiter", "keys", "ns"}}
	for _, n := range seriesKeys[:b.Size(len(seriesKeys), 3)] {
		for i, rival := range keyed(rivals) {
			timings := b.againstRival(harness.Thousands(n)+" keys", n, &rival, 1)[0]
			if i > 0 {
				timings = timings[2:] // not the floor and penstock again
			}
			for _, t := range timings {
				lines = append(lines, []string{t.name, fmt.Sprint(n), harness.Decimals(1)(t.nanos.Median)})
			}
		}
	}
	harness.WriteCSV(file, lines)
}
