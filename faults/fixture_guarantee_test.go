package faults

import (
	"errors"
	"slices"
	"time"

	"github.com/penstock-io/penstock"
)

// A guarantee is what holds for every key in spite of a fault.
type guarantee struct {
	bursts   int64 // that a key may be granted: one, and one for each time that its state may be lost
	noErrors bool  // whether callers must not see errors
	maxLost  int64 // units of a key that may be lost, besides those of unanswered calls
	older    int64 // units of a key that may be spent once more, because part of its state became older
	nodes    int   // that use the store
	layers   layers
	limits   []penstock.Limit // of the keys, in turn
}

// Layers name a node's store and what wraps it.
type layers string

const (
	redisOnly    layers = "Redis"
	withFallback layers = "Redis, fallback, deny cache"
	withLeases   layers = "Redis, fallback, leases"
	leasesOnly   layers = "Redis, leases"
	memoryOnly   layers = "memory"
	viaDaemon    layers = "daemon"
	overRegions  layers = "regions"
	viaDaemons   layers = "daemons of regions"
)

// refillingKey is the only key that refills during a run. The others do not, so their
// limit is all that they may ever be granted.
const refillingKey = -1

var refillingLimit = penstock.PerSecond(400).WithBurst(200)

func (p *guarantee) limitOf(key int) penstock.Limit {
	if key == refillingKey {
		return refillingLimit
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

// rateOf returns how many units refill in a second. For limits that do not refill
// during a run it is 0.
func rateOf(l penstock.Limit) int64 { return int64(float64(l.Count) / l.Period.Seconds()) }

// burstsOf returns how many bursts the key of these events may be granted. A key that
// was first used after the loss, or last before it could begin, has lost nothing.
func (p *guarantee) burstsOf(events []event, h *history) int64 {
	if h.lostAt > 0 && !slices.ContainsFunc(events, func(e event) bool { return e.begin < h.lostAt && e.end >= h.keptUntil }) {
		return 1
	}
	return p.bursts
}

// fallbackShare returns what one node may grant of a key at once while the store is
// down. The share is one over the number of nodes.
func (p *guarantee) fallbackShare(l penstock.Limit) int64 {
	if p.layers != withFallback && p.layers != withLeases && p.layers != viaDaemon {
		return 0
	}
	return max(capacity(l)/int64(p.nodes), 1)
}

// leaseSize returns how many units of a key one call may take for a lease.
func (p *guarantee) leaseSize(l penstock.Limit) int64 {
	if p.layers != withLeases && p.layers != leasesOnly {
		return 0
	}
	return capacity(l) / int64(10*p.nodes)
}

// leaseExcess returns what leases may spend of a key beyond its limit, because units
// taken earlier are spent now. For a key that does not refill it is 0.
func (p *guarantee) leaseExcess(l penstock.Limit) int64 {
	return min(p.leaseSize(l)*int64(p.nodes), rateOf(l)*int64(leaseAge)/int64(time.Second))
}

// bound returns the most that may be granted of a key in a run of some length, with
// some bursts, and some nodes that used their fallback.
func (p *guarantee) bound(key int, length time.Duration, bursts, fallbacks int64) int64 {
	l := p.limitOf(key)
	refill := rateOf(l) * int64(length+tick) / int64(time.Second)
	return bursts*capacity(l) + p.older + refill + p.leaseExcess(l) + fallbacks*(p.fallbackShare(l)+refill/int64(p.nodes))
}

// expects reports whether a fault may cause an error.
func (p *guarantee) expects(err error) bool { return errors.Is(err, penstock.ErrUnavailable) }

// burst is what each of the slow limits grants at once.
const burst = 60

// slowLimits are limits of every algorithm that do not refill during a run.
var slowLimits = []penstock.Limit{
	{Algorithm: penstock.TokenBucket, Count: burst, Period: 300 * 24 * time.Hour},
	{Algorithm: penstock.LeakyBucket, Count: burst, Period: 300 * 24 * time.Hour, Burst: burst},
	{Algorithm: penstock.FixedWindow, Count: burst, Period: 24 * time.Hour},
	{Algorithm: penstock.FixedWindow, Count: burst, Align: penstock.AlignClock, Period: 366 * 24 * time.Hour},
	{Algorithm: penstock.SlidingWindow, Count: burst, Period: 24 * time.Hour},
	{Algorithm: penstock.RollingWindow, Count: burst, Period: 240 * time.Hour},
	{Algorithm: penstock.SlidingLog, Count: burst, Period: 24 * time.Hour},
}

// leasedLimits are large enough for leases.
var leasedLimits = []penstock.Limit{{Count: 2000, Period: 300 * 24 * time.Hour}}
