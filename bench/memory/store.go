package main

import (
	"context"

	"github.com/penstock-io/penstock"
)

// throughStore measures one hot key through the Store interface: through a wrapper, as
// in most programs, and with a Request passed to Take.
func (b *bench) throughStore() error {
	limit := tokenBucket(ample(1))
	wrapped, err := newLimited(wrapper{penstock.NewMemory(nil)}, limit)
	if err != nil {
		return err
	}
	direct := &directStore{store: penstock.NewMemory(nil), limit: limit, ctx: context.Background()}
	if err := b.againstFloor("one hot key, through a wrapper and the Store interface", wrapped, newRing(0, 1), 2.7); err != nil {
		return err
	}
	return b.againstFloor("one hot key, Store.Take with a Request", direct, newRing(0, 1), 0)
}

// againstFloor compares one limiter, already filled, with the floor.
func (b *bench) againstFloor(title string, l limiter, r ring, target float64) error {
	b.logf("%s", title)
	h := comparison{
		title: title,
		floor: newRunner("floor", newFloor(ample(1)), r, 1),
		ours:  newRunner(ours.name, l, r, 1),
	}
	timings, err := b.run(h, workload{keys: r.len()})
	if err != nil {
		return err
	}
	b.report.addTimings(timings...)
	b.report.findAgainstFloor(title, timings[1], target)
	return nil
}
