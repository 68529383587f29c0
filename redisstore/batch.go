package redisstore

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
)

// A batch is one script for concurrent takes under one limit and for the same
// cost. Starting a script costs Redis more than another key in it, and each call
// costs the client and the kernel as much again.
//
// No take waits for a batch to fill. An idle store sends immediately, unbatched.
// Otherwise the first take of a batch yields the processor once, so that
// goroutines that are ready to run can join, and seals it.
type batch struct {
	takes []*pendingTake
	calls [1]Call
}

// maxBatch is the most takes in one batch. It is small because a script blocks
// all other clients.
const maxBatch = 64

// The entries of a log, buckets of a ring, or permits, that Redis reads and writes in the time
// of one step on a key that holds one number.
const (
	logEntriesPerStep  = 150
	permitsPerStep     = 40
	ringBucketsPerStep = 3
)

// maxBatchFor returns the most takes in one batch under a limit, so that scripts
// take about the same time under all limits. Sixty-four rings of a thousand buckets
// would outlast the default timeout.
func maxBatchFor(normal *penstock.Limit) int {
	switch normal.Algorithm {
	case penstock.RollingWindow:
		return max(maxBatch/(1+normal.Buckets/ringBucketsPerStep), 1)
	case penstock.SlidingLog:
		return max(maxBatch/(1+int(normal.Count)/logEntriesPerStep), 1)
	case penstock.Concurrent:
		return max(maxBatch/(1+int(normal.Count)/permitsPerStep), 1)
	}
	return maxBatch
}

var batchPool = sync.Pool{New: func() any { return &batch{takes: make([]*pendingTake, 0, maxBatch)} }}

func (b *batch) release() {
	clear(b.takes[:cap(b.takes)])
	b.takes = b.takes[:0]
	batchPool.Put(b)
}

// mayBatch reports whether a request may share a script. A request with an ID may
// not: it has a second key, for its record, or arguments of its own.
func (s *Store) mayBatch(r *compiledRequest) bool {
	return !r.once && r.permit == "" && r.limit.maxBatch > 1 && !s.batchingOff.Load()
}

// sendBatched sends a take in a batch. ok is false if the take must be sent
// alone.
func (s *Store) sendBatched(ctx context.Context, t *pendingTake) (none penstock.Decision, ok bool, err error) {
	b, first := t.join(ctx)
	if b == nil {
		return none, false, nil
	}
	if first {
		runtime.Gosched()
		if t.request.limit.seal(b); len(b.takes) == 1 {
			b.release()
			return none, false, nil
		}
		go s.flush(b) // the caller of the first take may leave before the others
	}
	return s.await(ctx, t)
}

// maxJoinDelay is how long takes may join a batch after its first take. They
// share the deadline of the first, and on a busy machine it may be a while before
// that one runs again.
const maxJoinDelay = time.Millisecond

// join adds a take to the open batch of its limit, or opens one. It returns nil if
// the open batch is for another cost, or has been open for too long.
func (t *pendingTake) join(ctx context.Context) (b *batch, first bool) {
	t.prepare(ctx)
	l := t.request.limit
	l.batchMu.Lock()
	defer l.batchMu.Unlock()
	if b = l.openBatch; b == nil {
		b, first = batchPool.Get().(*batch), true
		l.openBatch = b
	} else if b.takes[0].request.ask != t.request.ask || t.start.Sub(b.takes[0].start) > maxJoinDelay {
		return nil, false
	}
	if b.takes = append(b.takes, t); len(b.takes) == l.maxBatch {
		l.openBatch = nil
	}
	return b, first
}

// prepare makes a take ready for a batch.
func (t *pendingTake) prepare(ctx context.Context) {
	t.ctx, t.alone, t.err = ctx, false, nil
	t.calls[0].Script, t.calls[0].Reply = t.request.limit.batchScript, t.calls[0].Reply[:0]
}

// seal closes a batch to further takes.
func (cl *compiledLimit) seal(b *batch) {
	cl.batchMu.Lock()
	defer cl.batchMu.Unlock()
	if cl.openBatch == b {
		cl.openBatch = nil
	}
}

