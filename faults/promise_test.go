package faults

import (
	"errors"
	"slices"
	"time"

	"github.com/penstock-io/penstock"
)

// A promise is what holds of every key in spite of a fault.
type promise struct {
	lives  int64 // how many bursts a key may get: one, and one for each time that its state may be lost
	calm   bool  // whether no caller may get an error
	wasted int64 // units of a key that may be lost besides those of calls that were not answered
	nodes  int   // that ask
	layers layers
	limits []penstock.Limit // of keys, in turn
}

// Layers are what a node has around its store.
type layers string

const (
	alone     layers = "Redis"
	guarded   layers = "Redis, fallback, deny cache"
	leased    layers = "Redis, fallback, leases"
	hoarding  layers = "Redis, leases"
	inProcess layers = "memory"
	daemonic  layers = "daemon"
)

// flow is the key of which units come back while a run lasts. Of all others none
// do, so that their limit is also all that they may ever be granted.
const flow = -1

var flowLimit = penstock.PerSecond(400).WithBurst(200)

func (p *promise) limitOf(key int) penstock.Limit {
	if key == flow {
		return flowLimit
	}
	return p.limits[key%len(p.limits)]
}

// capacity returns the most that can be granted at once.
func capacity(l penstock.Limit) int64 {
	if l.Burst > 0 {
		return l.Burst
	}
	return l.Count
}

// rateOf returns how many units come back in a second; of those that do not while
// a run lasts, none.
func rateOf(l penstock.Limit) int64 { return int64(float64(l.Count) / l.Period.Seconds()) }

// livesOf returns how many bursts a key may get, of which these are events. One that
// nobody had asked for when all was lost has lost nothing.
func (p *promise) livesOf(events []event, h *history) int64 {
	if h.lost > 0 && slices.IndexFunc(events, func(e event) bool { return e.begin < h.lost }) < 0 {
		return 1
	}
	return p.lives
}

// fallback returns what one node may grant of a key at once while the store is
// away. Share is one over the number of nodes.
func (p *promise) fallback(l penstock.Limit) int64 {
	if p.layers != guarded && p.layers != leased && p.layers != daemonic {
		return 0
	}
	return max(capacity(l)/int64(p.nodes), 1)
}

// lot returns how much of a key one call may take for a lease.
func (p *promise) lot(l penstock.Limit) int64 {
	if p.layers != leased && p.layers != hoarding {
		return 0
	}
	return capacity(l) / int64(10*p.nodes)
}

// leased returns what leases may spend of a key beyond its limit, because units
// that they took before are spent now. Nothing comes back meanwhile of those that
// never get any back.
func (p *promise) leased(l penstock.Limit) int64 {
	return min(p.lot(l)*int64(p.nodes), rateOf(l)*int64(leaseAge)/int64(time.Second))
}

// bound returns the most that may be granted of a key in a run of some length, in
// which it had some lives, and some nodes had to decide without the store.
func (p *promise) bound(key int, length time.Duration, lives, away int64) int64 {
	l := p.limitOf(key)
	refill := rateOf(l) * int64(length+tick) / int64(time.Second)
	return lives*capacity(l) + refill + p.leased(l) + away*(p.fallback(l)+refill/int64(p.nodes))
}

// fails reports whether an error is one that callers have to expect.
func (p *promise) fails(err error) bool { return errors.Is(err, penstock.ErrUnavailable) }

// burst is what each of the slow limits grants at once.
const burst = 60

// slowLimits are limits of every kind, of which nothing comes back while a run
// lasts.
var slowLimits = []penstock.Limit{
	{Algorithm: penstock.TokenBucket, Count: burst, Period: 300 * 24 * time.Hour},
	{Algorithm: penstock.LeakyBucket, Count: burst, Period: 300 * 24 * time.Hour, Burst: burst},
	{Algorithm: penstock.FixedWindow, Count: burst, Period: 24 * time.Hour},
	{Algorithm: penstock.FixedWindow, Count: burst, Align: penstock.AlignClock, Period: 366 * 24 * time.Hour},
	{Algorithm: penstock.SlidingWindow, Count: burst, Period: 24 * time.Hour},
	{Algorithm: penstock.RollingWindow, Count: burst, Period: 240 * time.Hour},
	{Algorithm: penstock.SlidingLog, Count: burst, Period: 24 * time.Hour},
}

// leasedLimits are limits that are worth to be leased.
var leasedLimits = []penstock.Limit{{Count: 2000, Period: 300 * 24 * time.Hour}}
