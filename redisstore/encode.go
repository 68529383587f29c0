package redisstore

import (
	"fmt"
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
)

// A script answers with the state that it found, and the same step in Go tells
// what the script made of it. Only logs and rings are too long to be sent; their
// scripts answer with what they decided.

// askOf returns what a request wants in the words of the algorithms.
func askOf(r *penstock.Request) algorithm.Ask {
	return algorithm.Ask{Cost: r.Cost, AtMost: r.AtMost, MaxDelay: int64(r.MaxDelay)}
}

// replyLen is how many integers a step answers with.
func (p *compiledLimit) replyLen() int {
	switch p.step {
	case algorithm.TokenBucketStep, algorithm.LeakyBucketStep:
		return 1
	case algorithm.FixedWindowStep, algorithm.SlidingWindowStep:
		return 2
	case algorithm.AlignedWindowStep:
		return 3
	}
	return 4
}

// unpack returns in full what a script has answered with one number: a count
// together with the time that the key has left, or what is used of a log that has
// just granted all that was asked for.
func (p *compiledLimit) unpack(reply []int64, ask algorithm.Ask) []int64 {
	if len(reply) != 1 {
		return reply
	}
	longest := p.period
	switch p.step {
	case algorithm.SlidingLogStep:
		return append(reply[:0], p.scriptCost(ask), reply[0], 0, p.period)
	case algorithm.SlidingWindowStep:
		longest *= 2
	case algorithm.FixedWindowStep, algorithm.AlignedWindowStep:
	default:
		return reply
	}
	both := reply[0]
	reply = append(reply[:0], both/(longest+1), both%(longest+1))
	if p.step == algorithm.AlignedWindowStep {
		reply = append(reply, leftFromNow)
	}
	return reply
}

// leftFromNow stands for the time in the state of an aligned window, where the
// window's end counts from now.
const leftFromNow = -1

// missedWindow returns the server's clock if the windows that a script was sent did
// not reach to it, so that it has decided nothing.
func (p *compiledLimit) missedWindow(reply []int64) (now int64, ok bool) {
	return reply[len(reply)-1], p.step == algorithm.AlignedWindowStep && reply[0] == noWindow
}

// noWindow is what the script answers first if it has found no window around now.
const noWindow = -1

// decide returns the decision on an ask, given the state that was found. Times
// in it count from now, but for those of aligned windows where that is not said.
func (p *compiledLimit) decide(state []int64, ask algorithm.Ask) penstock.Decision {
	switch p.step {
	case algorithm.TokenBucketStep:
		debt := state[0] * p.debtUnit
		b, v := p.token.Decide(algorithm.Bucket{Full: debt, Reserved: debt > p.token.Capacity()}, 0, ask)
		return p.decision(v, p.token.Standing(b.Full))
	case algorithm.LeakyBucketStep:
		drained, v := p.leaky.Decide(state[0]*p.debtUnit, 0, ask)
		return p.decision(v, p.leaky.Standing(drained))
	case algorithm.FixedWindowStep:
		w := algorithm.Window{End: p.period * tick, Length: p.period * tick}
		c, v := p.fixed.Decide(algorithm.Counter{Used: state[0], End: state[1] * tick}, 0, w, ask)
		return p.decision(v, p.fixed.Standing(c, 0))
	case algorithm.AlignedWindowStep:
		return p.decideAligned(state[0], state[1], state[2], ask)
	case algorithm.SlidingWindowStep:
		s := algorithm.Slide{Previous: state[0] >> 26, Current: state[0] & (1<<26 - 1), End: (state[1] - p.period) * tick}
		s, v := p.sliding.Decide(s, 0, ask)
		return p.decision(v, p.sliding.Standing(s, 0))
	}
	return p.decodeDecision(state, ask)
}

func (p *compiledLimit) decideAligned(used, end, now int64, ask algorithm.Ask) penstock.Decision {
	var w algorithm.Window
	if now == leftFromNow {
		now, w = 0, algorithm.Window{End: end * tick, Length: end * tick}
	} else {
		w = p.window(now)
	}
	c, v := p.fixed.Decide(algorithm.Counter{Used: used, End: end * tick}, now*tick, w, ask)
	return p.decision(v, p.fixed.Standing(c, now*tick))
}

// decodeDecision returns the decision that a script has made.
func (p *compiledLimit) decodeDecision(reply []int64, ask algorithm.Ask) penstock.Decision {
	granted, used, wait, reset := reply[0], reply[1], reply[2], reply[3]
	v := algorithm.Verdict{Allowed: wait == 0, Granted: granted, RetryAfter: wait * tick}
	if p.neverFits(ask) {
		v = algorithm.Verdict{RetryAfter: algorithm.Never}
	}
	return p.decision(v, algorithm.Standing{Remaining: p.normal.Count - used, ResetAfter: reset * tick})
}

