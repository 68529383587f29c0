package main

import (
	"fmt"
	"runtime"
	"time"
)

// A fixture is penstock and perhaps a rival, both filled with the same keys.
type fixture struct {
	limit     benchLimit
	ring      ring
	ours      *limited
	rival     limiter // nil if penstock is compared with the floor alone
	rivalName string
	calls     int // made to ours so far
	began     time.Time
}

// newFixture opens and fills penstock and the rival, if there is one, after a check that
// they separate keys.
func newFixture(n int, p benchLimit, rival *contender) (*fixture, error) {
	fx := &fixture{limit: p, ring: newRing(0, n), calls: n, began: time.Now()}
	l, err := openFilled(ours, p, n)
	if err != nil {
		return nil, err
	}
	fx.ours = l.(*limited)
	if rival != nil {
		fx.rivalName = rival.name
		if fx.rival, err = openFilled(*rival, p, n); err != nil {
			return nil, err
		}
	}
	runtime.GC()
	return fx, nil
}

func openFilled(c contender, p benchLimit, n int) (limiter, error) {
	if c.keyed {
		if err := checkSeparateKeys(c, min(n, fullSizes.many)); err != nil {
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

func (fx *fixture) close() {
	if fx.rival != nil {
		release(fx.rival)
	}
}

// comparison returns the comparison on so many goroutines. On more than one there is no
// floor: contention for its one word makes it slower than a limiter could be.
func (fx *fixture) comparison(title string, goroutines int) comparison {
	h := comparison{title: title, ours: newRunner(ours.name, fx.ours, fx.ring, goroutines)}
	if goroutines == 1 {
		h.floor = newRunner("floor", newFloor(fx.limit), fx.ring, 1)
	}
	if fx.rival != nil {
		h.rival = newRunner(fx.rivalName, fx.rival, fx.ring, goroutines)
	}
	return h
}

// measure runs the comparison, and counts penstock's calls for checkDebts.
func (b *bench) measure(title string, fx *fixture, goroutines int) ([]timing, error) {
	h := fx.comparison(title, goroutines)
	timings, err := b.run(h, workload{keys: fx.ring.len(), denied: fx.limit == once})
	fx.calls += h.ours.counts.calls
	return timings, err
}
