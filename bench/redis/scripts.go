package main

import (
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// command returns the name of the shape's command as the server counts it.
func (s *shape) command() string { return strings.ToLower(s.words[0]) }

// line is everything that takes turns under redis-benchmark: INCR first, and
// penstock next, so that the two sides of the ratio that matters are neighbours.
func line() (shapes []*shape, ours int, err error) {
	our, err := ourShapes(1)
	if err != nil {
		return nil, 0, err
	}
	shapes = append(shapes, incrShape())
	shapes = append(shapes, our...)
	shapes = append(shapes, pingShape(), trivialShape())
	return append(shapes, designShapes()...), len(our), nil
}

// scriptTargets are the shares of INCR's rate that our scripts are to reach, in
// the order of ourShapes.
var scriptTargets = []float64{0.18, 0.19, 0.18}

// scripts presses every shape with 50 connections of pipelines of 16, on keys
// that are there already.
func (b *bench) scripts() error {
	shapes, ours, err := line()
	if err != nil {
		return err
	}
	if err := b.prepare(shapes, b.sizes.pressed); err != nil {
		return err
	}
	l := load{connections: 50, pipeline: 16, requests: b.sizes.requests, keys: b.sizes.pressed}
	b.say("scripts: %d rounds of %d requests for each of %d shapes", b.pressRounds(), l.requests, len(shapes))
	presses, err := pressInTurns(b.server, l, b.pressRounds(), shapes)
	if err != nil {
		return err
	}
	b.report.addPresses("50 connections, pipelines of 16", presses)
	for i, p := range presses[1 : 1+ours] {
		share := measure.SpreadOf(measure.Ratios(p.rates, presses[0].rates))
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

// empty makes the server forget all keys. Scripts stay.
func (b *bench) empty() error {
	_, err := b.server.ask("FLUSHALL", "SYNC")
	return err
}
