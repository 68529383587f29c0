package main

import (
	"fmt"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// tenMillionKeys is there to be known: how Redis behaves with more keys than any
// cache holds. INCR has as many.
func (b *bench) tenMillionKeys() error {
	n := b.sizes.tenMillion
	ours, err := ourShape(keyOf("pen"), tokenBucket, 1)
	if err != nil {
		return err
	}
	if err := b.empty(); err != nil {
		return err
	}
	defer func() { _ = b.empty() }()
	b.say("%s keys: filling", measure.Thousands(n))
	w, err := weigh(b.server, "standalone", ours, n)
	if err != nil {
		return err
	}
	incr := incrShape()
	if _, err := fillFresh(b.server, incr, n); err != nil {
		return err
	}
	l := load{connections: 50, pipeline: 16, requests: b.sizes.requests, keys: n}
	presses, err := pressInTurns(b.server, l, b.pressRounds(), []*shape{incr, ours})
	if err != nil {
		return err
	}
	b.report.weights = append(b.report.weights, w)
	b.report.addPresses(measure.Thousands(n)+" keys, 50 connections, pipelines of 16", presses)
	rate := measure.SpreadOf(presses[1].rates).Median
	b.report.Add(fmt.Sprintf("%s keys, token bucket", measure.Thousands(n)), "", true,
		"%.1f B a key, %.0f thousand decisions a second (%s INCR)", w.bytes, rate/1000,
		measure.TimesWithSpread(measure.SpreadOf(measure.Ratios(presses[1].rates, presses[0].rates))))
	return nil
}
