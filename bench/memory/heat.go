package main

import "github.com/penstock-io/penstock/bench/internal/measure"

// A heat is what takes turns in one race: the floor, penstock, and at most
// one rival, so that a rival's garbage and cache footprint burden no race but
// its own. Floor and rival may be absent.
type heat struct {
	title              string
	floor, ours, rival *entrant
}

// A workload is what a heat is about: at least so many different keys, and
// either every call denied or none.
type workload struct {
	keys   int
	denied bool
}

// A timing is what came out for one entrant. The ratios are nanoseconds over
// nanoseconds of the same round; they are zero where there was no other side.
type timing struct {
	title, who      string
	nanos           measure.Spread
	toFloor, toOurs measure.Spread
	allocs          float64
	keys            int
	denied          float64
}

// enoughKeys is how many different keys a heat must touch where there are
// more: then hardly a visit finds its entry in a cache.
const enoughKeys = 100_000

func (h heat) entrants() []*entrant {
	var es []*entrant
	for _, e := range []*entrant{h.floor, h.ours, h.rival} {
		if e != nil {
			es = append(es, e)
		}
	}
	return es
}

// run races the heat, proves its workload and returns the timings in the order
// floor, penstock, rival.
func (b *bench) run(h heat, w workload) ([]timing, error) {
	least := min(w.keys, enoughKeys)
	for _, e := range h.entrants() {
		e.least = least/b.rounds + 1
	}
	race(b.rounds, b.length, h.entrants()...)
	var timings []timing
	for _, e := range h.entrants() {
		t, err := h.timing(e, workload{keys: least, denied: w.denied})
		if err != nil {
			return nil, err
		}
		timings = append(timings, t)
	}
	return timings, nil
}

func (h heat) timing(e *entrant, w workload) (timing, error) {
	t := timing{title: h.title, who: e.name, nanos: measure.SpreadOf(e.nanos), allocs: e.allocations()}
	keys, err := e.prove(w)
	if err != nil {
		return t, err
	}
	t.keys = keys
	t.denied = float64(e.tally.denied) / float64(e.tally.calls)
	if h.floor != nil {
		t.toFloor = measure.SpreadOf(measure.Ratios(e.nanos, h.floor.nanos))
	}
	t.toOurs = measure.SpreadOf(measure.Ratios(e.nanos, h.ours.nanos))
	return t, nil
}
