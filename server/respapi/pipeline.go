package respapi

import (
	"strings"

	"github.com/penstock-io/penstock"
)

// The CL.THROTTLE commands of a pipeline are sent to the store in batches, one call
// for each. Replies are in the order of commands, so a command of another kind flushes
// the batch before it replies.

// maxBatch is the largest number of requests in one call of the store.
const maxBatch = 128

// addToBatch adds a request to the batch and flushes a full one.
func (c *conn) addToBatch(call *throttleCall) {
	r := call.limiter.Request(string(call.key)) // a copy: the store may keep it
	r.Cost = call.quantity
	if c.batch = append(c.batch, r); len(c.batch) == maxBatch {
		c.flushBatch()
	}
}

// flushBatch decides the requests of the batch and appends the replies.
func (c *conn) flushBatch() {
	if len(c.batch) == 0 {
		return
	}
	c.decisions = append(c.decisions[:0], make([]penstock.Decision, len(c.batch))...)
	err := c.takeBatch()
	for i := range c.decisions {
		d := &c.decisions[i]
		if err != nil && d.Limit == 0 { // not decided: every decision has a Limit of at least 1
			c.counters.Fail()
			c.out.throttleError(err)
			continue
		}
		c.counters.Count(c.batch[i].Cost, d)
		c.out.decision(d)
	}
	clear(c.batch)
	c.batch = c.batch[:0]
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
