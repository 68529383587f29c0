package redisstore

import (
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
)

// A script replies with the state that it found, and the same step in Go works out
// what the script decided. Only logs, rings and permits are too long to be sent: their
// scripts reply with their decision.

// decode reads the decision from the reply to a request. ok is false if Redis's
// time was outside the windows sent, and the request must be sent again.
func (s *Store) decode(q *compiledRequest, c *Call) (d penstock.Decision, ok bool, err error) {
	reply, recordFields := c.Reply, 0
	if q.once {
		recordFields = 2
	} else {
		reply = q.limit.unpack(reply, q.ask)
	}
	if len(reply) != recordFields+q.limit.replyLen() {
		return d, true, c.unexpectedReply()
	}
	state := reply[recordFields:]
	if now, missed := q.limit.missedWindow(state); missed {
		s.setRedisMillis(now)
		return d, false, nil
	}
	if q.once {
		return q.decideOnce(reply[0], reply[1], state), true, nil
	}
	return q.limit.decide(state, q.ask), true, nil
}

// unexpectedReply returns the error for a reply that no script gives.
func (c *Call) unexpectedReply() error {
	return c.wrapError(fmt.Errorf("%w: unexpected reply %d", penstock.ErrUnavailable, c.Reply))
}

// unpack expands a reply of one number: a count combined with the key's remaining
// time to live, or the units used of a log that has just granted the whole cost.
func (cl *compiledLimit) unpack(reply []int64, ask algorithm.Request) []int64 {
	if len(reply) != 1 {
		return reply
	}
	maxTTL := cl.period
	switch cl.step {
	case algorithm.SlidingLogStep, algorithm.ConcurrentStep:
		return append(reply[:0], cl.scriptCost(ask), reply[0], 0, cl.period)
	case algorithm.SlidingWindowStep:
		maxTTL *= 2
	case algorithm.FixedWindowStep, algorithm.AlignedWindowStep:
	default:
		return reply
	}
	both := reply[0]
	reply = append(reply[:0], both/(maxTTL+1), both%(maxTTL+1))
	if cl.step == algorithm.AlignedWindowStep {
		reply = append(reply, endFromNow)
	}
	return reply
}

// endFromNow replaces the time in the state of an aligned window whose end is
// relative to now.
const endFromNow = -1

// replyLen returns how many integers a step replies with.
func (cl *compiledLimit) replyLen() int {
	switch cl.step {
	case algorithm.TokenBucketStep, algorithm.LeakyBucketStep:
		return 1
	case algorithm.FixedWindowStep, algorithm.SlidingWindowStep:
		return 2
	case algorithm.AlignedWindowStep:
		return 3
	}
	return 4
}

// missedWindow returns Redis's time if it was outside the windows that the script
// was sent, so that nothing was decided.
func (cl *compiledLimit) missedWindow(reply []int64) (now int64, missed bool) {
	return reply[len(reply)-1], cl.step == algorithm.AlignedWindowStep && reply[0] == noWindow
}

// noWindow is the first number of a reply if no window includes Redis's time.
const noWindow = -1

// decideOnce returns the decision on a request with an ID. The units are those
// granted to this ID before, or noRecord, or those refunded now.
func (q *compiledRequest) decideOnce(units, delay int64, state []int64) penstock.Decision {
	switch {
	case q.ask.Cost < 0:
		return q.limit.decide(state, algorithm.Request{Cost: -units})
	case units == noRecord:
		return q.limit.decide(state, q.ask)
	}
	d := q.limit.decide(state, algorithm.Request{})
	d.Granted = units
	d.Delay = time.Duration(delay * tick)
	return d
}

