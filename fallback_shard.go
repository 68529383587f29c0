package penstock

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/internal/breaker"
)

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
	if s, ok := f.primary.(ShardedStore); ok && s.Shards() > 1 {
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

// A primaryCall is a call to the primary store that the breaker of its shard has admitted.
type primaryCall struct {
	shard  *fallbackShard
	ticket breaker.Ticket
	sent   int64
}

// admit asks the breaker of a shard for a call to it. It is not ok while the shard is down.
func (f *Fallback) admit(s *fallbackShard) (c primaryCall, ok bool) {
	c = primaryCall{shard: s, sent: f.clock.Now()}
	c.ticket, ok = s.breaker.Admit(c.sent)
	return c, ok
}

// report tells the breaker how a call ended, and returns whether the request has to be decided
// without the primary store. A call that says nothing about the store, because its caller left
// or had too little time, does not count; verifyAsync finds out whether the store answers.
func (f *Fallback) report(ctx context.Context, c *primaryCall, r *Request, err error) (isUnanswered bool) {
	switch {
	case err == nil:
		f.succeeded(c.shard, c.ticket)
		return false
	case isMalformed(err):
		return false
	case !f.isStoreFault(ctx, c.sent):
		f.verifyAsync(c.shard, r)
		return false
	case f.wasHurried(c.sent, err):
		f.verifyAsync(c.shard, r)
	default:
		f.failed(c.shard, c.ticket, err)
	}
	return ctx.Err() == nil
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

// failed records that a call to the primary store failed.
func (f *Fallback) failed(s *fallbackShard, t breaker.Ticket, err error) {
	if isKeyError(err) {
		f.succeeded(s, t)
		return
	}
	if s.breaker.Fail(t, f.clock.Now()) {
		f.notify(s, err)
	}
}

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

// isStoreFault reports whether a failed call is the store's fault. It is not if
// the caller's context ended before the timeout.
func (f *Fallback) isStoreFault(ctx context.Context, sent int64) bool {
	return ctx.Err() == nil || f.clock.Now()-sent >= int64(f.timeout)
}

// minPatience is how long a store must have had to answer, at least, for its silence to count
// as a failure. Otherwise callers with very short deadlines could open the breaker.
const minPatience = 5 * time.Millisecond

// wasHurried reports whether a store got no time to answer.
func (f *Fallback) wasHurried(sent int64, err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && f.clock.Now()-sent < int64(min(minPatience, f.timeout))
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
		if _, err := f.callPrimary(context.Background(), peek); err == nil {
			f.succeeded(s, t)
		} else if !isMalformed(err) {
			f.failed(s, t, err)
		}
	}()
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
			_, err = f.callPrimary(context.Background(), Request{Key: *key, Limit: probeLimit, Cost: 1})
		}
		s.breaker.EndProbe(probe, err == nil || isMalformed(err), f.clock.Now())
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
