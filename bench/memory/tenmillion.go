package main

import (
	"fmt"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// tenMillionKeys measures a table that no cache holds. It has no target.
func (b *bench) tenMillionKeys() error {
	n := b.sizes.tenMillion
	title := measure.Thousands(n) + " keys, token bucket"
	b.logf("%s: filling", title)
	r := newRing(0, n)
	before, began := heap(), time.Now()
	l, err := openFilled(ours, ample(n), n)
	if err != nil {
		return err
	}
	after := heap()
	gc := bestCollection()
	fx := &fixture{limit: ample(n), ring: r, ours: l.(*limited), calls: n, began: began}
	timings, err := b.measureSerialAndParallel(title, fx)
	if err != nil {
		return err
	}
	b.report.Add(title, "", true, "%.0f ns serial, %.0f ns on two goroutines, %.1f bytes a key, forced GC %s",
		timings[0].nanos.Median, timings[1].nanos.Median,
		(float64(after.HeapAlloc)-float64(before.HeapAlloc))/float64(n), millis(gc))
	return nil
}

// measureSerialAndParallel returns penstock's timings on one goroutine and on two.
func (b *bench) measureSerialAndParallel(title string, fx *fixture) ([2]timing, error) {
	var both [2]timing
	for i := range both {
		suffix := [2]string{"", ", two goroutines"}[i]
		timings, err := b.measure(title+suffix, fx, i+1)
		if err != nil {
			return both, err
		}
		b.report.addTimings(timings...)
		both[i] = last(timings)
	}
	if err := fx.checkDebts(); err != nil {
		return both, fmt.Errorf("%s: %w", title, err)
	}
	return both, nil
}
