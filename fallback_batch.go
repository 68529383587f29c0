package penstock

import (
	"context"
	"errors"

	"github.com/penstock-io/penstock/internal/breaker"
)

// A fallbackBatch is several requests under way to the first store.
type fallbackBatch struct {
	f     *Fallback
	rs    []Request
	sent  int64
	calls []fallbackCall
	all   bool // whether all of them may go
}

// A fallbackCall is one of them. Those of one part go together.
type fallbackCall struct {
	part   *part
	ticket breaker.Ticket
	ok     bool // whether the breaker admits it
	first  bool // of its part
}

// begin asks the breaker of each part once whether its requests may go.
func (b *fallbackBatch) begin(f *Fallback, rs []Request) {
	b.f, b.rs, b.sent, b.calls, b.all = f, rs, f.clock.Now(), make([]fallbackCall, 0, len(rs)), true
	for i := range rs {
		c := fallbackCall{part: f.part(rs[i].Key), first: true}
		for _, before := range b.calls {
			if before.part == c.part {
				c, c.first = before, false
				break
			}
		}
		if c.first {
			c.ticket, c.ok = c.part.breaker.Admit(b.sent)
		}
		b.calls = append(b.calls, c)
		b.all = b.all && c.ok
	}
}

// takeEach asks the first store about the requests that may go, and reports
// whether it has answered.
func (b *fallbackBatch) takeEach(ctx context.Context, rs []Request, ds []Decision) (asked bool, err error) {
	if b.all {
		return b.ask(ctx, TakeEach, rs, ds, nil)
	}
	var some []Request
	var places []int
	for i := range rs {
		if b.calls[i].ok {
			some, places = append(some, rs[i]), append(places, i)
		}
	}
	if len(some) == 0 {
		return false, nil
	}
	answers := make([]Decision, len(some))
	asked, err = b.ask(ctx, TakeEach, some, answers, places)
	for j, i := range places {
		ds[i] = answers[j]
	}
	return asked, err
}

// ask makes one call to the first store, and tells the breakers what came of it.
// The requests are all of the batch, or those in some places. An error is one for
// the caller.
func (b *fallbackBatch) ask(
	ctx context.Context, take func(context.Context, Store, []Request, []Decision) error,
	rs []Request, ds []Decision, places []int,
) (asked bool, err error) {
	f, limited := b.f, ctx
	if f.watched {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	err = take(limited, f.first, rs, ds)
	switch {
	case err == nil:
		b.answered()
		return true, nil
	case isMalformed(err):
		return false, reindex(err, places)
	case !f.blames(ctx, b.sent):
		b.doubt()
		return false, reindex(err, places)
	}
	b.blame(err, places)
	if ctx.Err() != nil {
		return false, reindex(err, places)
	}
	return false, nil
}

// doubt looks whether the parts that were asked answer, after the caller has gone.
func (b *fallbackBatch) doubt() {
	for i := range b.calls {
		if c := &b.calls[i]; c.ok && c.first {
			b.f.doubt(c.part, &b.rs[i])
		}
	}
}

// answered tells the breaker of every part that was asked, once.
func (b *fallbackBatch) answered() {
	for i := range b.calls {
		if c := &b.calls[i]; c.ok && c.first {
			b.f.answered(c.part, c.ticket)
		}
	}
}

// blame tells the breaker of the part that failed, or those of all if the error
// does not say which request it is about.
func (b *fallbackBatch) blame(err error, places []int) {
	var about *RequestError
	known, at := errors.As(err, &about), 0
	if known {
		at = about.Index
	}
	if at < len(places) {
		at = places[at]
	}
	for i := range b.calls {
		if c := &b.calls[i]; known && i == at || !known && c.ok && c.first {
			b.f.failed(c.part, c.ticket, err)
		}
	}
}
