package main

// hotKey asks about one key, over and over: the path with everything in the
// cache, where only instructions count.
func (b *bench) hotKey() error {
	const title = "one hot key, token bucket, allowed"
	return b.againstFloorAndRivals(title, 1, 1.8, rivals)
}

// hotKeyDenied is the same for a key that is spent.
func (b *bench) hotKeyDenied() error {
	const title = "one hot key, token bucket, denied"
	lu, err := lineUp(1, once, nil)
	if err != nil {
		return err
	}
	h := lu.heat(title, 1)
	h.floor.limiter.run(nil, 1)
	timings, err := b.run(h, workload{keys: 1, denied: true})
	if err != nil {
		return err
	}
	b.report.addTimings(timings...)
	b.report.findAgainstFloor(title, timings[1], 0)
	return nil
}
