package redisstore

import (
	"context"
	"sync/atomic"
	"time"
)

// A inflightLimiter bounds the trips to Redis that are under way at once. A trip that is
// abandoned because its time is up keeps its place: its calls still wait in the
// connection's queue, and a queue that is full makes callers wait for longer than
// they may. The place becomes free when Redis answers somebody, or when the
// connection must have been given up. While all places are taken, one caller in a
// while may go without, to see whether Redis answers again.
type inflightLimiter struct {
	slots        chan struct{}
	abandoned    atomic.Int64
	connLifetime time.Duration // after which a connection that is silent is closed
	began        time.Time
	probed       atomic.Int64 // when somebody last went without a place, since began
}

// probeGap is the time between two who go without a place.
const probeGap = 100 * time.Millisecond

func newInflightLimiter(places int, patience time.Duration) *inflightLimiter {
	return &inflightLimiter{slots: make(chan struct{}, places), connLifetime: patience, began: time.Now()}
}

// acquire takes a place, and waits for one until ctx ends. It reports whether it
// got one; who did not, and has no error, goes without.
func (g *inflightLimiter) acquire(ctx context.Context) (place bool, err error) {
	select {
	case g.slots <- struct{}{}:
		return true, nil
	default:
	}
	if g.mayProbe() {
		return false, nil
	}
	select {
	case g.slots <- struct{}{}:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (g *inflightLimiter) mayProbe() bool {
	last, now := g.probed.Load(), int64(time.Since(g.began))
	return g.abandoned.Load() > 0 && now-last > int64(probeGap) && g.probed.CompareAndSwap(last, now)
}

// release frees the place of a trip that has ended.
func (g *inflightLimiter) release(place bool) {
	if place {
		<-g.slots
	}
}

// releaseAbandoned frees the places of trips abandoned before, because Redis is answering.
func (g *inflightLimiter) releaseAbandoned() {
	if g.abandoned.Load() == 0 {
		return
	}
	for n := g.abandoned.Swap(0); n > 0; n-- {
		<-g.slots
	}
}

// abandon leaves the place taken for now.
func (g *inflightLimiter) abandon(place bool) {
	if place {
		g.abandoned.Add(1)
		time.AfterFunc(g.connLifetime, g.expire)
	}
}

// expire frees the place of one abandoned trip, if leave has not.
func (g *inflightLimiter) expire() {
	for {
		n := g.abandoned.Load()
		if n == 0 {
			return
		}
		if g.abandoned.CompareAndSwap(n, n-1) {
			<-g.slots
			return
		}
	}
}
