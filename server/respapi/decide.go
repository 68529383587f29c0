package respapi

import (
	"strings"
	"unsafe"

	"github.com/penstock-io/penstock"
)

// maxTrip is how many requests are decided in one trip to the store.
const maxTrip = 128

// throttle is CL.THROTTLE. A Memory is asked at once. Any other store is asked when
// the commands that came together have been read, about all of them in one trip;
// whatever is answered in between has to wait for that, for answers are in the order
// of commands.
func (c *conn) throttle(args [][]byte) {
	call, err := c.door.throttles.readThrottle(args)
	switch {
	case err != nil:
		c.settle()
		c.out.failThrottle(err)
	case c.door.memory != nil:
		c.throttleInMemory(&call)
	default:
		r := call.limiter.Request(string(call.key)) // a copy, for the store may keep it
		r.Cost = call.quantity
		if c.requests = append(c.requests, r); len(c.requests) == maxTrip {
			c.settle()
		}
	}
}

// throttleInMemory decides without a copy of the key: a Memory keeps nothing of it,
// so it may see the bytes that were received.
func (c *conn) throttleInMemory(call *throttleCall) {
	var d penstock.Decision
	var err error
	key := unsafe.String(unsafe.SliceData(call.key), len(call.key))
	if call.quantity == 1 {
		d, err = call.limiter.Allow(c.door.ctx, key)
	} else {
		d, err = call.limiter.AllowN(c.door.ctx, key, call.quantity)
	}
	if err != nil {
		c.clerk.Fail()
		c.out.failThrottle(err)
		return
	}
	c.clerk.Count(call.quantity, &d)
	c.out.throttled(&d)
}

// settle decides the requests that wait, and answers them.
func (c *conn) settle() {
	if len(c.requests) == 0 {
		return
	}
	c.answers = append(c.answers[:0], make([]penstock.Decision, len(c.requests))...)
	err := c.take()
	for i := range c.answers {
		d := &c.answers[i]
		if err != nil && d.Limit == 0 { // every limit has a burst, so this was not decided
			c.clerk.Fail()
			c.out.failThrottle(err)
			continue
		}
		c.clerk.Count(c.requests[i].Cost, d)
		c.out.throttled(d)
	}
	clear(c.requests)
	c.requests = c.requests[:0]
}

// take decides the requests that wait.
func (c *conn) take() (err error) {
	store := c.door.judge.Store()
	if len(c.requests) > 1 {
		return penstock.TakeEach(c.door.ctx, store, c.requests, c.answers)
	}
	c.answers[0], err = store.Take(c.door.ctx, c.requests[0]) // which has less to prepare
	return err
}

// failThrottle replies that there is no decision.
func (r *reply) failThrottle(err error) { r.fail(cellError + reason(err)) }

func reason(err error) string { return strings.TrimPrefix(err.Error(), "penstock: ") }
