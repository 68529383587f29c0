package redisstore

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
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
// goroutines that are ready to run can join, and seals it. If these are so many that
// the batch is full or old before, the take that finds out seals it. The take that seals a
// batch sends it.
type batch struct {
	takes  []take
	weight int // of all takes
	calls  [1]Call
	holds  [1]hold
}

// A take is a call that can share a batch: a singleTake or a groupTake.
type take interface {
	base() *pending

	// encodeBatch writes the keys and arguments of a batch of takes of this kind, which begins
	// with this one.
	encodeBatch(s *Store, takes []take, c *Call)

	// readBatch reads the take's own part of the reply of its batch, and returns the rest.
	readBatch(reply []int64) (rest []int64, ok bool)
}

// A pending is what all takes in flight have. Its arrays save allocations.
type pending struct {
	calls [1]Call
	keys  [2]string
	args  [16]string
	reply [8]int64
	start time.Time

	queue  *batchQueue
	weight int     // how much of a batch it fills
	shares sharing // takes that differ in this cannot share a batch

	// For a take in a batch:
	ctx   context.Context
	done  chan struct{}
	alarm *time.Timer // nil until it is needed
	left  atomic.Bool // whether the caller has left before its context ended
	alone bool        // whether it must be sent again, alone
	err   error
}

func (p *pending) base() *pending { return p }

// init makes room in a new take.
func (p *pending) init() {
	p.done, p.weight = make(chan struct{}, 1), 1
	p.calls[0] = Call{Keys: p.keys[:0], Reply: p.reply[:0], argsBuf: p.args[:0]}
}

// sharing is what takes of one queue must have in common to share a batch.
type sharing struct {
	ask       algorithm.Request // under IDs that have records, without the cost
	hasPermit bool
	recordTTL int64 // of takes under IDs
}

// A batchQueue is where takes that can share a script meet.
type batchQueue struct {
	script    *Script
	inFlight  atomic.Int64 // takes
	maxBatch  int          // the most that the takes in one batch weigh
	batchMu   sync.Mutex
	openBatch *batch // nil if there is none to join
}

// open makes a queue ready.
func (q *batchQueue) open(script *Script, most int) { q.script, q.maxBatch = script, most }

// maxBatch is the most steps in one batch. It is small because a script blocks
// all other clients.
const maxBatch = 64

// stepsPerID is how many steps a step under an ID counts as, because it also reads and writes
// the record of the ID.
const stepsPerID = 2

var batchPool = sync.Pool{New: func() any { return &batch{takes: make([]take, 0, maxBatch)} }}

func (b *batch) release() {
	clear(b.takes[:cap(b.takes)])
	b.takes, b.weight = b.takes[:0], 0
	batchPool.Put(b)
}

// sendBatched sends a take in a batch, if there can be one. ok is false if the take must be sent
// alone.
func (s *Store) sendBatched(ctx context.Context, t take) (ok bool, err error) {
	p := t.base()
	if s.sharded() || 2*p.weight > p.queue.maxBatch || ctx.Err() != nil {
		return false, nil
	}
	b, first := s.join(ctx, t)
	if b == nil {
		return false, nil
	}
	if first {
		runtime.Gosched()
		switch sealed := p.queue.seal(b, p); {
		case sealed && len(b.takes) == 1:
			b.release()
			return false, nil
		case sealed:
			go s.flush(b) // the caller of the first take may leave before the others
		}
	}
	return s.await(ctx, p)
}

// maxJoinDelay is how long takes may join a batch after its first take: on a busy
// machine it may be a while before that one runs again.
const maxJoinDelay = time.Millisecond

// join adds a take to the open batch of its queue, or opens one. It returns nil if
// the open batch is for something else.
func (s *Store) join(ctx context.Context, t take) (b *batch, first bool) {
	p := t.base()
	p.prepare(ctx)
	q := p.queue
	q.batchMu.Lock()
	defer q.batchMu.Unlock()
	if b = q.openBatch; b != nil && (b.weight+p.weight > q.maxBatch || p.start.Sub(b.takes[0].base().start) > maxJoinDelay) {
		go s.flush(b)
		b = nil
	}
	if b == nil {
		b, first = batchPool.Get().(*batch), true
		q.openBatch = b
	} else if p.shares != b.takes[0].base().shares {
		return nil, false
	}
	b.takes, b.weight = append(b.takes, t), b.weight+p.weight
	if b.weight+p.weight > q.maxBatch {
		q.openBatch = nil
		go s.flush(b)
	}
	return b, first
}

// prepare makes a take ready for a batch.
func (p *pending) prepare(ctx context.Context) {
	p.ctx, p.alone, p.err = ctx, false, nil
	p.calls[0].Script, p.calls[0].Reply = p.queue.script, p.calls[0].Reply[:0]
}

// seal closes a batch to further takes. It reports false if another take has: the batch may
// have been answered since, and be that of others by now.
func (q *batchQueue) seal(b *batch, first *pending) bool {
	q.batchMu.Lock()
	defer q.batchMu.Unlock()
	if q.openBatch != b || b.takes[0].base() != first {
		return false
	}
	q.openBatch = nil
	return true
}

