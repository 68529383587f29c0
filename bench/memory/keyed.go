package main

import "github.com/penstock-io/penstock/bench/internal/measure"

// manyKeys measures keys that fit into a cache.
func (b *bench) manyKeys() error {
	return b.againstFloorAndRivals(measure.Thousands(b.sizes.many)+" keys", b.sizes.many, 2.3, keyed(rivals))
}

// againstFloorAndRivals compares penstock with the floor alone, for the target, and
// then with each rival.
func (b *bench) againstFloorAndRivals(title string, n int, target float64, rivals []contender) error {
	timings, err := b.compareWith(title, n, nil, 1)
	if err != nil {
		return err
	}
	b.report.addTimings(timings[0]...)
	b.report.findAgainstFloor(title, timings[0][1], target)
	for _, rival := range rivals {
		timings, err := b.compareWith(title, n, &rival, 1)
		if err != nil {
			return err
		}
		b.report.addTimings(last(timings[0]))
	}
	return nil
}

// millionKeys measures keys that do not fit into a cache, on one goroutine and on two.
func (b *bench) millionKeys() error {
	title := measure.Thousands(b.sizes.million) + " keys"
	serial, parallel := newRivalResults(title), newRivalResults(title+", two goroutines")
	for _, rival := range keyed(rivals) {
		timings, err := b.compareWith(title, b.sizes.million, &rival, 1, 2)
		if err != nil {
			return err
		}
		serial.add(timings[0])
		parallel.add(timings[1])
	}
	serial.report(&b.report)
	parallel.report(&b.report)
	return b.idleKeys()
}

// idleKeys measures keys that are full again at each visit, so that their entries are
// free space: a store that reuses it too early is slow here.
func (b *bench) idleKeys() error {
	title := measure.Thousands(b.sizes.million) + " keys, idle between visits"
	fx, err := newFixture(b.sizes.million, alwaysFull, nil)
	if err != nil {
		return err
	}
	timings, err := b.measure(title, fx, 1)
	if err != nil {
		return err
	}
	b.report.addTimings(timings[1])
	return nil
}

// compareWith compares penstock with a rival, if any, on each of the given numbers of
// goroutines, and then checks penstock's debts.
func (b *bench) compareWith(title string, n int, rival *contender, goroutines ...int) ([][]timing, error) {
	fx, err := newFixture(n, ample(n), rival)
	if err != nil {
		return nil, err
	}
	defer fx.close()
	b.logf("%s: penstock and %s", title, orFloor(fx.rivalName))
	var all [][]timing
	for _, g := range goroutines {
		timings, err := b.measure(title, fx, g)
		if err != nil {
			return nil, err
		}
		all = append(all, timings)
	}
	if n > 1 {
		err = fx.checkDebts()
	}
	return all, err
}

// rivalResults collects the rivals of one case, and the closest one.
type rivalResults struct {
	title   string
	timings []timing
	closest timing
}

func newRivalResults(title string) *rivalResults { return &rivalResults{title: title} }

// add adds the timings of a comparison: of the first also penstock's, of the others
// only the rival's.
func (s *rivalResults) add(timings []timing) {
	rival := last(timings)
	if len(s.timings) == 0 {
		s.timings = append(s.timings, timings[:len(timings)-1]...)
		s.closest = rival
	}
	s.timings = append(s.timings, rival)
	if rival.toOurs.Median < s.closest.toOurs.Median {
		s.closest = rival
	}
}

func (s *rivalResults) report(r *report) {
	const atLeast = 2.5
	for _, t := range s.timings {
		t.title = s.title
		r.addTimings(t)
	}
	r.Add(s.title, "≥ 2.5× faster than every rival", s.closest.toOurs.Median >= atLeast,
		"%s faster than the next, %s", measure.TimesWithSpread(s.closest.toOurs), s.closest.name)
}

func keyed(cs []contender) []contender {
	var ks []contender
	for _, c := range cs {
		if c.keyed {
			ks = append(ks, c)
		}
	}
	return ks
}

func last(ts []timing) timing { return ts[len(ts)-1] }

func orFloor(rival string) string {
	if rival == "" {
		return "the floor"
	}
	return rival
}
