package main

import (
	_ "time/tzdata" // A calendar window needs its zone wherever this runs.

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/measure"
)

// A form is one of the ways in which penstock counts: a limit that admits every
// call of a run, and the same way of counting with one unit an hour or longer.
type form struct {
	name        string
	roomy, once penstock.Limit
}

// forms are all but the token bucket, which has cases of its own, and the log,
// which has one because it must turn over to be measured. Windows are one
// second long, so that they end, and move on, many times during a run.
func forms(n int) []form {
	second := penstock.PerSecond(1_000_000)
	hour := penstock.PerHour(1)
	window := func(name string, a penstock.Algorithm) form {
		return form{name, second.WithAlgorithm(a), hour.WithAlgorithm(a)}
	}
	return []form{
		{
			"leaky-bucket",
			tokenBucket(roomy(n)).WithAlgorithm(penstock.LeakyBucket),
			tokenBucket(once).WithAlgorithm(penstock.LeakyBucket),
		},
		window("fixed-window", penstock.FixedWindow),
		{"fixed-window on the clock", onTheClock(second), onTheClock(penstock.PerDay(1))},
		{"fixed-window by calendar day", byDay(1_000_000), byDay(1)},
		window("sliding-window", penstock.SlidingWindow),
		window("rolling-window", penstock.RollingWindow),
	}
}

func onTheClock(l penstock.Limit) penstock.Limit {
	l.Algorithm, l.Align = penstock.FixedWindow, penstock.AlignClock
	return l
}

func byDay(count int64) penstock.Limit {
	l := penstock.PerDay(count).WithAlgorithm(penstock.FixedWindow)
	l.Align, l.Zone = penstock.AlignDay, "Asia/Shanghai"
	return l
}

// contestant opens the form on a store for n keys.
func (f form) contestant() contestant {
	return contestant{name: "penstock " + f.name, keyed: true, open: func(p policy, n int) (limiter, error) {
		l := f.roomy
		if p == once {
			l = f.once
		}
		return newLimited(memoryFor(n), l)
	}}
}

// otherAlgorithms asks about keys that fit into a cache, in each form.
func (b *bench) otherAlgorithms() error {
	n := b.sizes.many
	for _, f := range forms(n) {
		l, err := openFilled(f.contestant(), roomy(n), n)
		if err != nil {
			return err
		}
		if err := b.againstFloor(measure.Thousands(n)+" keys, "+f.name, l, newRing(0, n), 3.3); err != nil {
			return err
		}
	}
	return nil
}