// flush sends a sealed batch.
func (s *Store) flush(b *batch) {
	d := s.deadlineAfter(context.Background(), s.timeout-time.Since(b.takes[0].start))
	defer d.stop()
	call := &b.calls[0]
	held, err := s.inflight.acquire(d)
	switch b.encode(s); { // not earlier: callers may have left during the wait for a slot
	case len(b.takes) == 0:
		s.inflight.release(held)
	case err != nil:
		call.Err = err
	default:
		s.doWithRetries(d, held, b.calls[:])
	}
	b.dispatch(s, d)
	if call.Err == nil { // after an error, the client may still write into it
		b.release()
	}
}

// encode puts the takes into one call. Takes whose caller has left are dropped and
// not charged.
func (b *batch) encode(s *Store) {
	call, r := &b.calls[0], b.takes[0].request
	s.encodeArgs(&r, call)
	call.Script, call.Keys = r.limit.batchScript, call.Keys[:0]
	kept := b.takes[:0]
	for _, t := range b.takes {
		if t.ctx.Err() == nil {
			kept = append(kept, t)
			call.Keys = append(call.Keys, t.calls[0].Keys[0])
		}
	}
	b.takes = kept
}

// dispatch hands the result of the call to the takes.
func (b *batch) dispatch(s *Store, d *deadline) {
	switch call := &b.calls[0]; {
	case call.Err != nil && strings.HasPrefix(call.Err.Error(), "CROSSSLOT"):
		s.batchingOff.Store(true) // a sharded service that presents itself as one server
		b.each(func(t *pendingTake) { t.alone = true })
	case call.Err != nil && strings.HasPrefix(call.Err.Error(), "NOPERM"):
		b.each(func(t *pendingTake) { t.alone = true }) // it may concern one key; no script has run
	case call.Err != nil:
		err := s.callError(d, call)
		b.each(func(t *pendingTake) { t.err = err })
	case len(call.Reply) > 0 && call.Reply[0] == noWindow:
		b.each(func(t *pendingTake) { t.alone = true }) // sendAlone adjusts the clock offset
	default:
		b.split(call)
	}
	b.each(func(t *pendingTake) { t.done <- struct{}{} })
}

func (b *batch) each(do func(*pendingTake)) {
	for _, t := range b.takes {
		do(t)
	}
}

// Markers in the reply of a batch, where a step did not return one number.
const (
	failedStep = -2
	listedStep = -3 // a list of numbers follows
)

// split gives each take its part of the reply.
func (b *batch) split(call *Call) {
	rest := call.Reply
	for _, t := range b.takes {
		own := &t.calls[0]
		switch n := t.request.limit.replyLen(); {
		case len(rest) > 0 && rest[0] == failedStep:
			t.alone, rest = true, rest[1:] // to get the error of its own key
		case len(rest) > n && rest[0] == listedStep:
			own.Reply, rest = append(own.Reply, rest[1:n+1]...), rest[n+1:]
		case len(rest) > 0 && rest[0] >= 0:
			own.Reply, rest = append(own.Reply, rest[0]), rest[1:]
		default:
			t.err = call.unexpectedReply()
		}
	}
}

// await waits for the result of a batched take. The batch has its own deadline,
// so await watches only the caller's. ok is false if the take must be sent alone.
func (s *Store) await(ctx context.Context, t *pendingTake) (none penstock.Decision, ok bool, err error) {
	if s.earlyEnd(ctx, t.start) > 0 {
		d := s.deadlineAfter(ctx, s.timeout)
		defer d.stop()
		ctx = d
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		return none, true, s.awaitError(ctx, t)
	}
	if t.err != nil {
		return none, true, t.err
	}
	if t.alone {
		return none, false, nil
	}
	return s.decode(&t.request, &t.calls[0])
}

// awaitError returns the error of a take whose batch was not answered in time.
func (s *Store) awaitError(ctx context.Context, t *pendingTake) error {
	if d, early := ctx.(*deadline); early && d.callerErr() == nil {
		return s.callError(d, &Call{Script: t.request.limit.batchScript, Err: ctx.Err()}) // the batch may still write into its own
	}
	return t.calls[0].wrapError(ctx.Err())
}