// decide returns the decision on an ask, given the state that the script found.
// Times in the state count from now, except those of aligned windows without
// endFromNow.
func (cl *compiledLimit) decide(state []int64, ask algorithm.Request) penstock.Decision {
	switch cl.step {
	case algorithm.TokenBucketStep:
		b, outcome := cl.token.Decide(cl.bucket(state[0]), 0, ask)
		return cl.decision(outcome, cl.token.Balance(b.Full))
	case algorithm.LeakyBucketStep:
		b, outcome := cl.leaky.Decide(cl.bucket(state[0]), 0, ask)
		return cl.decision(outcome, cl.leaky.Balance(b.Full))
	case algorithm.FixedWindowStep:
		w := algorithm.Window{End: cl.period * tick, Length: cl.period * tick}
		c, outcome := cl.fixed.Decide(counter(state[0], state[1]), 0, w, ask)
		return cl.decision(outcome, cl.fixed.Balance(c, 0))
	case algorithm.AlignedWindowStep:
		return cl.decideAligned(state[0], state[1], state[2], ask)
	case algorithm.SlidingWindowStep:
		s, outcome := cl.sliding.Decide(cl.slide(state[0], state[1]), 0, ask)
		return cl.decision(outcome, cl.sliding.Balance(s, 0))
	}
	return cl.decodeDecision(state, ask)
}

// bucket returns the state of a bucket by its debt, which the script has clamped.
func (cl *compiledLimit) bucket(debt int64) algorithm.Bucket {
	debt *= cl.debtUnit
	return algorithm.Bucket{Full: debt, Overdrawn: debt > cl.rate().Capacity()}
}

// overdrawnBit marks the counts of a window that a charge overdrew.
const overdrawnBit = 1 << 52

// counter returns the state of a fixed window.
func counter(used, end int64) algorithm.Counter {
	return algorithm.Counter{Used: used &^ overdrawnBit, End: end * tick, Overdrawn: used&overdrawnBit != 0}
}

// slide returns the state of a sliding window.
func (cl *compiledLimit) slide(counts, ttl int64) algorithm.Slide {
	return algorithm.Slide{
		Previous:  counts &^ overdrawnBit >> 26,
		Current:   counts & (1<<26 - 1),
		End:       (ttl - cl.period) * tick,
		Overdrawn: counts&overdrawnBit != 0,
	}
}

func (cl *compiledLimit) decideAligned(used, end, now int64, ask algorithm.Request) penstock.Decision {
	var w algorithm.Window
	if now == endFromNow {
		now, w = 0, algorithm.Window{End: end * tick, Length: end * tick}
	} else {
		w = cl.window(now)
	}
	c, outcome := cl.fixed.Decide(counter(used, end), now*tick, w, ask)
	return cl.decision(outcome, cl.fixed.Balance(c, now*tick))
}

// decodeDecision returns the decision that the script of a log, a ring or permits has
// made.
func (cl *compiledLimit) decodeDecision(reply []int64, ask algorithm.Request) penstock.Decision {
	granted, used, wait, reset := reply[0], reply[1], reply[2], reply[3]
	outcome := algorithm.Outcome{Allowed: wait == 0, Granted: granted, RetryAfter: wait * tick}
	if wait == neverWait || cl.step != algorithm.ConcurrentStep && ask.NeverFits(cl.capacity) {
		outcome = algorithm.Outcome{RetryAfter: algorithm.Never}
	}
	return cl.decision(outcome, algorithm.Balance{Remaining: max(cl.normal.Count-used, 0), ResetAfter: reset * tick})
}

// neverWait is the wait for permits that can never be granted.
const neverWait = -1

func (cl *compiledLimit) decision(outcome algorithm.Outcome, balance algorithm.Balance) penstock.Decision {
	return penstock.Decision{
		Allowed:    outcome.Allowed,
		Granted:    outcome.Granted,
		Limit:      cl.capacity,
		Remaining:  balance.Remaining,
		RetryAfter: time.Duration(outcome.RetryAfter),
		ResetAfter: time.Duration(balance.ResetAfter),
		Delay:      time.Duration(outcome.Delay),
	}
}
