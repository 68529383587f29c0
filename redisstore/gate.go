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
// connection must have been given up.
type gate struct {
	places    chan struct{}
	abandoned atomic.Int64
	patience  time.Duration // after which a connection that is silent is closed
}

func newGate(places int, patience time.Duration) *gate {
	return &gate{places: make(chan struct{}, places), patience: patience}
}

// enter takes a place, and waits for one until ctx ends.
func (g *gate) enter(ctx context.Context) error {
	select {
	case g.places <- struct{}{}:
		return nil
	default:
	}
	select {
	case g.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leave frees the place of a trip that has ended, and those of trips abandoned
// before, because Redis is answering again.
func (g *gate) leave() {
	<-g.places
	if g.abandoned.Load() == 0 {
		return
	}
	for n := g.abandoned.Swap(0); n > 0; n-- {
		<-g.places
	}
}

// abandon leaves the place taken for now.
func (g *gate) abandon() {
	g.abandoned.Add(1)
	time.AfterFunc(g.patience, g.reclaim)
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
