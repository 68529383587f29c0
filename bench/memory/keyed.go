package main

import "github.com/penstock-io/penstock/bench/internal/measure"

// manyKeys asks about keys that fit into a cache.
func (b *bench) manyKeys() error {
	return b.againstFloorAndRivals(measure.Thousands(b.sizes.many)+" keys", b.sizes.many, 2.3, keyed(rivals))
}

// againstFloorAndRivals races penstock against the floor alone, which is what
// the target is about, and then once more with each rival.
func (b *bench) againstFloorAndRivals(title string, n int, target float64, rivals []contestant) error {
	timings, err := b.duel(title, n, nil, 1)
	if err != nil {
		return err
	}
	b.report.addTimings(timings[0]...)
	b.report.findAgainstFloor(title, timings[0][1], target)
	for _, rival := range rivals {
		timings, err := b.duel(title, n, &rival, 1)
		if err != nil {
			return err
		}
		b.report.addTimings(last(timings[0]))
	}
	return nil
}

// millionKeys asks about keys whose entries lie all over the memory, on one
// goroutine and on two.
func (b *bench) millionKeys() error {
	title := measure.Thousands(b.sizes.million) + " keys"
	alone, together := newStandings(title), newStandings(title+", two goroutines")
	for _, rival := range keyed(rivals) {
		timings, err := b.duel(title, b.sizes.million, &rival, 1, 2)
		if err != nil {
			return err
		}
		alone.enter(timings[0])
		together.enter(timings[1])
	}
	alone.report(&b.report)
	together.report(&b.report)
	return b.idleKeys()
}

// idleKeys is the same with keys that are as good as new at each visit, which
// makes their entries free space: a store that is too eager to use it pays here.
func (b *bench) idleKeys() error {
	title := measure.Thousands(b.sizes.million) + " keys, idle between visits"
	lu, err := lineUp(b.sizes.million, forgetful, nil)
	if err != nil {
		return err
	}
	timings, err := b.play(title, lu, 1)
	if err != nil {
		return err
	}
	b.report.addTimings(timings[1])
	return nil
}

// duel lines up penstock and a rival, or nobody, and races them on each of the
// given numbers of goroutines. In the end penstock must owe what was taken.
func (b *bench) duel(title string, n int, rival *contestant, goroutines ...int) ([][]timing, error) {
	lu, err := lineUp(n, roomy(n), rival)
	if err != nil {
		return nil, err
	}
	defer lu.close()
	b.say("%s: penstock and %s", title, orNobody(lu.rivalName))
	var all [][]timing
	for _, g := range goroutines {
		timings, err := b.play(title, lu, g)
		if err != nil {
			return nil, err
		}
		all = append(all, timings)
	}
	if n > 1 {
		err = checkDebts(lu.ours.lim, lu.ring, lu.calls)
	}
	return all, err
}

// standings collect the rivals of one case, and know the one that comes closest.
type standings struct {
	title   string
	timings []timing
	closest timing
}

func newStandings(title string) *standings { return &standings{title: title} }

// enter takes in the timings of a duel. Of the first duel it keeps penstock's
// own too.
func (s *standings) enter(duel []timing) {
	rival := last(duel)
	if len(s.timings) == 0 {
		s.timings = append(s.timings, duel[:len(duel)-1]...)
		s.closest = rival
	}
	s.timings = append(s.timings, rival)
	if rival.toOurs.Median < s.closest.toOurs.Median {
		s.closest = rival
	}
}

func (s *standings) report(r *report) {
	const atLeast = 2.5
	for _, t := range s.timings {
		t.title = s.title
		r.addTimings(t)
	}
	r.Add(s.title, "≥ 2.5× faster than every rival", s.closest.toOurs.Median >= atLeast,
		"%s faster than the next, %s", measure.TimesWithSpread(s.closest.toOurs), s.closest.who)
}

func keyed(cs []contestant) []contestant {
	var ks []contestant
	for _, c := range cs {
		if c.keyed {
			ks = append(ks, c)
		}
	}
	return ks
}

func last(ts []timing) timing { return ts[len(ts)-1] }

func orNobody(rival string) string {
	if rival == "" {
		return "the floor"
	}
	return rival
}
