package main

import (
	_ "time/tzdata" // A calendar window needs its zone wherever this runs.

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/measure"
)

// A variant is one of penstock's algorithms: a limit that admits every call of a run,
// and one of the same algorithm with one unit an hour or longer.
type variant struct {
	name        string
	ample, once penstock.Limit
}

// variants are all algorithms except the token bucket and the log, which have cases of
// their own; the log must turn over to be measured. Windows are one second long, so
// that they end many times during a run.
func variants(n int) []variant {
	second := penstock.PerSecond(1_000_000)
	hour := penstock.PerHour(1)
	window := func(name string, a penstock.Algorithm) variant {
		return variant{name, second.WithAlgorithm(a), hour.WithAlgorithm(a)}
	}
	return []variant{
		{
			"leaky-bucket",
			tokenBucket(ample(n)).WithAlgorithm(penstock.LeakyBucket),
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

// contender returns a contender with the variant's limits.
func (f variant) contender() contender {
	return contender{name: "penstock " + f.name, keyed: true, open: func(p benchLimit, n int) (limiter, error) {
		l := f.ample
		if p == once {
			l = f.once
		}
		return newLimited(memoryFor(n), l)
	}}
}

// otherAlgorithms measures keys that fit into a cache, for each variant.
func (b *bench) otherAlgorithms() error {
	n := b.sizes.many
	for _, f := range variants(n) {
		l, err := openFilled(f.contender(), ample(n), n)
		if err != nil {
			return err
		}
		if err := b.againstFloor(measure.Thousands(n)+" keys, "+f.name, l, newRing(0, n), 3.3); err != nil {
			return err
		}
	}
	return nil
}
