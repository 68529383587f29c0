package main

import (
	"context"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

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
	r := newRing(f.offered, keys)
	w := r.walks(1)[0]
	each := keys / rounds
	var rates []float64
	var t harness.Counts
	for range rounds {
		begin := time.Now()
		t.Add(f.lim.run(w, each))
		rates = append(rates, float64(each)/time.Since(begin).Seconds())
	}
	w.steps = t.Calls
	verifyFlood(t, w)
	return harness.SpreadOf(rates)
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
