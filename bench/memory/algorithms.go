package main

import (
	_ "time/tzdata" // A calendar window needs its zone wherever this runs.

	"github.com/penstock-io/penstock"
)

// A variant is one of penstock's algorithms: a limit that admits every call of a run,
// and one of the same algorithm with one unit an hour or longer.
type variant struct {
	name        string
	ample, once penstock.Limit
	atMost      float64 // the target, as a ratio to the floor; 0 for mostOfOthers
}

// mostOfOthers is the target of variants that have none of their own.
const mostOfOthers = 3.3

// variants are all algorithms except the token bucket and the log, which have cases of
// their own; the log must turn over to be measured. Windows are one second long, so
// that they end many times during a run.
func variants(n int) []variant {
	second := penstock.PerSecond(1_000_000)
	hour := penstock.PerHour(1)
	window := func(name string, a penstock.Algorithm) variant {
		return variant{name: name, ample: second.WithAlgorithm(a), once: hour.WithAlgorithm(a)}
	}
	rolling := window("rolling-window", penstock.RollingWindow)
	rolling.atMost = 2.8
	return []variant{
		{
			name:  "leaky-bucket",
			ample: tokenBucket(ample(n)).WithAlgorithm(penstock.LeakyBucket),
			once:  tokenBucket(once).WithAlgorithm(penstock.LeakyBucket),
		},
		window("fixed-window", penstock.FixedWindow),
		{name: "fixed-window on the clock", ample: onTheClock(second), once: onTheClock(penstock.PerDay(1))},
		{name: "fixed-window by calendar day", ample: byDay(1_000_000), once: byDay(1)},
		window("sliding-window", penstock.SlidingWindow),
		rolling,
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

// library returns penstock with the variant's limits.
func (f variant) library() library {
	return library{name: "penstock " + f.name, keyed: true, open: func(p benchLimit, n int) (limiter, error) {
		l := f.ample
		if p == once {
			l = f.once
		}
		return newLimited(memoryFor(n), l)
	}}
}
