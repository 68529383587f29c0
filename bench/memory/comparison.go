package main

import "github.com/penstock-io/penstock/bench/internal/measure"

// A comparison measures the floor, penstock and at most one rival in turns. With one
// rival at a time, its garbage and cache footprint affect no other comparison. Floor and
// rival may be absent.
type comparison struct {
	title              string
	floor, ours, rival *runner
}

// A workload is what a comparison must have measured: at least so many different keys,
// and either every call denied or none.
type workload struct {
	keys   int
	denied bool
}

// A timing is the result of one runner. The ratios are nanoseconds over nanoseconds of
// the same round; they are zero without a counterpart.
type timing struct {
	title, name     string
	nanos           measure.Spread
	toFloor, toOurs measure.Spread
	allocs          float64
	keys            int
	denied          float64
}

// enoughKeys is how many different keys a comparison must use if there are more: then
// hardly any entry is found in a cache.
const enoughKeys = 100_000

func (h comparison) runners() []*runner {
	var es []*runner
	for _, e := range []*runner{h.floor, h.ours, h.rival} {
		if e != nil {
			es = append(es, e)
		}
	}
	return es
}

// run runs the rounds, verifies the workload and returns the timings in the order
// floor, penstock, rival.
func (b *bench) run(h comparison, w workload) ([]timing, error) {
	least := min(w.keys, enoughKeys)
	for _, e := range h.runners() {
		e.least = least/b.rounds + 1
	}
	runRounds(b.rounds, b.length, h.runners()...)
	var timings []timing
	for _, e := range h.runners() {
		t, err := h.timing(e, workload{keys: least, denied: w.denied})
		if err != nil {
			return nil, err
		}
		timings = append(timings, t)
	}
	return timings, nil
}

func (h comparison) timing(e *runner, w workload) (timing, error) {
	t := timing{title: h.title, name: e.name, nanos: measure.SpreadOf(e.nanos), allocs: e.allocations()}
	keys, err := e.verify(w)
	if err != nil {
		return t, err
	}
	t.keys = keys
	t.denied = float64(e.counts.denied) / float64(e.counts.calls)
	if h.floor != nil {
		t.toFloor = measure.SpreadOf(measure.Ratios(e.nanos, h.floor.nanos))
	}
	t.toOurs = measure.SpreadOf(measure.Ratios(e.nanos, h.ours.nanos))
	return t, nil
}
