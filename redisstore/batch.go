package redisstore

import (
	"cmp"
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

// A batch is one script for several concurrent calls. Starting a script costs Redis more
// than another key in it, and each call costs the client and the kernel as much again.
// These can share a batch:
//
//   - takes under one limit, for the same cost;
//   - takes under one limit, each under an ID of its own, and settlements of such;
//   - TakeAlls, or TakeEachs, of the same steps: see takeGroup.
//
// No take waits for a batch to fill. An idle store sends immediately, unbatched.
// Otherwise the first take of a batch yields the processor once, so that
// goroutines that are ready to run can join, and seals it.
type batch struct {
	takes  []*pendingTake
	weight int // of all takes
	calls  [1]Call
}

// A batchQueue is where takes that can share a script meet.
type batchQueue struct {
	inFlight  atomic.Int64 // takes
	maxBatch  int          // the most that the takes in one batch weigh
	batchMu   sync.Mutex
	openBatch *batch // nil if there is none to join
}

// maxBatch is the most steps in one batch. It is small because a script blocks
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
	b.takes, b.weight = b.takes[:0], 0
	batchPool.Put(b)
}

// stepsPerID is how many steps a step under an ID counts as, because it also reads and writes
// the record of the ID.
const stepsPerID = 2

// mayBatch reports whether a request may share a script. A refund under an ID that has a record
// may not: there are few of them.
func (s *Store) mayBatch(r *compiledRequest) bool {
	if s.batchingOff.Load() {
		return false
	}
	if r.once {
		return (r.settle || r.ask.Cost > 0) && r.limit.onceQueue.maxBatch > 1
	}
	return r.limit.maxBatch > 1
}

// sendBatched sends a take in a batch. ok is false if the take must be sent
// alone.
func (s *Store) sendBatched(ctx context.Context, t *pendingTake) (ok bool, err error) {
	b, first := t.join(ctx)
	if b == nil {
		return false, nil
	}
	if first {
		runtime.Gosched()
		if t.queue().seal(b); len(b.takes) == 1 {
			b.release()
			return false, nil
		}
		go s.flush(b) // the caller of the first take may leave before the others
	}
	return s.await(ctx, t)
}

// maxJoinDelay is how long takes may join a batch after its first take. They
// share the deadline of the first, and on a busy machine it may be a while before
// that one runs again.
const maxJoinDelay = time.Millisecond

// queue returns where the take can join a batch. Callers of a concurrency limit take and
// release as often, so each has a queue.
func (t *pendingTake) queue() *batchQueue {
	switch {
	case t.group != nil:
		return &t.group.batchQueue
	case t.request.permit != "" && t.request.ask.Cost < 0:
		return &t.request.limit.releases
	case t.request.settle:
		return &t.request.limit.settleQueue
	case t.request.once:
		return &t.request.limit.onceQueue
	}
	return &t.request.limit.batchQueue
}

// canShare reports whether two takes of one queue differ in nothing but their keys and their IDs,
// and under IDs that have records, in their costs.
func (t *pendingTake) canShare(first *pendingTake) bool {
	r, other := &t.request, &first.request
	ask := r.ask
	if r.once {
		ask.Cost = other.ask.Cost
	}
	return ask == other.ask && (r.permit == "") == (other.permit == "") && (!r.once || r.settle || r.recordTTL == other.recordTTL)
}

// batchScript returns the script of the take's batches.
func (t *pendingTake) batchScript() *Script {
	switch {
	case t.group != nil:
		return t.group.script
	case t.request.once:
		return t.request.limit.scripts.onceBatch
	}
	return t.request.limit.scripts.batch
}

// join adds a take to the open batch of its queue, or opens one. It returns nil if
// the open batch is for something else, or has been open for too long.
func (t *pendingTake) join(ctx context.Context) (b *batch, first bool) {
	t.prepare(ctx)
	q := t.queue()
	q.batchMu.Lock()
	defer q.batchMu.Unlock()
	if b = q.openBatch; b == nil {
		b, first = batchPool.Get().(*batch), true
		q.openBatch = b
	} else if !t.canShare(b.takes[0]) || b.weight+t.weight() > q.maxBatch || t.start.Sub(b.takes[0].start) > maxJoinDelay {
		return nil, false
	}
	b.takes, b.weight = append(b.takes, t), b.weight+t.weight()
	if b.weight+t.weight() > q.maxBatch {
		q.openBatch = nil
	}
	return b, first
}

// weight returns how much of a batch the take fills.
func (t *pendingTake) weight() int {
	if t.group != nil {
		return t.group.weight
	}
	return 1
}

// prepare makes a take ready for a batch.
func (t *pendingTake) prepare(ctx context.Context) {
	t.ctx, t.alone, t.err = ctx, false, nil
	t.calls[0].Script, t.calls[0].Reply = t.batchScript(), t.calls[0].Reply[:0]
}

