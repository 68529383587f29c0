package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

// keySize is the length of every key: "user:" and fifteen digits.
const keySize = 20

// The seeds of the orders in which keys are walked and filled. They differ, so that the
// memory layout of the fill does not help the walk.
const walkShuffle, fillShuffle = 1, 2

// A ring holds keys in one flat string, in the order in which they are walked.
// Reading the next key costs a few nanoseconds because it lies beside the
// last, while the entry that it names may lie anywhere in a limiter's table.
type ring struct {
	flat  string
	first int // the number in the lowest key
}

// newRing returns a ring of n keys, numbered from first, in shuffled order.
func newRing(first, n int) ring {
	flat := make([]byte, 0, n*keySize)
	for _, i := range shuffled(n, walkShuffle) {
		flat = appendKey(flat, first+int(i))
	}
	return ring{flat: string(flat), first: first}
}

func (r ring) len() int { return len(r.flat) / keySize }

// at returns the i-th key of the walk.
func (r ring) at(i int) string { return r.flat[i*keySize : (i+1)*keySize] }

// walks returns n walks that start evenly spaced around the ring.
func (r ring) walks(n int) []*walk {
	ws := make([]*walk, n)
	for i := range ws {
		start := i * r.len() / n
		ws[i] = &walk{ring: r, start: start, next: start * keySize}
	}
	return ws
}

// A walk goes around a ring, key by key, for one goroutine.
type walk struct {
	ring  ring
	start int // the place of the first key
	next  int // the byte at which the next key begins
	steps int // how many keys were read; updated by the caller
}

// walkTo returns a walk to one key.
func walkTo(key string) *walk { return &walk{ring: ring{flat: key}} }

// key returns the next key. It is small enough to be inlined.
func (w *walk) key() string {
	if w.next == len(w.ring.flat) {
		w.next = 0
	}
	k := w.ring.flat[w.next : w.next+keySize]
	w.next += keySize
	return k
}

// distinct counts, by their text, the different keys that walks have read.
func distinct(walks ...*walk) (count int) {
	seen := make([]bool, walks[0].ring.len())
	for _, w := range walks {
		for i := range min(w.steps, w.ring.len()) {
			n := harness.Must(strconv.Atoi(w.ring.at((w.start + i) % w.ring.len())[len("user:"):]))
			if at := n - w.ring.first; !seen[at] {
				seen[at] = true
				count++
			}
		}
	}
	return count
}

// fillKeys calls fill once for each of the n keys from first on, in an order
// that is not the walk's and with a string that is not shared.
func fillKeys(first, n int, fill func(key string)) {
	var b [keySize]byte
	for _, i := range shuffled(n, fillShuffle) {
		fill(string(appendKey(b[:0], first+int(i))))
	}
}

// appendKey appends the key with number i, such as "user:000000000000042".
func appendKey(b []byte, i int) []byte { return fmt.Appendf(b, "user:%015d", i) }

func shuffled(n int, order uint64) []uint32 {
	p := make([]uint32, n)
	for i := range p {
		p[i] = uint32(i)
	}
	rnd := rand.New(rand.NewPCG(order, uint64(n)))
	rnd.Shuffle(n, func(i, j int) { p[i], p[j] = p[j], p[i] })
	return p
}

// A subject is a limiter that is measured, with the walks of its goroutines.
type subject struct {
	*harness.Load
	keyed bool
	walks []*walk
}

func newSubject(name string, l limiter, r ring, goroutines int) *subject {
	_, isFloor := l.(*floor)
	s := &subject{walks: r.walks(goroutines), keyed: !isFloor}
	s.Load = harness.NewLoad(name, goroutines, nil, func(g, _, calls int) harness.Counts {
		t := l.run(s.walks[g], calls)
		s.walks[g].steps += t.Calls
		return t
	})
	return s
}

// takeTurns calibrates all subjects to rounds of about the given length, with at least so many
// calls, so that enough keys are used, and runs them in turns.
func takeTurns(rounds int, length time.Duration, least int, subjects []*subject) {
	for _, s := range subjects {
		s.Calibrate(length, least+len(s.walks))
	}
	harness.TakeTurns(rounds, subjects...)
}

