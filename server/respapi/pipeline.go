package respapi

import (
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/internal/takecall"
)

// The commands of a pipeline that name a key and a limit, CL.THROTTLE and PENSTOCK.TAKE,
// are sent to the store in batches, one call for each. Replies are in the order of commands,
// so a command of another kind flushes the batch before it replies.

// maxBatch is the largest number of requests in one call of the store.
const maxBatch = 128

// A replyForm is the form in which a command of a batch is answered.
type replyForm bool

const (
	throttleForm replyForm = false // of CL.THROTTLE
	takeForm     replyForm = true  // of PENSTOCK.TAKE
)

// addToBatch adds a request to the batch and flushes a full one.
func (c *conn) addToBatch(r *penstock.Request, form replyForm) {
	admission, err := c.server.engine.RequestLimits().Admit(r, false, c.mayRefund)
	if err != nil {
		c.flushBatch() // replies are in the order of commands
		c.counters.Fail()
		c.logError(err)
		c.out.batchError(err, form)
		return
	}
	c.admitted = append(c.admitted, admission)
	c.forms = append(c.forms, form)
	if c.batch = append(c.batch, *r); len(c.batch) == maxBatch {
		c.flushBatch()
	}
}

// flushBatch decides the requests of the batch and appends the replies.
func (c *conn) flushBatch() {
	if len(c.batch) == 0 {
		return
	}
	c.replied = len(c.out.buf)
	c.decisions = append(c.decisions[:0], make([]penstock.Decision, len(c.batch))...)
	err := c.takeBatch()
	for i := range c.decisions {
		d := &c.decisions[i]
		c.server.engine.Denials.ForgetReturned(&c.batch[i]) // a refund under an ID
		// A decision without a Limit was not made, or denied under a limit of 0.
		if err != nil && d.Limit == 0 {
			c.admitted[i].Finish(d, err)
			c.counters.Fail()
			c.out.batchError(err, c.forms[i])
			continue
		}
		c.admitted[i].Finish(d, nil)
		c.count(&c.batch[i].Limit, c.batch[i].Key, c.batch[i].Cost, d)
		c.out.batchDecision(d, c.forms[i])
	}
	clear(c.batch)
	c.batch, c.forms, c.admitted = c.batch[:0], c.forms[:0], c.admitted[:0]
	c.replied = len(c.out.buf)
}

// count counts a decision, and logs a denial.
func (c *conn) count(l *penstock.Limit, key string, cost int64, d *penstock.Decision) {
	c.counters.Count(l, key, cost, d)
	if !d.Allowed {
		c.server.options.Requests.Denied(*l, key, d)
	}
}

func (r *reply) batchError(err error, form replyForm) {
	if form == takeForm {
		r.takeError(err)
		return
	}
	r.throttleError(err)
}

func (r *reply) batchDecision(d *penstock.Decision, form replyForm) {
	if form == takeForm {
		r.take(&takecall.Reply{Decision: *d, Limited: true})
		return
	}
	r.decision(d)
}

// takeBatch fills in the decisions on the batch.
func (c *conn) takeBatch() (err error) {
	store := c.server.engine.Store()
	if len(c.batch) > 1 {
		return penstock.TakeEach(c.server.ctx, store, c.batch, c.decisions)
	}
	c.decisions[0], err = store.Take(c.server.ctx, c.batch[0]) // cheaper than a batch of one
	return err
}

// errorText returns the text of an error without the package prefix.
func errorText(err error) string { return strings.TrimPrefix(err.Error(), "penstock: ") }
