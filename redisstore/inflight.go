package redisstore

import (
	"context"
	"sync/atomic"
	"time"
)

// A gate bounds the trips to Redis that are under way at once. A trip that is
// abandoned because its time is up keeps its place: its calls still wait in the
// connection's queue, and a queue that is full makes callers wait for longer than
// they may. The place becomes free when Redis answers somebody, or when the
// connection must have been given up. While all places are taken, one caller in a
// while may go without, to see whether Redis answers again.
type gate struct {
	places    chan struct{}
	abandoned atomic.Int64
	patience  time.Duration // after which a connection that is silent is closed
	began     time.Time
	probed    atomic.Int64 // when somebody last went without a place, since began
}

// probeGap is the time between two who go without a place.
const probeGap = 100 * time.Millisecond

func newGate(places int, patience time.Duration) *gate {
	return &gate{places: make(chan struct{}, places), patience: patience, began: time.Now()}
}

// enter takes a place, and waits for one until ctx ends. It reports whether it
// got one; who did not, and has no error, goes without.
func (g *gate) enter(ctx context.Context) (place bool, err error) {
	select {
	case g.places <- struct{}{}:
		return true, nil
	default:
	}
	if g.probes() {
		return false, nil
	}
	select {
	case g.places <- struct{}{}:
		return true, nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}

func (g *gate) probes() bool {
	last, now := g.probed.Load(), int64(time.Since(g.began))
	return g.abandoned.Load() > 0 && now-last > int64(probeGap) && g.probed.CompareAndSwap(last, now)
}

// leave frees the place of a trip that has ended.
func (g *gate) leave(place bool) {
	if place {
		<-g.places
	}
}

// reopen frees the places of trips abandoned before, because Redis is answering.
func (g *gate) reopen() {
	if g.abandoned.Load() == 0 {
		return
	}
	for n := g.abandoned.Swap(0); n > 0; n-- {
		<-g.places
	}
}

// abandon leaves the place taken for now.
func (g *gate) abandon(place bool) {
	if place {
		g.abandoned.Add(1)
		time.AfterFunc(g.patience, g.reclaim)
	}
}

// reclaim frees the place of one abandoned trip, if leave has not.
func (g *gate) reclaim() {
	for {
		n := g.abandoned.Load()
		if n == 0 {
			return
		}
		if g.abandoned.CompareAndSwap(n, n-1) {
			<-g.places
			return
		}
	}
}
