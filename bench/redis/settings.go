package main

import (
	"fmt"
	"math"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/measure"
	"github.com/penstock-io/penstock/bench/lineage/rivalscripts"
)

// The documents that propose the logs measure them with 500 connections, no pipeline,
// 500,000 random keys, random times, two units in 30,000, and the script's text in each
// call. These are the same settings; penstock sends its usual commands, for two units in
// 30 seconds.

// settings measures the two logs and penstock as those documents do.
func (b *bench) settings() error {
	shapes, err := settingsShapes()
	if err != nil {
		return err
	}
	if err := b.empty(); err != nil {
		return err
	}
	if err := loadAll(b.server, shapes); err != nil {
		return err
	}
	l := load{connections: b.sizes.connections, pipeline: 1, requests: b.sizes.randomRequests, keys: b.sizes.randomKeys}
	b.logf("settings: %d rounds of %d requests for each of %d shapes", b.benchmarkRounds(), l.requests, len(shapes))
	runs, err := benchmarkRandomKeys(b.server, l, b.benchmarkRounds(), shapes)
	if err != nil {
		return err
	}
	b.report.addBenchmarkRuns(fmt.Sprintf("%d connections, no pipeline", l.connections), runs)
	weights, err := b.weighRandomly(l, shapes[1:])
	if err != nil {
		return err
	}
	b.findSettings(runs[1:], weights)
	return nil
}

// settingsShapes returns INCR, the two logs, and then penstock's shapes.
func settingsShapes() ([]*shape, error) {
	hash := scripted("hash log, by its text", rivalscripts.HashLog, []string{"h" + numberMark}, numberMark, "30000", "2").unscripted()
	zset := scripted("zset log, by its text", rivalscripts.ZsetLog, []string{"z" + numberMark}, numberMark, "30000", "2").unscripted()
	incr := &shape{name: "INCR", words: []string{"INCR", "i" + numberMark}, perKey: 1, lasting: true}
	shapes := []*shape{incr, hash, zset}
	for _, a := range []penstock.Algorithm{penstock.TokenBucket, penstock.SlidingWindow, penstock.SlidingLog} {
		s, err := ourShape(numberMark, penstock.Limit{Count: 2, Period: 30 * time.Second, Algorithm: a}, 1)
		if err != nil {
			return nil, err
		}
		shapes = append(shapes, s)
	}
	return shapes, nil
}

// benchmarkRandomKeys runs the shapes in turns on keys that are created on first use. A
// third request for a key is denied, so grants are not counted; failures are.
func benchmarkRandomKeys(srv *server, l load, rounds int, shapes []*shape) ([]*benchmarkRun, error) {
	runs := make([]*benchmarkRun, len(shapes))
	for i, s := range shapes {
		runs[i] = &benchmarkRun{shape: s}
	}
	for range rounds {
		for _, p := range runs {
			d, err := p.turn(srv, l)
			if err != nil {
				return nil, err
			}
			if n := d.failed(); n > 0 || d.commands[p.shape.command()].calls < l.requests {
				return nil, fmt.Errorf("%s: %d commands failed of %d", p.shape.name, n, l.requests)
			}
		}
	}
	return runs, nil
}

// weighRandomly runs each shape alone on an empty server, and measures its memory.
func (b *bench) weighRandomly(l load, shapes []*shape) ([]weight, error) {
	var ws []weight
	for _, s := range shapes {
		if err := b.empty(); err != nil {
			return nil, err
		}
		d, err := (&benchmarkRun{shape: s}).turn(b.server, l)
		if err != nil {
			return nil, err
		}
		// Random requests leave this share of the keys unused.
		want := float64(l.keys) * (1 - math.Exp(-float64(l.requests)/float64(l.keys)))
		if d.keys != d.expires || math.Abs(float64(d.keys)-want) > 0.1*want+10 {
			return nil, fmt.Errorf("%s: %d keys, %d with an expiry; want about %.0f", s.name, d.keys, d.expires, want)
		}
		ws = append(ws, weight{s.name, fmt.Sprintf("%d connections", l.connections), d.keys, float64(d.memory) / float64(d.keys)})
	}
	b.report.weights = append(b.report.weights, ws...)
	return ws, nil
}

// findSettings compares each of penstock's shapes with the better of the two logs.
func (b *bench) findSettings(runs []*benchmarkRun, weights []weight) {
	lighter := min(weights[0].bytes, weights[1].bytes)
	for i, p := range runs[2:] {
		hash := measure.SpreadOf(measure.Ratios(p.rates, runs[0].rates))
		zset := measure.SpreadOf(measure.Ratios(p.rates, runs[1].rates))
		bytes := weights[2+i].bytes
		b.report.Add(fmt.Sprintf("%s, with the documents' settings", p.shape.name), "faster and smaller than hash log and zset log",
			hash.Median > 1 && zset.Median > 1 && bytes < lighter,
			"%s the hash log, %s the zset log; %.0f B a key to %.0f and %.0f",
			measure.TimesWithSpread(hash), measure.TimesWithSpread(zset), bytes, weights[0].bytes, weights[1].bytes)
	}
}
