package respapi

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
)

// A key is what CL.THROTTLE has left of it: with redis-cell, a string that holds the
// instant at which the bucket will be full again, and that expires then.

// newKeyLimiters returns limiters that show how a key stands, whatever limit it was last
// asked about with. A look clamps what is owed to its own limit's capacity, so theirs
// is the largest there is under each name.
func newKeyLimiters(s penstock.Store) ([]*penstock.Limiter, error) {
	limits := []penstock.Limit{
		{Name: shortName, Count: 1, Period: longFill - 1, Burst: 1},
		{Name: longName, Count: 1, Period: time.Microsecond, Burst: maxFill / int64(time.Microsecond)},
	}
	limiters := make([]*penstock.Limiter, len(limits))
	for i, l := range limits {
		var err error
		if limiters[i], err = penstock.New(s, l); err != nil {
			return nil, fmt.Errorf("respapi: %w", err)
		}
	}
	return limiters, nil
}

// maxFill is the longest that any bucket takes to fill, in nanoseconds.
const maxFill = 1 << 61

// takeKeys asks about keys under every name that CL.THROTTLE goes by, at one cost. The
// decisions about the first key come first.
func (c *conn) takeKeys(keys [][]byte, cost int64) ([]penstock.Decision, error) {
	var rs []penstock.Request
	for _, key := range keys {
		if err := validateKey(key); err != nil {
			return nil, err
		}
		for _, look := range c.server.keyLimiters {
			r := look.Request(string(key))
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

// timeLeft returns for how long a key will be there; 0 if it is not.
func (c *conn) timeLeft(key []byte) (time.Duration, error) {
	ds, err := c.takeKeys([][]byte{key}, 0)
	var longest time.Duration
	for i := range ds {
		longest = max(longest, ds[i].ResetAfter)
	}
	return longest, err
}

// replyTimeLeft replies what found makes of the time that the key of a command has left.
func (c *conn) replyTimeLeft(args [][]byte, found func(time.Duration), absent func()) {
	left, err := c.timeLeft(args[1])
	switch {
	case err != nil:
		c.out.error("ERR " + errorText(err))
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

// noSuchKey is what TTL says of a key that is not there.
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

// milliseconds rounds up, so that a key which is there has at least one left.
func milliseconds(d time.Duration) int64 {
	return int64((d + time.Millisecond - 1) / time.Millisecond)
}

func (c *conn) keyType(args [][]byte) {
	c.replyTimeLeft(args, func(time.Duration) { c.out.simple("string") }, func() { c.out.simple("none") })
}

// exists counts the keys that are there; one that is named twice counts twice.
func (c *conn) exists(args [][]byte) {
	ds, err := c.takeKeys(args[1:], 0)
	c.replyCount(ds, err, func(d penstock.Decision) bool { return d.ResetAfter > 0 })
}

// del makes keys as good as new, and counts those that were not.
func (c *conn) del(args [][]byte) {
	if !c.session.mayRefund {
		c.out.error(fmt.Sprintf("NOPERM %s undoes a limit: from another machine it needs AUTH with the token", args[0]))
		return
	}
	ds, err := c.takeKeys(args[1:], penstock.Reset)
	c.replyCount(ds, err, func(d penstock.Decision) bool { return d.Granted < 0 })
}

// replyCount replies for how many keys something is true under one of its names.
func (c *conn) replyCount(ds []penstock.Decision, err error, is func(penstock.Decision) bool) {
	if err != nil {
		c.out.error("ERR " + errorText(err))
		return
	}
	n, names := int64(0), len(c.server.keyLimiters)
	for ; len(ds) > 0; ds = ds[names:] {
		if slices.ContainsFunc(ds[:names], is) {
			n++
		}
	}
	c.out.integer(n)
}

// rejectFlush is FLUSHALL and its like.
func (c *conn) rejectFlush(args [][]byte) {
	c.out.error(fmt.Sprintf("ERR %s would undo every limit at once, which nobody may do here; DEL undoes one", args[0]))
}
