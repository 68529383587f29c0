package respapi

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// These commands inspect and reset the keys of CL.THROTTLE. As with redis-cell, a key is
// a string that holds the instant at which its bucket will be full, and expires then.

// newKeyLimiters returns limiters that read the state of a key whatever limit it was
// last taken from with, one for each limit name of CL.THROTTLE. A peek clamps the debt
// to what the limit that it names could owe, so these have the largest capacity.
func newKeyLimiters(s penstock.Store) ([]*penstock.Limiter, error) {
	limits := []penstock.Limit{
		{Name: shortName, Count: 1, Period: longFill - 1, Burst: 1},
		{Name: longName, Count: 1, Period: time.Microsecond, Burst: maxFill / int64(time.Microsecond)},
	}
	limiters := make([]*penstock.Limiter, len(limits))
	for i, l := range limits {
		var err error
		if limiters[i], err = penstock.New(s, requestlimits.Of(l)); err != nil {
			return nil, fmt.Errorf("respapi: %w", err)
		}
	}
	return limiters, nil
}

// maxFill is the longest time that any bucket takes to fill, in nanoseconds.
const maxFill = 1 << 61

// takeKeys takes cost from each key under each limit name of CL.THROTTLE. The decisions
// are ordered by key.
func (c *conn) takeKeys(keys [][]byte, cost int64) ([]penstock.Decision, error) {
	var rs []penstock.Request
	for _, key := range keys {
		if err := validateKey(key); err != nil {
			return nil, err
		}
		for _, limiter := range c.server.keyLimiters {
			r := limiter.Request(string(key))
			r.Cost = cost
			rs = append(rs, r)
		}
	}
	ds := make([]penstock.Decision, len(rs))
	err := penstock.TakeEach(c.server.ctx, c.server.engine.Store(), rs, ds)
	if err != nil {
		c.counters.Fail()
	}
	return ds, err
}

// timeLeft returns the time until a key expires, or 0 if it does not exist.
func (c *conn) timeLeft(key []byte) (time.Duration, error) {
	ds, err := c.takeKeys([][]byte{key}, 0)
	var longest time.Duration
	for i := range ds {
		longest = max(longest, ds[i].ResetAfter)
	}
	return longest, err
}

// replyTimeLeft calls found with the time until the key expires, or absent without a key.
func (c *conn) replyTimeLeft(args [][]byte, found func(time.Duration), absent func()) {
	left, err := c.timeLeft(args[1])
	switch {
	case err != nil:
		c.logError(err)
		c.out.keyError(err)
	case left == 0:
		absent()
	default:
		found(left)
	}
}

func (c *conn) get(args [][]byte) {
	c.replyTimeLeft(args, func(left time.Duration) {
		c.out.text(strconv.FormatInt(c.server.now().Add(left).UnixNano(), 10))
	}, c.out.null)
}

// noSuchKey is the reply of TTL and PTTL for a key that does not exist.
const noSuchKey = -2

func (c *conn) ttl(args [][]byte) {
	c.replyTimeLeft(args, func(left time.Duration) {
		c.out.integer((milliseconds(left) + 500) / 1000)
	}, func() { c.out.integer(noSuchKey) })
}

func (c *conn) pttl(args [][]byte) {
	c.replyTimeLeft(args, func(left time.Duration) {
		c.out.integer(milliseconds(left))
	}, func() { c.out.integer(noSuchKey) })
}

// milliseconds rounds up, so that a key that exists has at least 1.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

func (c *conn) keyType(args [][]byte) {
	c.replyTimeLeft(args, func(time.Duration) { c.out.simple("string") }, func() { c.out.simple("none") })
}

// exists counts the keys that exist; a key named twice counts twice.
func (c *conn) exists(args [][]byte) {
	ds, err := c.takeKeys(args[1:], 0)
	c.replyCount(ds, err, func(d penstock.Decision) bool { return d.ResetAfter > 0 })
}

// del resets keys, and counts those that existed.
func (c *conn) del(args [][]byte) {
	if !c.mayRefund() {
		text := fmt.Sprintf("NOPERM %s resets a limit: %s", args[0], c.permissionHint())
		c.server.options.Audit.RefuseAll(c.resetEntries(args[0], args[1:]), text)
		c.reject(requestlog.Forbidden, text)
		return
	}
	ds, err := c.resetKeys(args[0], args[1:])
	c.replyCount(ds, err, func(d penstock.Decision) bool { return d.Granted < 0 })
}

// permissionHint says how a client may reset keys.
func (c *conn) permissionHint() string {
	if c.server.engine.HasToken() {
		return "AUTH with the token first"
	}
	return "the server has no token, so only clients on its machine may"
}

// replyCount replies with the number of keys for which match is true under a limit name.
func (c *conn) replyCount(ds []penstock.Decision, err error, match func(penstock.Decision) bool) {
	if err != nil {
		c.logError(err)
		c.out.keyError(err)
		return
	}
	n, names := int64(0), len(c.server.keyLimiters)
	for ; len(ds) > 0; ds = ds[names:] {
		if slices.ContainsFunc(ds[:names], match) {
			n++
		}
	}
	c.out.integer(n)
}

// keyError appends the reply to a command on keys that failed.
func (r *reply) keyError(err error) {
	if errors.Is(err, audit.ErrUnwritable) {
		r.error("UNAVAILABLE " + audit.ErrUnwritable.Error())
		return
	}
	r.error("ERR " + errorText(err))
}

// rejectFlush answers FLUSHALL and FLUSHDB.
func (c *conn) rejectFlush(args [][]byte) {
	c.out.error(fmt.Sprintf("ERR %s is disabled because it would reset every limit; use DEL to reset one key", args[0]))
}