// noAllocations is the threshold for no allocations: the runtime itself allocates at times.
const noAllocations = 0.001

// allocationCalls is during how many calls allocations are counted.
const allocationCalls = 50_000

// Wrong workloads look fast: keys that are all the same, or calls that are denied and
// so do no work. So every case verifies its workload, and the command exits with a
// non-zero status if one was wrong.

// A workload is what must have been measured: at least so many different keys, and either every call
// denied or none.
type workload struct {
	keys   int
	denied bool
}

// verify returns how many different keys the calls used, or ends the case if they differ from the
// workload.
func (s *subject) verify(w workload) (keys int) {
	harness.Check(s.Total.Verify(s.Name, 0, w.denied))
	if !s.keyed {
		return 0
	}
	if keys = distinct(s.walks...); keys < w.keys {
		harness.Failf("%s: %d different keys were used, want at least %d", s.Name, keys, w.keys)
	}
	return keys
}

// checkSeparateKeys checks that a library has separate state for each of n keys: each
// is allowed once, and then denied.
func checkSeparateKeys(l library, n int) {
	retryAfterHour(time.Now, func() {
		opened := l.open(once, n)
		defer release(opened)
		l.visit(opened, n, 0)
		if again := opened.run(newRing(0, n).walks(1)[0], n); again.Denied != n {
			harness.Failf("%s: %d of %d spent keys were denied, want all", l.name, again.Denied, n)
		}
	})
}

// retryAfterHour repeats a check that has failed while an hour ended: a window on the clock, such
// as a day, may have ended with it, and spent keys are allowed again.
func retryAfterHour(now func() time.Time, check func()) {
	began := now()
	err := harness.Try(check)
	if err != nil && !began.Truncate(time.Hour).Equal(now().Truncate(time.Hour)) {
		err = harness.Try(check)
	}
	harness.Check(err)
}

// checkHeld checks that a store holds so many keys, and that none shares state with others.
func checkHeld(store *penstock.Memory, keys int) {
	if s := store.Stats(); s.Keys != int64(keys) || s.OverflowDecisions > 0 {
		harness.Failf("penstock: the store holds %d keys, want %d; %d decisions were of no key of their own", s.Keys, keys, s.OverflowDecisions)
	}
}

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
		{variant{name: "token-bucket", once: "1/1h"}.library(), 1},
		{log.library(), logCount},
	}
	for _, f := range variants {
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

// A flood is an attack with new keys. The store is full of keys that have spent their
// limit, and must keep all of them however many new keys come: a lost debt is an
// admission.
type flood struct {
	lim     *limited
	spent   []string // keys admitted while there was room
	offered int      // new keys so far
}

// floodOfNewKeys measures how many new keys a second a full store decides.
func (b *bench) floodOfNewKeys() {
	room := b.Size(100_000, 1_000)
	title := "a flood of new keys into a full store of " + harness.Thousands(room)
	b.Logf("%s", title)
	f := newFlood(room)
	rate := f.run(b.Size(2_000_000, 5_000), b.Rounds)
	victims, admitted := f.retakeSpent(b.Size(1_000, 100))
	b.Find(title, "≥ 1 million a second, no spent key admitted again",
		rate.Median >= 1_000_000 && admitted == 0,
		"%.2f (%.2f–%.2f) million a second, %d of %d spent keys admitted again",
		rate.Median/1e6, rate.P10/1e6, rate.P90/1e6, admitted, victims)
}

// newFlood fills a store: first with as many keys as it has room for, then with new
// ones until a thousand in a row are denied.
func newFlood(room int) *flood {
	f := &flood{lim: newLimited(penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: room}), tokenBucket(once))}
	for denied := 0; denied < 1_000; denied++ {
		key := string(appendKey(nil, f.offered))
		if f.takes(key) {
			f.spent = append(f.spent, key)
			denied = 0
		}
		if f.offered++; f.offered > 4*room {
			harness.Failf("a store of %d keys admitted %d of %d and is still not full", room, len(f.spent), f.offered)
		}
	}
	f.checkFull(room)
	return f
}

