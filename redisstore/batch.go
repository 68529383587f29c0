package redisstore

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
)

// A batch carries trips that are made at the same time, under one limit and for
// the same cost, in one script: to enter a script costs Redis more than another
// step in it, and each call costs the client and the kernel as much again.
//
// Nobody waits for a coach to fill. Whoever is the only one under way goes at once,
// and alone. Otherwise the first to come lets those board who are ready to run, and
// leaves.
type batch struct {
	takes []*pendingTake
	calls [1]Call
}

// maxBatch is how many trips one coach takes at most, for a script keeps everybody
// else waiting.
const maxBatch = 64

// How many moments of a log, or buckets of a ring, take as long to read and write
// as all that a script does for a key that holds one number.
const (
	logEntriesPerStep  = 150
	ringBucketsPerStep = 3
)

// maxBatchFor returns how many trips under a limit one coach takes, so that the
// script is about as short for all limits. Sixty-four rings of a thousand buckets
// would take longer than a call may.
func maxBatchFor(normal *penstock.Limit) int {
	switch normal.Algorithm {
	case penstock.RollingWindow:
		return max(maxBatch/(1+normal.Buckets/ringBucketsPerStep), 1)
	case penstock.SlidingLog:
		return max(maxBatch/(1+int(normal.Count)/logEntriesPerStep), 1)
	}
	return maxBatch
}

var batchPool = sync.Pool{New: func() any { return &batch{takes: make([]*pendingTake, 0, maxBatch)} }}

// submit makes a trip, in company if there is any.
func (s *Store) submit(ctx context.Context, t *pendingTake) (penstock.Decision, error) {
	t.start = time.Now()
	p := t.request.limit
	defer p.inFlight.Add(-1)
	if p.inFlight.Add(1) == 1 || t.request.once || p.maxBatch == 1 || s.batchingOff.Load() || ctx.Err() != nil {
		return s.walk(ctx, t)
	}
	c, first := t.join(ctx)
	if c == nil {
		return s.walk(ctx, t)
	}
	if first {
		runtime.Gosched()
		if p.seal(c); len(c.takes) == 1 {
			c.release()
			return s.walk(ctx, t)
		}
		go s.flush(c) // for the first may have to leave before the others
	}
	return s.await(ctx, t)
}

// walk makes a trip alone.
func (s *Store) walk(ctx context.Context, t *pendingTake) (penstock.Decision, error) {
	d := deadlineAfter(ctx, s.timeout-time.Since(t.start))
	defer d.stop()
	return s.sendAlone(d, t)
}

// maxJoinDelay is for how long others board after the first: they share its deadline, and
// on a machine with much to do it may be a while before it runs again.
const maxJoinDelay = time.Millisecond

// join finds a seat in a coach that goes there, or opens one. There is none if
// those who wait ask for something else, or have waited for long.
func (t *pendingTake) join(ctx context.Context) (c *batch, first bool) {
	p := t.request.limit
	t.prepare(ctx)
	p.batchMu.Lock()
	defer p.batchMu.Unlock()
	if c = p.openBatch; c == nil {
		c, first = batchPool.Get().(*batch), true
		p.openBatch = c
	} else if c.takes[0].request.ask != t.request.ask || t.start.Sub(c.takes[0].start) > maxJoinDelay {
		return nil, false
	}
	if c.takes = append(c.takes, t); len(c.takes) == p.maxBatch {
		p.openBatch = nil
	}
	return c, first
}

// prepare makes a trip ready to be made in company.
func (t *pendingTake) prepare(ctx context.Context) {
	t.ctx, t.alone, t.err = ctx, false, nil
	t.calls[0].Script, t.calls[0].Reply = t.request.limit.batchScript, t.calls[0].Reply[:0]
}

// seal lets nobody else board.
func (p *compiledLimit) seal(c *batch) {
	p.batchMu.Lock()
	defer p.batchMu.Unlock()
	if p.openBatch == c {
		p.openBatch = nil
	}
}

