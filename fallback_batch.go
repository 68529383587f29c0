package penstock

import (
	"context"
	"errors"

	"github.com/penstock-io/penstock/internal/breaker"
)

// A fallbackBatch is the state of one TakeEach or TakeAll of a [Fallback].
type fallbackBatch struct {
	f           *Fallback
	rs          []Request
	sent        int64
	calls       []fallbackCall // one for each request
	allAdmitted bool
}

// A fallbackCall is the shard and the breaker's answer for one request. The
// requests of a shard share a ticket.
type fallbackCall struct {
	shard    *fallbackShard
	ticket   breaker.Ticket
	admitted bool // whether the breaker admits it
	isFirst  bool // whether it is the first request of its shard
}

// newBatch asks the breaker of each shard once, for all its requests.
func (f *Fallback) newBatch(rs []Request) fallbackBatch {
	b := fallbackBatch{f: f, rs: rs, sent: f.clock.Now(), calls: make([]fallbackCall, 0, len(rs)), allAdmitted: true}
	for i := range rs {
		c := fallbackCall{shard: f.shardFor(rs[i].Key), isFirst: true}
		for _, earlier := range b.calls {
			if earlier.shard == c.shard {
				c, c.isFirst = earlier, false
				break
			}
		}
		if c.isFirst {
			c.ticket, c.admitted = c.shard.breaker.Admit(b.sent)
		}
		b.calls = append(b.calls, c)
		b.allAdmitted = b.allAdmitted && c.admitted
	}
	return b
}

// takeEach calls the primary store with the admitted requests, and reports
// whether it answered.
func (b *fallbackBatch) takeEach(ctx context.Context, rs []Request, ds []Decision) (answered bool, err error) {
	if b.allAdmitted {
		return b.call(ctx, TakeEach, rs, ds, nil)
	}
	var admitted []Request
	var indexes []int
	for i := range rs {
		if b.calls[i].admitted {
			admitted, indexes = append(admitted, rs[i]), append(indexes, i)
		}
	}
	if len(admitted) == 0 {
		return false, nil
	}
	decisions := make([]Decision, len(admitted))
	answered, err = b.call(ctx, TakeEach, admitted, decisions, indexes)
	for j, i := range indexes {
		ds[i] = decisions[j]
	}
	return answered, err
}

// call calls the primary store and reports the result to the breakers. rs are the
// requests of the batch at indexes, or all of them if indexes is nil. An error is
// for the caller; a failure of the store is not an error but unanswered. Decisions
// that are not zero were made nevertheless: all but those about the key of a KeyError.
func (b *fallbackBatch) call(
	ctx context.Context, take takeFunc, rs []Request, ds []Decision, indexes []int,
) (answered bool, err error) {
	f, limited := b.f, ctx
	if f.setsTimer {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	err = take(limited, f.primary, rs, ds)
	switch {
	case err == nil:
		b.succeeded()
		return true, nil
	case isMalformed(err):
		return false, reindex(err, indexes)
	case errors.Is(err, ErrUnknownID):
		b.succeeded()
		return false, reindex(err, indexes)
	case !f.isStoreFault(ctx, b.sent):
		b.verifyAsync()
		return false, reindex(err, indexes)
	}
	if f.wasHurried(b.sent, err) {
		b.verifyAsync()
	} else {
		b.failed(err, indexes)
	}
	if ctx.Err() != nil {
		return false, reindex(err, indexes)
	}
	if !isKeyError(err) {
		clearDecisions(rs, ds) // a store that failed may have left them incomplete
	}
	return false, nil
}

// verifyAsync verifies all shards that were called.
func (b *fallbackBatch) verifyAsync() {
	for i := range b.calls {
		if c := &b.calls[i]; c.admitted && c.isFirst {
			b.f.verifyAsync(c.shard, &b.rs[i])
		}
	}
}

// succeeded records the success once for each shard that was called.
func (b *fallbackBatch) succeeded() {
	for i := range b.calls {
		if c := &b.calls[i]; c.admitted && c.isFirst {
			b.f.succeeded(c.shard, c.ticket)
		}
	}
}

// failed records a failure of the shard named by the error, or of all shards that
// were called if it names none.
func (b *fallbackBatch) failed(err error, indexes []int) {
	var about *RequestError
	known, at := errors.As(err, &about), 0
	if known {
		at = about.Index
	}
	if at < len(indexes) {
		at = indexes[at]
	}
	for i := range b.calls {
		if c := &b.calls[i]; known && i == at || !known && c.admitted && c.isFirst {
			b.f.failed(c.shard, c.ticket, err)
		}
	}
}
