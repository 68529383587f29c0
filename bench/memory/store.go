package main

import (
	"context"

	"github.com/penstock-io/penstock"
)

// throughStore asks about one hot key by way of the Store interface: through a
// decorator, as most programs will, and with a Request made by hand.
func (b *bench) throughStore() error {
	limit := tokenBucket(roomy(1))
	decorated, err := newLimited(passThrough{penstock.NewMemory(nil)}, limit)
	if err != nil {
		return err
	}
	byHand := &asked{store: penstock.NewMemory(nil), limit: limit, ctx: context.Background()}
	if err := b.againstFloor("one hot key, through a decorator and the Store interface", decorated, newRing(0, 1), 2.7); err != nil {
		return err
	}
	return b.againstFloor("one hot key, a Request made by hand", byHand, newRing(0, 1), 0)
}

// againstFloor races one limiter, already filled, against the floor.
func (b *bench) againstFloor(title string, l limiter, r ring, target float64) error {
	b.say("%s", title)
	h := heat{
		title: title,
		floor: newEntrant("floor", newFloor(roomy(1)), r, 1),
		ours:  newEntrant(ours.name, l, r, 1),
	}
	timings, err := b.run(h, workload{keys: r.len()})
	if err != nil {
		return err
	}
	b.report.addTimings(timings...)
	b.report.findAgainstFloor(title, timings[1], target)
	return nil
}
