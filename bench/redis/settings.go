package main

import (
	"fmt"
	"math"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/measure"
	"github.com/penstock-io/penstock/internal/rivalscripts"
)

// The documents that propose the logs measure them with 500 connections, no
// pipeline, 500,000 keys at random, a moment at random too, two units in 30,000,
// and the script's text in each call. These are the same settings; penstock sends
// what it always sends, for two units in 30 seconds.

// settings presses the two logs and penstock as those documents do.
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
	l := load{connections: b.sizes.crowd, pipeline: 1, requests: b.sizes.crowdRequests, keys: b.sizes.crowdKeys}
	b.say("settings: %d rounds of %d requests for each of %d shapes", b.pressRounds(), l.requests, len(shapes))
	presses, err := pressRandomly(b.server, l, b.pressRounds(), shapes)
	if err != nil {
		return err
	}
	b.report.addPresses(fmt.Sprintf("%d connections, no pipeline", l.connections), presses)
	weights, err := b.weighRandomly(l, shapes[1:])
	if err != nil {
		return err
	}
	b.findSettings(presses[1:], weights)
	return nil
}

// settingsShapes returns INCR, the two logs, and then ours.
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

// pressRandomly lets the shapes take turns on keys that come as they are asked
// about. A key that is asked for a third time is denied, so grants are not
// counted; that nothing fails is.
func pressRandomly(srv *server, l load, rounds int, shapes []*shape) ([]*press, error) {
	presses := make([]*press, len(shapes))
	for i, s := range shapes {
		presses[i] = &press{shape: s}
	}
	for range rounds {
		for _, p := range presses {
			d, err := p.turn(srv, l)
			if err != nil {
				return nil, err
			}
			if n := d.failed(); n > 0 || d.commands[p.shape.command()].calls < l.requests {
				return nil, fmt.Errorf("%s: %d commands failed of %d", p.shape.name, n, l.requests)
			}
		}
	}
	return presses, nil
}

// weighRandomly presses each shape alone, from nothing, and weighs its keys.
func (b *bench) weighRandomly(l load, shapes []*shape) ([]weight, error) {
	var ws []weight
	for _, s := range shapes {
		if err := b.empty(); err != nil {
			return nil, err
		}
		d, err := (&press{shape: s}).turn(b.server, l)
		if err != nil {
			return nil, err
		}
		// Of so many keys, requests at random leave this share alone.
		want := float64(l.keys) * (1 - math.Exp(-float64(l.requests)/float64(l.keys)))
		if d.keys != d.expires || math.Abs(float64(d.keys)-want) > 0.1*want+10 {
			return nil, fmt.Errorf("%s: %d keys, %d with an expiry; want about %.0f", s.name, d.keys, d.expires, want)
		}
		ws = append(ws, weight{s.name, fmt.Sprintf("%d connections", l.connections), d.keys, float64(d.memory) / float64(d.keys)})
	}
	b.report.weights = append(b.report.weights, ws...)
	return ws, nil
}

// findSettings compares each of ours with the better of the two logs.
func (b *bench) findSettings(presses []*press, weights []weight) {
	lighter := min(weights[0].bytes, weights[1].bytes)
	for i, p := range presses[2:] {
		hash := measure.SpreadOf(measure.Ratios(p.rates, presses[0].rates))
		zset := measure.SpreadOf(measure.Ratios(p.rates, presses[1].rates))
		bytes := weights[2+i].bytes
		b.report.Add(fmt.Sprintf("%s, with the documents' settings", p.shape.name), "faster and smaller than hash log and zset log",
			hash.Median > 1 && zset.Median > 1 && bytes < lighter,
			"%s the hash log, %s the zset log; %.0f B a key to %.0f and %.0f",
			measure.TimesWithSpread(hash), measure.TimesWithSpread(zset), bytes, weights[0].bytes, weights[1].bytes)
	}
}
