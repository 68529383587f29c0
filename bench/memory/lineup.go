package main

import (
	"fmt"
	"runtime"
)

// A lineup is penstock and perhaps a rival, both holding the same keys.
type lineup struct {
	policy    policy
	ring      ring
	ours      *limited
	rival     limiter // nil when penstock races the floor alone
	rivalName string
	calls     int // made to ours so far
}

// lineUp opens and fills penstock and the rival, if there is one, after it has
// seen that they tell keys apart.
func lineUp(n int, p policy, rival *contestant) (*lineup, error) {
	lu := &lineup{policy: p, ring: newRing(0, n), calls: n}
	l, err := openFilled(ours, p, n)
	if err != nil {
		return nil, err
	}
	lu.ours = l.(*limited)
	if rival != nil {
		lu.rivalName = rival.name
		if lu.rival, err = openFilled(*rival, p, n); err != nil {
			return nil, err
		}
	}
	runtime.GC()
	return lu, nil
}

func openFilled(c contestant, p policy, n int) (limiter, error) {
	if c.keyed {
		if err := checkTellsApart(c, min(n, fullSizes.many)); err != nil {
			return nil, err
		}
	}
	l, err := c.open(p, n)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.name, err)
	}
	filled, err := fill(l, 0, n)
	if err == nil && filled.denied > 0 {
		err = fmt.Errorf("%d of %d fresh keys were denied", filled.denied, n)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: filling: %w", c.name, err)
	}
	return l, nil
}

func (lu *lineup) close() {
	if lu.rival != nil {
		release(lu.rival)
	}
}

// heat puts the lineup on so many goroutines. On more than one there is no
// floor: its one word is then fought over, which is not the least that anybody
// can do.
func (lu *lineup) heat(title string, goroutines int) heat {
	h := heat{title: title, ours: newEntrant(ours.name, lu.ours, lu.ring, goroutines)}
	if goroutines == 1 {
		h.floor = newEntrant("floor", newFloor(lu.policy), lu.ring, 1)
	}
	if lu.rival != nil {
		h.rival = newEntrant(lu.rivalName, lu.rival, lu.ring, goroutines)
	}
	return h
}

// play races the lineup. What was asked of penstock is remembered, for the
// debts that it must show in the end.
func (b *bench) play(title string, lu *lineup, goroutines int) ([]timing, error) {
	h := lu.heat(title, goroutines)
	timings, err := b.run(h, workload{keys: lu.ring.len(), denied: lu.policy == once})
	lu.calls += h.ours.tally.calls
	return timings, err
}
