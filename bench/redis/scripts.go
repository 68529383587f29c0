package main

import (
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// command returns the name of the shape's command as the server counts it.
func (s *shape) command() string { return strings.ToLower(s.words[0]) }

// scriptShapes are all shapes for redis-benchmark: INCR first and penstock next, so that
// both sides of the ratio with a target run next to each other.
func scriptShapes() (shapes []*shape, ours int, err error) {
	our, err := ourShapes(1)
	if err != nil {
		return nil, 0, err
	}
	shapes = append(shapes, incrShape())
	shapes = append(shapes, our...)
	shapes = append(shapes, pingShape(), trivialShape())
	return append(shapes, designShapes()...), len(our), nil
}

// scriptTargets are the targets of the scripts as shares of INCR's rate, in the order of
// ourShapes.
var scriptTargets = []float64{0.18, 0.19, 0.18}

// scripts measures every shape with 50 connections and pipelines of 16, on existing
// keys.
func (b *bench) scripts() error {
	shapes, ours, err := scriptShapes()
	if err != nil {
		return err
	}
	if err := b.prepare(shapes, b.sizes.benchmarkKeys); err != nil {
		return err
	}
	l := load{connections: 50, pipeline: 16, requests: b.sizes.requests, keys: b.sizes.benchmarkKeys}
	b.logf("scripts: %d rounds of %d requests for each of %d shapes", b.benchmarkRounds(), l.requests, len(shapes))
	runs, err := benchmarkInTurns(b.server, l, b.benchmarkRounds(), shapes)
	if err != nil {
		return err
	}
	b.report.addBenchmarkRuns("50 connections, pipelines of 16", runs)
	for i, p := range runs[1 : 1+ours] {
		share := measure.SpreadOf(measure.Ratios(p.rates, runs[0].rates))
		b.report.Add(p.shape.name+" script, redis-benchmark -c 50 -P 16",
			fmt.Sprintf("≥ %s INCR's rate", measure.Times(scriptTargets[i])),
			share.Median >= scriptTargets[i], "%s", measure.TimesWithSpread(share))
	}
	return nil
}

// prepare empties the server, loads the scripts and fills each shape's keys.
func (b *bench) prepare(shapes []*shape, keys int) error {
	if err := b.empty(); err != nil {
		return err
	}
	if err := loadAll(b.server, shapes); err != nil {
		return err
	}
	for _, s := range shapes {
		if _, err := fillFresh(b.server, s, keys); err != nil {
			return err
		}
	}
	return nil
}

// empty deletes all keys. Scripts stay loaded.
func (b *bench) empty() error {
	_, err := b.server.command("FLUSHALL", "SYNC")
	return err
}