// await waits for the end of a trip. The coach arrives in time, one way or the
// other, so that only the caller's own context has to be watched.
func (s *Store) await(ctx context.Context, t *pendingTake) (d penstock.Decision, err error) {
	select {
	case <-t.done:
	case <-ctx.Done():
		return d, t.calls[0].wrapError(ctx.Err())
	}
	switch {
	case t.err != nil:
		return d, t.err
	case t.alone:
		return s.walk(ctx, t)
	}
	if d, ok, err := s.decode(&t.request, &t.calls[0]); ok {
		return d, err
	}
	return s.walk(ctx, t)
}

// flush makes the trips of a coach.
func (s *Store) flush(c *batch) {
	d := deadlineAfter(context.Background(), s.timeout-time.Since(c.takes[0].start))
	defer d.stop()
	call := &c.calls[0]
	place, err := s.acquire(d)
	switch c.encode(s); { // not before: who goes away while it waits to enter is left behind
	case len(c.takes) == 0:
		s.inflight.release(place)
	case err != nil:
		call.Err = err
	default:
		s.attempt(d, place, c.calls[:])
	}
	c.dispatch(s, d)
	if call.Err == nil { // after an error, somebody may still be writing into it
		c.release()
	}
}

func (c *batch) release() {
	clear(c.takes[:cap(c.takes)])
	c.takes = c.takes[:0]
	batchPool.Put(c)
}

// encode puts the trips into one call. Who has gone away meanwhile must not be
// charged.
func (c *batch) encode(s *Store) {
	call, q := &c.calls[0], c.takes[0].request
	s.encodeArgs(&q, call)
	call.Script, call.Keys = q.limit.batchScript, call.Keys[:0]
	staying := c.takes[:0]
	for _, t := range c.takes {
		if t.ctx.Err() == nil {
			staying = append(staying, t)
			call.Keys = append(call.Keys, t.calls[0].Keys[0])
		}
	}
	c.takes = staying
}

// dispatch tells each what came of its trip.
func (c *batch) dispatch(s *Store, d *deadline) {
	switch call := &c.calls[0]; {
	case call.Err != nil && strings.HasPrefix(call.Err.Error(), "CROSSSLOT"):
		s.batchingOff.Store(true) // what looks like one server is several
		c.each(func(t *pendingTake) { t.alone = true })
	case call.Err != nil && strings.HasPrefix(call.Err.Error(), "NOPERM"):
		c.each(func(t *pendingTake) { t.alone = true }) // it may be about one key, and comes before a script begins
	case call.Err != nil:
		err := s.callError(d, call)
		c.each(func(t *pendingTake) { t.err = err })
	case len(call.Reply) > 0 && call.Reply[0] == noWindow:
		c.each(func(t *pendingTake) { t.alone = true }) // and finds out where the clock is
	default:
		c.split(call)
	}
	c.each(func(t *pendingTake) { t.done <- struct{}{} })
}

func (c *batch) each(do func(*pendingTake)) {
	for _, t := range c.takes {
		do(t)
	}
}

// The numbers that stand for what one key's step has returned, where that is not
// one number.
const (
	failedStep = -2
	listedStep = -3 // and a list of them follows
)

// split gives each its part of the reply.
func (c *batch) split(call *Call) {
	rest := call.Reply
	for _, t := range c.takes {
		own := &t.calls[0]
		switch n := t.request.limit.replyLen(); {
		case len(rest) > 0 && rest[0] == failedStep:
			t.alone, rest = true, rest[1:] // to be told what is wrong
		case len(rest) > n && rest[0] == listedStep:
			own.Reply, rest = append(own.Reply, rest[1:n+1]...), rest[n+1:]
		case len(rest) > 0 && rest[0] >= 0:
			own.Reply, rest = append(own.Reply, rest[0]), rest[1:]
		default:
			t.err = call.unexpectedReply()
		}
	}
}
