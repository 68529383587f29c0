package main

// hotKey measures one key: everything is in the cache, and only instructions count.
func (b *bench) hotKey() error {
	const title = "one hot key, token bucket, allowed"
	return b.againstFloorAndRivals(title, 1, 1.8, rivals)
}

// hotKeyDenied measures a spent key.
func (b *bench) hotKeyDenied() error {
	const title = "one hot key, token bucket, denied"
	fx, err := newFixture(1, once, nil)
	if err != nil {
		return err
	}
	h := fx.comparison(title, 1)
	h.floor.limiter.run(nil, 1)
	timings, err := b.run(h, workload{keys: 1, denied: true})
	if err != nil {
		return err
	}
	b.report.addTimings(timings...)
	b.report.findAgainstFloor(title, timings[1], 0)
	return nil
}
