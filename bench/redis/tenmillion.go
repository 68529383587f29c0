package main

import (
	"fmt"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// tenMillionKeys measures Redis with more keys than any cache holds. INCR has as many.
// It has no target.
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
	b.logf("%s keys: filling", measure.Thousands(n))
	w, err := weigh(b.server, "standalone", ours, n)
	if err != nil {
		return err
	}
	incr := incrShape()
	if _, err := fillFresh(b.server, incr, n); err != nil {
		return err
	}
	l := load{connections: 50, pipeline: 16, requests: b.sizes.requests, keys: n}
	runs, err := benchmarkInTurns(b.server, l, b.benchmarkRounds(), []*shape{incr, ours})
	if err != nil {
		return err
	}
	b.report.weights = append(b.report.weights, w)
	b.report.addBenchmarkRuns(measure.Thousands(n)+" keys, 50 connections, pipelines of 16", runs)
	rate := measure.SpreadOf(runs[1].rates).Median
	b.report.Add(fmt.Sprintf("%s keys, token bucket", measure.Thousands(n)), "", true,
		"%.1f B a key, %.0f thousand decisions a second (%s INCR)", w.bytes, rate/1000,
		measure.TimesWithSpread(measure.SpreadOf(measure.Ratios(runs[1].rates, runs[0].rates))))
	return nil
}
