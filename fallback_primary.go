package penstock

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/breaker"
)

// This file calls the primary store, and knows by its answers which shards of it are up.

// A fallbackShard is the state of a [Fallback] for one shard of the primary
// store.
type fallbackShard struct {
	breaker  breaker.Breaker
	ledger   ledger
	index    int
	probeKey atomic.Pointer[string] // a key of the shard, to probe with
	verifyAt atomic.Int64           // when verifyAsync may call the shard next

	// Under Fallback.notifyMu.
	reportedDown bool  // the state that OnChange reported last
	err          error // why it went down
}

func (f *Fallback) initShards(maxKeys int) {
	n := 1
	if s, ok := StoreAs[ShardedStore](f.primary); ok && s.Shards() > 1 {
		n, f.shardOf = s.Shards(), s.ShardOf
	}
	f.shards = make([]fallbackShard, n)
	for i := range f.shards {
		f.shards[i].index = i
		f.shards[i].breaker.Options = &f.rules
		f.shards[i].ledger.maxDebts = max(maxKeys/n, 1)
	}
}

func (f *Fallback) shardFor(key string) *fallbackShard {
	if f.shardOf == nil {
		return &f.shards[0]
	}
	return &f.shards[uint(f.shardOf(key))%uint(len(f.shards))]
}

// A primaryCall is a call to the primary store with the requests whose shards are up.
type primaryCall struct {
	sent        int64
	shards      []shardCall // one for each request
	allAdmitted bool
}

// A shardCall is the shard of one request, and the answer of its breaker. The requests of a
// shard share it.
type shardCall struct {
	shard    *fallbackShard
	ticket   breaker.Ticket
	admitted bool // whether the breaker admits it
	isFirst  bool // whether it is the first request of its shard
}

// admit asks the breaker of each shard once, for all its requests.
func (f *Fallback) admit(shards []shardCall, rs []Request) primaryCall {
	c := primaryCall{sent: f.clock.Now(), shards: shards, allAdmitted: true}
	for i := range rs {
		s := shardCall{shard: f.shardFor(rs[i].Key), isFirst: true}
		for _, earlier := range c.shards {
			if earlier.shard == s.shard {
				s, s.isFirst = earlier, false
				break
			}
		}
		if s.isFirst {
			s.ticket, s.admitted = s.shard.breaker.Admit(c.sent)
		}
		c.shards = append(c.shards, s)
		c.allAdmitted = c.allAdmitted && s.admitted
	}
	return c
}

// callPrimary calls the primary store with the admitted requests, and reports whether it
// answered. An error is for the caller; a failure of the store is not an error but unanswered.
// Decisions that are not zero were made nevertheless: all but those about the key of a KeyError.
func (f *Fallback) callPrimary(
	ctx context.Context, c *primaryCall, rs []Request, ds []Decision, all bool,
) (answered bool, err error) {
	var buffer [batchBuffer]int
	open := buffer[:0]
	for i := range c.shards {
		if c.shards[i].admitted {
			open = append(open, i)
		}
	}
	limited := ctx
	if f.setsTimer && len(open) > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	err = takeOpen(limited, f.primary, rs, ds, all, open)
	answer := f.answerOf(ctx, c.sent, err)
	f.report(c, rs, answer, err)
	switch {
	case answer == answerDecided || answer == answerRejected:
		return true, err
	case answer == answerBusy:
		clear(ds)
		return false, err
	case ctx.Err() != nil:
		return false, err
	}
	if !isKeyError(err) {
		clear(ds) // a store that failed may have left them incomplete
	}
	return false, nil
}

// A primaryAnswer is what a call says about the primary store.
type primaryAnswer int

const (
	answerDecided  primaryAnswer = iota // it is up
	answerRejected                      // nothing: the request is malformed
	answerBusy                          // it is up, and answers others
	answerNone                          // nothing: the caller left, or the store got no time to answer
	answerFailed                        // it failed, or cannot decide about one key
)

// answerOf returns what the result of a call says about the primary store.
func (f *Fallback) answerOf(ctx context.Context, sent int64, err error) primaryAnswer {
	if err == nil {
		return answerDecided
	}
	took := f.clock.Now() - sent
	switch {
	case isMalformed(err):
		return answerRejected
	case errors.Is(err, ErrUnknownID):
		return answerDecided
	case errors.Is(err, ErrBusy):
		return answerBusy
	case ctx.Err() != nil && (took < int64(f.timeout) || !f.setsTimer && !errors.Is(err, ErrUnavailable)):
		return answerNone // a TimeoutStore itself knows whether it had its time, because a call may wait for others first
	case errors.Is(err, context.DeadlineExceeded) && took < int64(min(minPatience, f.timeout)):
		return answerNone
	}
	return answerFailed
}

// report tells the breakers of the shards that were called how the call ended. A failure is that
// of the shard named by the error, or of all if it names none. Whether a shard that did not answer
// is up is verified.
func (f *Fallback) report(c *primaryCall, rs []Request, answer primaryAnswer, err error) {
	var named *fallbackShard
	if answer == answerFailed {
		var index int
		if index, err = indexOf(err); uint(index) < uint(len(c.shards)) {
			named = c.shards[index].shard
		}
	}
	for i := range c.shards {
		s := &c.shards[i]
		switch {
		case !s.admitted || !s.isFirst:
		case answer == answerDecided:
			f.succeeded(s.shard, s.ticket)
		case answer == answerNone:
			f.verifyAsync(s.shard, &rs[i])
		case answer == answerFailed && (named == nil || named == s.shard):
			f.failed(s.shard, s.ticket, err)
		}
	}
}