// checkFull ends the case if the store was full with far fewer keys than its MaxKeys.
func (f *flood) checkFull(room int) {
	if len(f.spent) < room*9/10 {
		harness.Failf("a store of %d keys was full with %d", room, len(f.spent))
	}
}

// run takes that many new keys, in so many rounds, and returns the keys per second.
// Nearly all are denied: they share one overflow bucket that is soon spent.
func (f *flood) run(keys, rounds int) harness.Spread {
	s := newSubject("flood", f.lim, newRing(f.offered, keys), 1)
	s.Calls = keys / rounds
	harness.TakeTurns(rounds, s)
	verifyFlood(s.Total, s.walks[0])
	return harness.SpreadOf(s.Of("rate"))
}

// verifyFlood ends the case unless all keys of a flood were new, and almost none was admitted.
func verifyFlood(t harness.Counts, w *walk) {
	if fresh := distinct(w); fresh != t.Calls {
		harness.Failf("%d of %d keys in the flood were new, want all", fresh, t.Calls)
	}
	if admitted := t.Calls - t.Denied - t.Failed; t.Failed > 0 || admitted > t.Calls/1000 {
		harness.Failf("%d of %d keys in the flood failed and %d were admitted, want almost none", t.Failed, t.Calls, admitted)
	}
}

// retakeSpent takes spent keys again, evenly chosen, and returns how many calls it made
// and how many were admitted.
func (f *flood) retakeSpent(most int) (calls, admitted int) {
	calls = min(most, len(f.spent))
	for i := range calls {
		if f.takes(f.spent[i*len(f.spent)/calls]) {
			admitted++
		}
	}
	return calls, admitted
}

// takes reports whether a key is admitted.
func (f *flood) takes(key string) bool {
	return harness.Must(f.lim.lim.Allow(context.Background(), key)).Allowed
}

// logCount is the limit of the sliding logs here.
const logCount = 100

// A turningLog keeps many sliding logs full and yet admitting, so that every call drops the oldest entry
// and records a new one. With each call the clock goes on, by as much that a lap, which takes every key once, is a
// hundredth of the period: the lap a hundred before it has just expired.
type turningLog struct {
	*limited
	ahead time.Duration
}

// slidingLog is the variant of the log for keys that are taken once or twice.
var slidingLog = variant{name: "sliding-log", ample: fmt.Sprintf("%d/1h sliding-log", logCount), once: "1/1h sliding-log"}

// newTurningLog returns n full logs.
func newTurningLog(n int) *turningLog {
	l, base, step := &turningLog{}, time.Now(), time.Hour/time.Duration(logCount*n)
	l.limited = newLimited(penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time {
		l.ahead += step
		return base.Add(l.ahead)
	}}), limitOf(slidingLog.ample))
	if t := l.run(newRing(0, n).walks(1)[0], n*logCount); t.Denied+t.Failed > 0 {
		harness.Failf("sliding-log: %+v: want all admitted until the logs are full", t)
	}
	return l
}

// verify ends the case unless all logs are full, but for the entry that has expired for this lap.
func (l *turningLog) verify(r ring) {
	for i := range r.len() {
		if d := harness.Must(l.lim.Peek(context.Background(), r.at(i))); d.Remaining > 1 {
			harness.Failf("sliding-log: %d of %d units of %s are free, want at most 1", d.Remaining, d.Limit, r.at(i))
		}
	}
}

// turningLog times the sliding log against the floor.
func (b *bench) turningLog() {
	checkSeparateKeys(slidingLog.library(), b.many)
	l := newTurningLog(b.many)
	c := &comparison{ring: newRing(0, b.many), ours: l}
	b.againstFloor(harness.Thousands(b.many)+" keys, sliding-log of 100, full and turning over", c, 4)
	l.verify(c.ring)
}