// flush sends a sealed batch.
func (s *Store) flush(b *batch) {
	d := s.deadlineAfter(context.Background(), b.takes[0].base().start, s.timeout)
	defer d.stop()
	call := &b.calls[0]
	limiter := s.limiterOf(0) // batches are for one server
	held, err := limiter.admitBatch(d, b.weight, b.takes[0].base().queue.maxBatch)
	switch b.encode(s); { // not earlier: callers may have left during the wait for a slot
	case len(b.takes) == 0:
		limiter.release(held)
	case err != nil:
		call.Err = err
	default:
		b.holds[0] = hold{limiter, held}
		s.doWithRetries(d, b.holds[:], b.calls[:])
		if s.onBatch != nil {
			s.onBatch(b.contexts, len(b.takes), d.began)
		}
	}
	b.dispatch(s, d)
	if call.Err == nil { // after an error, the client may still write into it
		b.release()
	}
}

// encode puts the takes into one call. Takes whose caller has left are dropped and
// not charged.
func (b *batch) encode(s *Store) {
	call, queue := &b.calls[0], b.takes[0].base().queue
	call.Script, call.Keys = queue.script, call.Keys[:0]
	b.takes = slices.DeleteFunc(b.takes, func(t take) bool { return t.base().hasLeft() })
	if len(b.takes) > 0 {
		b.takes[0].encodeBatch(s, b.takes, call)
		call.Script = queue.script
	}
}

// hasLeft reports whether the caller of a take no longer waits for it.
func (p *pending) hasLeft() bool { return p.ctx.Err() != nil || p.left.Load() }

// dispatch hands the result of the call to the takes.
func (b *batch) dispatch(s *Store, d *deadline) {
	switch call := &b.calls[0]; {
	case call.Err != nil && crossesSlots(call.Err):
		s.forgetSpread() // a sharded service that presents itself as one server
		b.each(func(p *pending) { p.alone = true })
	case call.Err != nil && strings.HasPrefix(call.Err.Error(), "NOPERM"):
		b.each(func(p *pending) { p.alone = true }) // it may concern one key; no script has run
	case call.Err != nil:
		b.fail(s, d)
	case len(call.Reply) > 0 && call.Reply[0] == noWindow:
		b.each(func(p *pending) { p.alone = true }) // sendAlone adjusts the clock offset
	default:
		b.split(call)
	}
	b.each(func(p *pending) { p.done <- struct{}{} })
}

// fail hands the error of the call to the takes. Callers that have left get that of
// their own contexts, as they would from a call of their own.
func (b *batch) fail(s *Store, d *deadline) {
	err := s.callError(d, &b.calls[0])
	b.each(func(p *pending) {
		if p.err = err; endOf(p.ctx) != nil {
			p.err = s.errorFor(endOf(p.ctx), d, &b.calls[0])
		}
	})
}

// contexts yields those of the callers.
func (b *batch) contexts(yield func(context.Context) bool) {
	for _, t := range b.takes {
		if !yield(t.base().ctx) {
			return
		}
	}
}

func (b *batch) each(do func(*pending)) {
	for _, t := range b.takes {
		do(t.base())
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
		if len(rest) > 0 && rest[0] == failedStep {
			t.base().alone, rest = true, rest[1:] // to get the error of its own keys
		} else if rest, ok = t.readBatch(rest); !ok {
			t.base().err = call.unexpectedReply()
		}
	}
}

// readStep moves the reply of one step from the reply of its batch to its own.
func (cl *compiledLimit) readStep(own, rest []int64) (_, _ []int64, ok bool) {
	switch n := cl.replyLen; {
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
func (s *Store) await(ctx context.Context, p *pending) (ok bool, err error) {
	early := s.earlyAlarm(ctx, p)
	select {
	case <-p.done:
	case <-ctx.Done():
		return false, p.calls[0].wrapError(endedError(ctx.Err(), s.answersSince(p.start)))
	case <-early:
		p.left.Store(true)
		return false, s.earlyError(ctx, p)
	}
	if early != nil {
		p.alarm.Stop()
	}
	return p.err == nil && !p.alone, p.err
}

// earlyAlarm returns a channel that receives when the call must end before the caller's deadline,
// or nil if its batch ends first.
func (s *Store) earlyAlarm(ctx context.Context, p *pending) <-chan time.Time {
	left := s.earlyEnd(ctx, time.Now())
	if left == 0 || left >= maxTimeouts*s.timeout {
		return nil
	}
	if p.alarm == nil {
		p.alarm = time.NewTimer(left)
	} else {
		p.alarm.Reset(left)
	}
	return p.alarm.C
}

// answersSince reports whether Redis has answered any call since one began to wait, or in the time of a batch.
func (s *Store) answersSince(start time.Time) bool {
	if last := time.Now().Add(-batchTime); last.Before(start) {
		start = last
	}
	return s.answers.latest().After(start)
}

// earlyError returns the error of a take whose batch was not answered in time. The batch may
// still write into its own call.
func (s *Store) earlyError(ctx context.Context, p *pending) error {
	d := &deadline{Context: ctx, began: p.start, due: time.Now(), isBusy: s.answersSince(p.start)}
	d.hasEnded.Store(true)
	return s.callError(d, &Call{Script: p.queue.script, Err: context.DeadlineExceeded})
}
