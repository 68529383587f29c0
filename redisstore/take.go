package redisstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
)

// A singleTake is a request that is decided by itself, possibly in a batch with others.
type singleTake struct {
	pending
	request compiledRequest
}

var singleTakePool = sync.Pool{New: func() any { return newSingleTake() }}

func newSingleTake() *singleTake {
	t := &singleTake{}
	t.init()
	return t
}

// Take decides one request in one round trip, possibly in a batch with others.
func (s *Store) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	t := singleTakePool.Get().(*singleTake)
	if err := s.compile(&t.request, &r, 0); err != nil {
		return penstock.Decision{}, err
	}
	decision, err := s.submit(ctx, t)
	if err == nil { // after an error, the client may still write into it
		t.ctx = nil
		singleTakePool.Put(t)
	}
	return decision, err
}

// submit sends a take in a batch if other takes under its limit are in flight,
// and otherwise alone, without delay.
func (s *Store) submit(ctx context.Context, t *singleTake) (penstock.Decision, error) {
	t.start = time.Now()
	t.queue = t.request.queue()
	inFlight := &t.request.limit.takes.inFlight // of releases too
	if t.request.once() {
		inFlight = &t.queue.inFlight
	}
	defer inFlight.Add(-1)
	if inFlight.Add(1) > 1 && t.request.mayShare() {
		t.shares = t.request.sharing()
		switch ok, err := s.sendBatched(ctx, t); {
		case err != nil:
			return penstock.Decision{}, err
		case ok:
			if decision, ok, err := s.decode(&t.request, &t.calls[0]); ok {
				return decision, err
			}
		}
	}
	d := s.deadlineAfter(ctx, t.start, s.timeout)
	defer d.stop()
	return s.sendAlone(d, &t.request, t.calls[:])
}

// sendAlone sends a take in its own script, the only one of the calls. If Redis's time is outside
// the calendar windows sent with it, the reply contains that time, and the take is
// sent again.
func (s *Store) sendAlone(d *deadline, q *compiledRequest, calls []Call) (none penstock.Decision, err error) {
	c := &calls[0]
	c.Keys = q.appendKeys(c.Keys[:0])
	for range maxClockAttempts {
		s.encodeArgs(q, c)
		s.roundTrip(d, calls)
		if c.Err != nil {
			return none, s.callError(d, c)
		}
		if decision, ok, err := s.decode(q, c); ok {
			return decision, err
		}
	}
	return none, c.wrapError(errClockChanged)
}

// maxClockAttempts is how many times a request under a calendar limit is sent if
// Redis's time is outside its windows each time.
const maxClockAttempts = 3

var errClockChanged = fmt.Errorf("%w: Redis clock kept changing between attempts", penstock.ErrUnavailable)

// queue returns where the take can join a batch. Callers of a concurrency limit take and
// release as often, so each has a queue.
func (q *compiledRequest) queue() *batchQueue {
	switch {
	case q.permits != "" && q.ask.Cost < 0:
		return &q.limit.releases
	case q.settle:
		return &q.limit.settlements
	case q.once():
		return &q.limit.onceTakes
	}
	return &q.limit.takes
}

// mayShare reports whether a request may share a script. A refund under an ID that has a record
// may not: there are few of them.
func (q *compiledRequest) mayShare() bool { return !q.once() || q.settle || q.ask.Cost > 0 }

// sharing returns what the takes of a batch have in common. They differ in nothing but their keys and
// their IDs, and under IDs that have records, in their costs.
func (q *compiledRequest) sharing() sharing {
	common := sharing{ask: q.ask, hasPermit: q.permits != ""}
	if q.once() {
		common.ask.Cost = 0
	}
	if q.once() && !q.settle {
		common.recordTTL = q.recordTTL
	}
	return common
}

func (t *singleTake) encodeBatch(s *Store, takes []take, c *Call) {
	all := t.request
	if all.permits != "" {
		all.permits = joinPermits(takes)
	}
	s.encodeArgs(&all, c)
	for _, t := range takes {
		one := t.(*singleTake)
		c.Keys = one.request.appendKeys(c.Keys)
		if one.request.once() {
			c.argsBuf = append(c.argsBuf, one.request.costArg())
			c.Args = c.argsBuf
		}
	}
}

// joinPermits returns the names of all permits, one after the other.
func joinPermits(takes []take) string {
	all := make([]byte, 0, permitLen*len(takes))
	for _, t := range takes {
		all = append(all, t.(*singleTake).request.permits...)
	}
	return string(all)
}

func (t *singleTake) readBatch(reply []int64) (rest []int64, ok bool) {
	own := &t.calls[0]
	if t.request.once() {
		own.Reply, rest, ok = readCounted(own.Reply, reply)
	} else {
		own.Reply, rest, ok = t.request.limit.readStep(own.Reply, reply)
	}
	return rest, ok
}
