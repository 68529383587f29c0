package main

import (
	"context"
	_ "time/tzdata" // A calendar window needs its zone wherever this runs.

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
)

// defaultMaxKeys is the default MaxKeys of a penstock.Memory.
const defaultMaxKeys = 1_000_000

// limited is penstock as most programs use it: a Limiter on a Store.
type limited struct {
	lim   *penstock.Limiter
	store *penstock.Memory // nil if there is something between them
	ctx   context.Context
}

func (l *limited) run(w *walk, calls int) (t harness.Counts) {
	for range calls {
		d, err := l.lim.Allow(l.ctx, w.key())
		t.Count(d.Allowed, err)
	}
	return t
}

func newLimited(s penstock.Store, l penstock.Limit) *limited {
	memory, _ := s.(*penstock.Memory)
	return &limited{lim: harness.Must(penstock.New(s, l)), store: memory, ctx: context.Background()}
}

// memoryFor returns a store for n keys: the default one while that is enough.
func memoryFor(n int) *penstock.Memory {
	if n <= defaultMaxKeys {
		return penstock.NewMemory(nil)
	}
	return penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: n})
}

func tokenBucket(p benchLimit) penstock.Limit {
	return penstock.Limit{Count: 1, Period: p.every, Burst: p.burst}
}

// ours is penstock with a token bucket.
var ours = library{name: "penstock", keyed: true, open: func(p benchLimit, n int) limiter {
	return newLimited(memoryFor(n), tokenBucket(p))
}}

// wrapper is a minimal wrapper of a store.
type wrapper struct{ next penstock.Store }

func (p wrapper) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	return p.next.Take(ctx, r)
}

// directStore is penstock without a Limiter: a Request passed to a Store.
func directStore(store penstock.Store, limit penstock.Limit) limiter {
	ctx := context.Background()
	return loop(func(w *walk, calls int) (t harness.Counts) {
		for range calls {
			d, err := store.Take(ctx, penstock.Request{Key: w.key(), Limit: limit, Cost: 1})
			t.Count(d.Allowed, err)
		}
		return t
	})
}

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
	return library{name: "penstock " + f.name, keyed: true, open: func(p benchLimit, n int) limiter {
		l := f.ample
		if p == once {
			l = f.once
		}
		return newLimited(memoryFor(n), l)
	}}
}
