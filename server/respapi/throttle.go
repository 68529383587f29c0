package respapi

import (
	"fmt"
	"math"
	"time"
	"unsafe"

	"github.com/penstock-io/penstock"
)

// CL.THROTTLE key max_burst count_per_period period [quantity] is redis-cell's
// command: a token bucket whose limit comes with every call. The limit has a name, so
// it may differ from call to call.
//
// Replies equal redis-cell's with five exceptions. Numbers are checked. A quantity of 0 is
// never limited, also where a limit was lowered below the debt. A debt that
// exceeds the limit by more than a minute, and by more than one refill, is clamped to that,
// so that no key is denied for longer. The remaining units are computed in nanoseconds;
// redis-cell computes in microseconds, and above a thousand a second reports too many.
// A limit that takes more than 52 days to fill is counted separately from shorter ones,
// in whole microseconds.

// throttle executes CL.THROTTLE. A store that does not keep keys, such as Memory, decides
// immediately; for other stores the request joins the batch of its pipeline.
func (c *conn) throttle(args [][]byte) {
	call, err := c.server.limiters.parseThrottle(args)
	if err == nil && call.refusal != nil {
		err = c.server.engine.RequestLimits().Refuse(call.refusal, c.mayRefund)
	}
	switch {
	case err != nil:
		c.flushBatch() // replies are in the order of commands
		c.logError(err)
		c.out.throttleError(err)
	case c.server.transientKeys:
		c.throttleNow(&call)
	default:
		r := call.limiter.Request(string(call.key)) // a copy: the store may keep it
		r.Cost = call.quantity
		c.addToBatch(&r, throttleForm)
	}
}

// A throttleCall is a CL.THROTTLE with its arguments parsed.
type throttleCall struct {
	*cachedLimiter
	key      []byte
	quantity int64
}

// Errors of CL.THROTTLE, with redis-cell's texts.
const (
	cellErrorPrefix = "Cell error: Store error: "

	usage      = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]"
	outOfRange = "value is not an integer or out of range"
	zeroRate   = "Zero rates are not supported"
)

// An argumentError describes an invalid argument of a command.
type argumentError string

func (e argumentError) Error() string { return string(e) }

// parseThrottle parses the arguments of CL.THROTTLE.
func (lc *limiterCache) parseThrottle(args [][]byte) (call throttleCall, err error) {
	if len(args) != 5 && len(args) != 6 {
		return call, argumentError(usage)
	}
	if err := validateKey(args[1]); err != nil {
		return call, err
	}
	numbers := [4]int64{3: 1}
	for i, arg := range args[2:] {
		n, ok := parseNatural(arg)
		if !ok {
			return call, naturalError(arg)
		}
		numbers[i] = n
	}
	call.key, call.quantity = args[1], numbers[3]
	call.cachedLimiter, err = lc.get(throttleParams{numbers[0], numbers[1], numbers[2]})
	if err == nil && call.quantity > 1 {
		err = call.validateQuantity()
	}
	return call, err
}

// maxKey bounds the length of a key, in bytes.
const maxKey = 4 << 10

// validateKey checks a key before it reaches the store: an invalid request would fail
// the others of its batch.
func validateKey(key []byte) error {
	switch {
	case len(key) == 0:
		return argumentError("key is empty")
	case len(key) > maxKey:
		return argumentError(fmt.Sprintf("key of %d bytes: must be at most %d", len(key), maxKey))
	}
	return nil
}

// validateQuantity rejects a quantity whose refill time overflows.
func (call *throttleCall) validateQuantity() error {
	interval := int64(call.limiter.Limit().Period)
	if call.quantity > math.MaxInt64/interval {
		return argumentError(outOfRange)
	}
	return nil
}

// maxNaturalDigits always fit into a uint64.
const maxNaturalDigits = 19

// parseNatural parses a number that is not negative.
func parseNatural(text []byte) (n int64, ok bool) {
	if len(text) > 1 && text[0] == '+' {
		text = text[1:]
	}
	for len(text) > maxNaturalDigits && text[0] == '0' {
		text = text[1:]
	}
	if len(text) == 0 || len(text) > maxNaturalDigits {
		return 0, false
	}
	var value uint64
	for _, b := range text {
		digit := b - '0'
		if digit > 9 {
			return 0, false
		}
		value = value*10 + uint64(digit)
	}
	return int64(value), value <= math.MaxInt64
}

// naturalError returns redis-cell's error for text that parseNatural does not accept.
func naturalError(text []byte) error {
	if len(text) > 1 && text[0] == '-' {
		if _, ok := parseNatural(text[1:]); ok {
			return argumentError(outOfRange)
		}
	}
	return argumentError("Couldn't parse as integer: " + printable(text))
}

// throttleNow decides without copying the key: the store does not keep it, so the
// string may share the read buffer's memory.
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
	c.count(&call.limit, key, call.quantity, &d)
	c.out.decision(&d)
}

// decision appends the five integers of CL.THROTTLE's reply: limited, limit,
// remaining, seconds until a retry may succeed or -1, seconds until the bucket is full.
func (r *reply) decision(d *penstock.Decision) {
	limited, retry := byte('1'), int64(-1)
	switch {
	case d.Allowed:
		limited = '0'
	case d.RetryAfter != penstock.Never:
		retry = seconds(d.RetryAfter)
	}
	r.buf = append(r.buf, '*', '5', '\r', '\n', ':', limited, '\r', '\n')
	r.integer(d.Limit)
	r.integer(d.Remaining)
	r.integer(retry)
	r.integer(seconds(d.ResetAfter))
}

// seconds rounds as redis-cell does: up, unless the rest is less than a millisecond.
func seconds(d time.Duration) int64 {
	whole := d / time.Second
	if d-whole*time.Second >= time.Millisecond {
		whole++
	}
	return int64(whole)
}

// throttleError appends the reply to a CL.THROTTLE that was not decided.
func (r *reply) throttleError(err error) { r.error(cellErrorPrefix + errorText(err)) }