func (p *compiledLimit) decision(v algorithm.Verdict, st algorithm.Standing) penstock.Decision {
	return penstock.Decision{
		Allowed:    v.Allowed,
		Granted:    v.Granted,
		Limit:      p.capacity,
		Remaining:  st.Remaining,
		RetryAfter: time.Duration(v.RetryAfter),
		ResetAfter: time.Duration(st.ResetAfter),
		Delay:      time.Duration(v.Delay),
	}
}

// A compiledRequest is a request on its way to a script.
type compiledRequest struct {
	limit     *compiledLimit
	ask       algorithm.Ask
	once      bool  // whether it has an ID that matters
	recordTTL int64 // how long a grant under it is remembered, in ticks
}

// anyLimit is valid.
var anyLimit = penstock.PerSecond(1)

// encode writes a request into a call. A grant under an ID is remembered for as long
// as the limit says, but no longer than the given time.
func (s *Store) encode(q *compiledRequest, c *Call, r *penstock.Request, memory time.Duration) error {
	err := s.encodeKeys(q, c, r, memory)
	if err == nil {
		s.encodeArgs(q, c)
	}
	return err
}

// encodeKeys writes what does not change when a question has to be posed again.
func (s *Store) encodeKeys(q *compiledRequest, c *Call, r *penstock.Request, memory time.Duration) (err error) {
	apart := *r
	apart.Limit = anyLimit // its own is checked once, when it is planned
	if err = apart.Validate(); err != nil {
		return err
	}
	if q.limit, err = s.limits.get(r.Limit); err != nil {
		return err
	}
	q.ask, q.once = askOf(r), r.ID != "" && r.Cost != 0
	q.recordTTL = min(q.limit.recordTTL, memory.Milliseconds())
	state := stateKey(s.prefix, r.Key, q.limit.identity)
	c.Keys = append(c.Keys[:0], state)
	if c.idempotent = q.once; q.once {
		c.Keys = append(c.Keys, recordKey(s.prefix, state, r.ID))
	}
	return nil
}

// encodeArgs writes all but the keys, which do not change when the server's clock
// turns out not to be where it was looked for.
func (s *Store) encodeArgs(q *compiledRequest, c *Call) {
	p := q.limit
	c.Reply, c.Err, c.Text, c.lastErr = c.Reply[:0], nil, false, nil
	p.centerCalendar(s.nowMillis() + s.clockOffset.Load())
	switch {
	case q.once:
		c.Script = p.onceScript
		c.argsBuf = p.appendArgs(q.ask, append(c.argsBuf[:0], strconv.FormatInt(q.recordTTL, 10), p.unitCost()))
		if q.ask.Cost < 0 {
			c.argsBuf[2] = strconv.FormatInt(p.scriptCost(q.ask), 10)
		}
		c.Args = c.argsBuf
	case q.ask == (algorithm.Ask{Cost: 1}) && p.step != algorithm.AlignedWindowStep:
		c.Script = p.takeScript
		c.Args = p.oneUnitArgs
	default:
		c.Script = p.takeScript
		c.argsBuf = p.appendArgs(q.ask, c.argsBuf[:0])
		c.Args = c.argsBuf
	}
}

// unitCost returns what one unit costs the step.
func (p *compiledLimit) unitCost() string {
	if p.debtUnit == 0 {
		return "1"
	}
	return strconv.FormatInt(p.rate().Interval/p.debtUnit, 10)
}

// decode reads the decision from the reply to a question. It is not ok if the
// server's clock is elsewhere; then the question has to be posed again.
func (s *Store) decode(q *compiledRequest, c *Call) (d penstock.Decision, ok bool, err error) {
	reply, before := c.Reply, 0
	if q.once {
		before = 2
	}
	if !q.once {
		reply = q.limit.unpack(reply, q.ask)
	}
	if len(reply) != before+q.limit.replyLen() {
		return d, true, c.unexpectedReply()
	}
	if now, ok := q.limit.missedWindow(reply[before:]); ok {
		s.clockOffset.Store(now - s.nowMillis())
		return d, false, nil
	}
	if q.once {
		return q.decodeOnce(reply[0], reply[1], reply[before:]), true, nil
	}
	return q.limit.decide(reply, q.ask), true, nil
}

// unexpectedReply returns the error of a reply that no script of ours gives.
func (c *Call) unexpectedReply() error {
	return c.wrapError(fmt.Errorf("%w: unexpected reply %d", penstock.ErrUnavailable, c.Reply))
}

// decodeOnce returns the decision on a request with an ID, for which units are
// on record, or were asked back.
func (q *compiledRequest) decodeOnce(units, acting int64, state []int64) penstock.Decision {
	switch {
	case q.ask.Cost < 0:
		return q.limit.decide(state, algorithm.Ask{Cost: -units})
	case units == 0:
		return q.limit.decide(state, q.ask)
	}
	d := q.limit.decide(state, algorithm.Ask{})
	d.Granted = units
	d.Delay = time.Duration(acting * tick)
	return d
}
