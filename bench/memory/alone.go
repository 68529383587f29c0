package main

import (
	"fmt"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// aloneTurns is how many processes measure each contender.
const aloneTurns = 3

// aloneKeys measures a million keys with each limiter alone in a process of its own, as a
// program has it: no other limiter evicts its entries from the caches. The processes take
// turns.
func (b *bench) aloneKeys() error {
	title := measure.Thousands(b.sizes.million) + " keys, each limiter alone in its process"
	contenders := append([]contender{ours}, keyed(rivals)...)
	all := make([]timing, len(contenders))
	nanos := make([][]float64, len(contenders))
	for range aloneTurns {
		for i, c := range contenders {
			b.logf("%s: %s", title, c.name)
			var t aloneTime
			if err := runInChild("time", c.name, b.sizes.million, &t); err != nil {
				return err
			}
			nanos[i] = append(nanos[i], t.Nanos)
			all[i].title, all[i].name, all[i].allocs, all[i].keys = title, c.name, t.Allocations, t.Keys
		}
	}
	for i := range all {
		all[i].nanos, all[i].toOurs = measure.SpreadOf(nanos[i]), measure.SpreadOf(measure.Ratios(nanos[i], nanos[0]))
	}
	b.report.addTimings(all...)
	closest := all[1]
	for _, t := range all[2:] {
		if t.toOurs.Median < closest.toOurs.Median {
			closest = t
		}
	}
	b.report.Add(title, "≥ 2× faster than the next", closest.toOurs.Median >= 2, "%s, %s", measure.TimesWithSpread(closest.toOurs), closest.name)
	return nil
}

// An aloneTime is what a limiter takes in a process of its own.
type aloneTime struct {
	Nanos       float64 // a call, the median of the rounds
	Allocations float64 // a call
	Keys        int     // different ones that were used
}

// A process measures in one round for so many keys.
const (
	keysPerRound = 25_000
	aloneRound   = 10 * time.Millisecond
)

// timeByName measures one contender.
func timeByName(name string, keys int) (aloneTime, error) {
	for _, c := range append([]contender{ours}, keyed(rivals)...) {
		if c.name == name {
			return c.timeAlone(keys)
		}
	}
	return aloneTime{}, fmt.Errorf("unknown contender %q", name)
}

func (c contender) timeAlone(keys int) (aloneTime, error) {
	l, err := openFilled(c, ample(keys), keys)
	if err != nil {
		return aloneTime{}, err
	}
	defer release(l)
	e := newRunner(c.name, l, newRing(0, keys), 1)
	rounds := max(keys/keysPerRound, 1)
	e.least = min(keys, enoughKeys)/rounds + 1
	runRounds(rounds, aloneRound, e)
	used, err := e.verify(workload{keys: min(keys, enoughKeys)})
	return aloneTime{Nanos: measure.SpreadOf(e.nanos).Median, Allocations: e.allocations(), Keys: used}, err
}