// seal closes a batch to further takes.
func (q *batchQueue) seal(b *batch) {
	q.batchMu.Lock()
	defer q.batchMu.Unlock()
	if q.openBatch == b {
		q.openBatch = nil
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
	call, first := &b.calls[0], b.takes[0]
	b.takes = slices.DeleteFunc(b.takes, func(t *pendingTake) bool { return t.ctx.Err() != nil })
	if len(b.takes) > 0 {
		first = b.takes[0] // the one before may have had other limits
	}
	mixed := b.sortByGroup()
	if first.group != nil {
		s.encodeGroupArgs(first.group, call)
	} else {
		s.encodeArgs(&first.request, call)
	}
	if mixed {
		s.encodeSections(b.takes, call)
	}
	call.Script, call.Keys, call.idempotent = first.batchScript(), call.Keys[:0], first.group == nil && first.calls[0].idempotent
	for _, t := range b.takes {
		call.Keys = append(call.Keys, t.calls[0].Keys...)
		if t.request.once {
			call.argsBuf = append(call.argsBuf, t.request.costArg())
			call.Args = call.argsBuf
		}
	}
	if first.request.permit != "" {
		call.Args[permitArg] = b.permits()
	}
}

// sortByGroup brings takes of one group together, and reports whether there are several groups.
func (b *batch) sortByGroup() (mixed bool) {
	for _, t := range b.takes {
		mixed = mixed || t.group != b.takes[0].group
	}
	if mixed {
		slices.SortStableFunc(b.takes, func(x, y *pendingTake) int { return cmp.Compare(x.group.serial, y.group.serial) })
	}
	return mixed
}

// permits returns the names of all permits, one after the other.
func (b *batch) permits() string {
	all := make([]byte, 0, permitLen*len(b.takes))
	for _, t := range b.takes {
		all = append(all, t.request.permit...)
	}
	return string(all)
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
		b.fail(s, d)
	case len(call.Reply) > 0 && call.Reply[0] == noWindow:
		b.each(func(t *pendingTake) { t.alone = true }) // sendAlone adjusts the clock offset
	default:
		b.split(call)
	}
	b.each(func(t *pendingTake) { t.done <- struct{}{} })
}

// fail hands the error of the call to the takes. Callers that have left get that of
// their own contexts, as they would from a call of their own.
func (b *batch) fail(s *Store, d *deadline) {
	err := s.callError(d, &b.calls[0])
	b.each(func(t *pendingTake) {
		if t.err = err; endOf(t.ctx) != nil {
			t.err = s.errorFor(endOf(t.ctx), d, &b.calls[0])
		}
	})
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
		ok := false
		switch {
		case len(rest) > 0 && rest[0] == failedStep:
			t.alone, rest = true, rest[1:] // to get the error of its own keys
			continue
		case t.group != nil:
			rest, ok = t.readGroupReply(rest)
		case t.request.once:
			own := &t.calls[0]
			own.Reply, rest, ok = readCounted(own.Reply, rest)
		default:
			own := &t.calls[0]
			own.Reply, rest, ok = t.request.limit.readStep(own.Reply, rest)
		}
		if !ok {
			t.err = call.unexpectedReply()
		}
	}
}

// readStep moves the reply of one step from the reply of its batch to its own.
func (cl *compiledLimit) readStep(own, rest []int64) (_, _ []int64, ok bool) {
	switch n := cl.replyLen(); {
	case len(rest) > n && rest[0] == listedStep:
		return append(own, rest[1:n+1]...), rest[n+1:], true
	case len(rest) > 0 && rest[0] >= 0:
		return append(own, rest[0]), rest[1:], true
	}
	return own, rest, false
}

// readCounted moves a reply that its length precedes from the reply of its batch to its own.
func readCounted(own, rest []int64) (_, _ []int64, ok bool) {
	if len(rest) == 0 || rest[0] < 0 || rest[0] >= int64(len(rest)) {
		return own, rest, false
	}
	n := rest[0] + 1
	return append(own, rest[1:n]...), rest[n:], true
}

// await waits for the result of a batched take. The batch has its own deadline,
// so await watches only the caller's. ok is false if the take must be sent alone.
func (s *Store) await(ctx context.Context, t *pendingTake) (ok bool, err error) {
	early := s.earlyAlarm(ctx, t)
	select {
	case <-t.done:
	case <-ctx.Done():
		return false, t.calls[0].wrapError(ctx.Err())
	case <-early:
		return false, s.earlyError(ctx, t)
	}
	if early != nil {
		t.alarm.Stop()
	}
	return t.err == nil && !t.alone, t.err
}

// earlyAlarm returns a channel that receives when the call must end before the caller's deadline,
// or nil if its batch ends first.
func (s *Store) earlyAlarm(ctx context.Context, t *pendingTake) <-chan time.Time {
	now := time.Now()
	left := s.earlyEnd(ctx, now)
	if left == 0 || left >= s.timeout-now.Sub(t.start) {
		return nil
	}
	if t.alarm == nil {
		t.alarm = time.NewTimer(left)
	} else {
		t.alarm.Reset(left)
	}
	return t.alarm.C
}

// earlyError returns the error of a take whose batch was not answered in time. The batch may
// still write into its own call.
func (s *Store) earlyError(ctx context.Context, t *pendingTake) error {
	d := &deadline{Context: ctx, began: t.start, at: time.Now()}
	return s.callError(d, &Call{Script: t.batchScript(), Err: context.DeadlineExceeded})
}
