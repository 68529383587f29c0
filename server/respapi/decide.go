package respapi

import (
	"strings"
	"unsafe"

	"github.com/penstock-io/penstock"
)

// maxBatch is how many requests are decided in one trip to the store.
const maxBatch = 128

// throttle is CL.THROTTLE. A Memory is asked at once. Any other store is asked when
// the commands that came together have been read, about all of them in one trip;
// whatever is answered in between has to wait for that, for answers are in the order
// of commands.
func (c *conn) throttle(args [][]byte) {
	call, err := c.server.limiters.parseThrottle(args)
	switch {
	case err != nil:
		c.flushBatch()
		c.out.throttleError(err)
	case c.server.memory != nil:
		c.throttleNow(&call)
	default:
		r := call.limiter.Request(string(call.key)) // a copy, for the store may keep it
		r.Cost = call.quantity
		if c.batch = append(c.batch, r); len(c.batch) == maxBatch {
			c.flushBatch()
		}
	}
}

// throttleNow decides without a copy of the key: a Memory keeps nothing of it,
// so it may see the bytes that were received.
func (c *conn) throttleNow(call *throttleCall) {
	var d penstock.Decision
	var err error
	key := unsafe.String(unsafe.SliceData(call.key), len(call.key))
	if call.quantity == 1 {
		d, err = call.limiter.Allow(c.server.ctx, key)
	} else {
		d, err = call.limiter.AllowN(c.server.ctx, key, call.quantity)
	}
	if err != nil {
		c.counters.Fail()
		c.out.throttleError(err)
		return
	}
	c.counters.Count(call.quantity, &d)
	c.out.decision(&d)
}

// flushBatch decides the requests that wait, and answers them.
func (c *conn) flushBatch() {
	if len(c.batch) == 0 {
		return
	}
	c.decisions = append(c.decisions[:0], make([]penstock.Decision, len(c.batch))...)
	err := c.takeBatch()
	for i := range c.decisions {
		d := &c.decisions[i]
		if err != nil && d.Limit == 0 { // every limit has a burst, so this was not decided
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

// takeBatch decides the requests that wait.
func (c *conn) takeBatch() (err error) {
	store := c.server.engine.Store()
	if len(c.batch) > 1 {
		return penstock.TakeEach(c.server.ctx, store, c.batch, c.decisions)
	}
	c.decisions[0], err = store.Take(c.server.ctx, c.batch[0]) // which has less to prepare
	return err
}

// throttleError replies that there is no decision.
func (r *reply) throttleError(err error) { r.error(cellErrorPrefix + errorText(err)) }

func errorText(err error) string { return strings.TrimPrefix(err.Error(), "penstock: ") }
