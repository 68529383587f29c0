package redisstore

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
)

// A coach carries trips that are made at the same time, under one limit and for
// the same cost, in one script: to enter a script costs Redis more than another
// step in it, and each call costs the client and the kernel as much again.
//
// Nobody waits for a coach to fill. Whoever is the only one under way goes at once,
// and alone. Otherwise the first to come lets those board who are ready to run, and
// leaves.
type coach struct {
	trips []*trip
	calls [1]Call
}

// seats is how many trips one coach takes at most, for a script keeps everybody
// else waiting.
const seats = 64

// How many moments of a log, or buckets of a ring, take as long to read and write
// as all that a script does for a key that holds one number.
const (
	momentsOfAStep = 150
	bucketsOfAStep = 3
)

// seatsFor returns how many trips under a limit one coach takes, so that the
// script is about as short for all limits. Sixty-four rings of a thousand buckets
// would take longer than a call may.
func seatsFor(normal *penstock.Limit) int {
	switch normal.Algorithm {
	case penstock.RollingWindow:
		return max(seats/(1+normal.Buckets/bucketsOfAStep), 1)
	case penstock.SlidingLog:
		return max(seats/(1+int(normal.Count)/momentsOfAStep), 1)
	}
	return seats
}

var coaches = sync.Pool{New: func() any { return &coach{trips: make([]*trip, 0, seats)} }}

// ride makes a trip, in company if there is any.
func (s *Store) ride(ctx context.Context, t *trip) (penstock.Decision, error) {
	t.began = time.Now()
	p := t.question.plan
	defer p.riding.Add(-1)
	if p.riding.Add(1) == 1 || t.question.once || p.seats == 1 || s.apart.Load() || ctx.Err() != nil {
		return s.walk(ctx, t)
	}
	c, first := t.board(ctx)
	if c == nil {
		return s.walk(ctx, t)
	}
	if first {
		runtime.Gosched()
		if p.depart(c); len(c.trips) == 1 {
			c.release()
			return s.walk(ctx, t)
		}
		go s.drive(c) // for the first may have to leave before the others
	}
	return s.arrive(ctx, t)
}

// walk makes a trip alone.
func (s *Store) walk(ctx context.Context, t *trip) (penstock.Decision, error) {
	d := deadlineAfter(ctx, s.timeout-time.Since(t.began))
	defer d.stop()
	return s.ask(d, t)
}

// boardingTime is for how long others board after the first: they share its deadline, and
// on a machine with much to do it may be a while before it runs again.
const boardingTime = time.Millisecond

// board finds a seat in a coach that goes there, or opens one. There is none if
// those who wait ask for something else, or have waited for long.
func (t *trip) board(ctx context.Context) (c *coach, first bool) {
	p := t.question.plan
	t.begin(ctx)
	p.boarding.Lock()
	defer p.boarding.Unlock()
	if c = p.waiting; c == nil {
		c, first = coaches.Get().(*coach), true
		p.waiting = c
	} else if c.trips[0].question.ask != t.question.ask || t.began.Sub(c.trips[0].began) > boardingTime {
		return nil, false
	}
	if c.trips = append(c.trips, t); len(c.trips) == p.seats {
		p.waiting = nil
	}
	return c, first
}

// begin makes a trip ready to be made in company.
func (t *trip) begin(ctx context.Context) {
	t.ctx, t.alone, t.err = ctx, false, nil
	t.calls[0].Script, t.calls[0].Reply = t.question.plan.many, t.calls[0].Reply[:0]
}

// depart lets nobody else board.
func (p *plan) depart(c *coach) {
	p.boarding.Lock()
	defer p.boarding.Unlock()
	if p.waiting == c {
		p.waiting = nil
	}
}

// arrive waits for the end of a trip. The coach arrives in time, one way or the
// other, so that only the caller's own context has to be watched.
func (s *Store) arrive(ctx context.Context, t *trip) (d penstock.Decision, err error) {
	select {
	case <-t.arrived:
	case <-ctx.Done():
		return d, t.calls[0].failed(ctx.Err())
	}
	switch {
	case t.err != nil:
		return d, t.err
	case t.alone:
		return s.walk(ctx, t)
	}
	if d, ok, err := s.answer(&t.question, &t.calls[0]); ok {
		return d, err
	}
	return s.walk(ctx, t)
}

// drive makes the trips of a coach.
func (s *Store) drive(c *coach) {
	d := deadlineAfter(context.Background(), s.timeout-time.Since(c.trips[0].began))
	defer d.stop()
	call := &c.calls[0]
	place, err := s.enter(d)
	switch c.load(s); { // not before: who goes away while it waits to enter is left behind
	case len(c.trips) == 0:
		s.gate.leave(place)
	case err != nil:
		call.Err = err
	default:
		s.pass(d, place, c.calls[:])
	}
	c.deliver(s, d)
	if call.Err == nil { // after an error, somebody may still be writing into it
		c.release()
	}
}

func (c *coach) release() {
	clear(c.trips[:cap(c.trips)])
	c.trips = c.trips[:0]
	coaches.Put(c)
}

// load puts the trips into one call. Who has gone away meanwhile must not be
// charged.
func (c *coach) load(s *Store) {
	call, q := &c.calls[0], c.trips[0].question
	s.poseAgain(&q, call)
	call.Script, call.Keys = q.plan.many, call.Keys[:0]
	staying := c.trips[:0]
	for _, t := range c.trips {
		if t.ctx.Err() == nil {
			staying = append(staying, t)
			call.Keys = append(call.Keys, t.calls[0].Keys[0])
		}
	}
	c.trips = staying
}

// deliver tells each what came of its trip.
func (c *coach) deliver(s *Store, d *deadline) {
	switch call := &c.calls[0]; {
	case call.Err != nil && strings.HasPrefix(call.Err.Error(), "CROSSSLOT"):
		s.apart.Store(true) // what looks like one server is several
		c.each(func(t *trip) { t.alone = true })
	case call.Err != nil && strings.HasPrefix(call.Err.Error(), "NOPERM"):
		c.each(func(t *trip) { t.alone = true }) // it may be about one key, and comes before a script begins
	case call.Err != nil:
		err := s.callError(d, call)
		c.each(func(t *trip) { t.err = err })
	case len(call.Reply) > 0 && call.Reply[0] == noWindow:
		c.each(func(t *trip) { t.alone = true }) // and finds out where the clock is
	default:
		c.share(call)
	}
	c.each(func(t *trip) { t.arrived <- struct{}{} })
}

func (c *coach) each(do func(*trip)) {
	for _, t := range c.trips {
		do(t)
	}
}

// The numbers that stand for what one key's step has returned, where that is not
// one number.
const (
	failedStep = -2
	listedStep = -3 // and a list of them follows
)

// share gives each its part of the reply.
func (c *coach) share(call *Call) {
	rest := call.Reply
	for _, t := range c.trips {
		own := &t.calls[0]
		switch n := t.question.plan.replyLen(); {
		case len(rest) > 0 && rest[0] == failedStep:
			t.alone, rest = true, rest[1:] // to be told what is wrong
		case len(rest) > n && rest[0] == listedStep:
			own.Reply, rest = append(own.Reply, rest[1:n+1]...), rest[n+1:]
		case len(rest) > 0 && rest[0] >= 0:
			own.Reply, rest = append(own.Reply, rest[0]), rest[1:]
		default:
			t.err = call.unexpected()
		}
	}
}