// minPatience is how long a store must have had to answer, at least, for its silence to count
// as a failure. Otherwise callers with very short deadlines could open the breaker.
const minPatience = 5 * time.Millisecond

// isMalformed reports whether an error is about a malformed request.
func isMalformed(err error) bool {
	return errors.Is(err, ErrBadLimit) || errors.Is(err, ErrBadKey) || errors.Is(err, ErrBadCost)
}

// isKeyError reports whether the store answered but could not decide about one
// key. If that counted as a failure, one such key could open the breaker for all
// keys.
func isKeyError(err error) bool {
	var about *KeyError
	return errors.As(err, &about)
}

// succeeded records that the primary store answered a call.
func (f *Fallback) succeeded(s *fallbackShard, t breaker.Ticket) {
	if s.breaker.IsCounting() {
		s.breaker.Succeed(t, f.clock.Now())
	}
	if s.ledger.hasDebts() {
		f.chargeAsync(s)
	}
}

// failed records that a call to the primary store failed, unless the store was only busy.
func (f *Fallback) failed(s *fallbackShard, t breaker.Ticket, err error) {
	if isKeyError(err) {
		f.succeeded(s, t)
		return
	}
	if !errors.Is(err, ErrBusy) && s.breaker.Fail(t, f.clock.Now()) {
		f.notify(s, err)
	}
}

// verifyAsync peeks at the primary store after a caller's context ended without a
// decision. Such a call proves nothing about the store. But if all callers have
// deadlines shorter than the timeout, nothing else would detect a store that
// hangs.
func (f *Fallback) verifyAsync(s *fallbackShard, r *Request) {
	now, at := f.clock.Now(), s.verifyAt.Load()
	if now < at || !s.verifyAt.CompareAndSwap(at, now+int64(f.timeout)) {
		return
	}
	t, ok := s.breaker.Admit(now)
	if !ok {
		return
	}
	peek := Request{Key: strings.Clone(r.Key), Limit: r.Limit}
	go func() {
		if err := f.tellPrimary(peek); err == nil {
			f.succeeded(s, t)
		} else if !isMalformed(err) {
			f.failed(s, t, err)
		}
	}()
}

// tellPrimary makes requests at the primary store for which no caller waits. A store that sets a timer itself knows
// whether it is down, or a call only waits for others.
func (f *Fallback) tellPrimary(rs ...Request) error {
	ctx := context.Background()
	if f.setsTimer {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	return TakeBatch(ctx, f.primary, rs, make([]Decision, len(rs)), false)
}

// probeLimit is the limit of probes only. A probe takes a unit, because a store may
// answer peeks and still be unable to write.
var probeLimit = Limit{Algorithm: FixedWindow, Count: 1 << 30, Period: time.Second, Name: "penstock.probe"}

// probe calls the primary store in a goroutine, if a probe is due. It first
// charges one debt, if there is any.
func (f *Fallback) probe(s *fallbackShard) {
	key := s.probeKey.Load()
	if key == nil {
		return
	}
	probe, due := s.breaker.StartProbe(f.clock.Now())
	if !due {
		return
	}
	go func() {
		err := f.chargeOne(s)
		if err == nil {
			err = f.tellPrimary(Request{Key: *key, Limit: probeLimit, Cost: 1})
		}
		s.breaker.EndProbe(probe, err == nil || isMalformed(err) || errors.Is(err, ErrBusy), f.clock.Now())
		if !s.breaker.IsOpen() {
			f.notify(s, nil)
			f.chargeAsync(s)
		}
	}()
}

// probeWith is probe for a shard that may have no probe key yet. It then uses the
// key of the request.
func (f *Fallback) probeWith(s *fallbackShard, r *Request) {
	if s.probeKey.Load() == nil {
		key := strings.Clone(r.Key)
		s.probeKey.Store(&key)
	}
	f.probe(s)
}

// notify starts a goroutine that calls OnChange, unless one is running.
func (f *Fallback) notify(s *fallbackShard, err error) {
	if f.onChange == nil {
		return
	}
	f.notifyMu.Lock()
	defer f.notifyMu.Unlock()
	s.err = err
	if !f.notifying {
		f.notifying = true
		go f.notifyAll()
	}
}

// notifyAll calls OnChange until it has reported the current state of all shards.
func (f *Fallback) notifyAll() {
	for {
		c, ok := f.nextChange()
		if !ok {
			return
		}
		f.onChange(c)
	}
}

// nextChange returns a change that has not been reported.
func (f *Fallback) nextChange() (c FallbackChange, ok bool) {
	f.notifyMu.Lock()
	defer f.notifyMu.Unlock()
	for i := range f.shards {
		s := &f.shards[i]
		if down := s.breaker.IsOpen(); down != s.reportedDown {
			s.reportedDown = down
			return FallbackChange{Shard: s.index, Down: down, Err: s.err}, true
		}
	}
	f.notifying = false
	return c, false
}
