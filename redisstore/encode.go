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
func (p *plan) replyLen() int {
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
func (p *plan) unpack(reply []int64, ask algorithm.Ask) []int64 {
	if len(reply) != 1 {
		return reply
	}
	longest := p.period
	switch p.step {
	case algorithm.SlidingLogStep:
		return append(reply[:0], p.sent(ask), reply[0], 0, p.period)
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

// undecided returns the server's clock if the windows that a script was sent did
// not reach to it, so that it has decided nothing.
func (p *plan) undecided(reply []int64) (now int64, ok bool) {
	return reply[len(reply)-1], p.step == algorithm.AlignedWindowStep && reply[0] == noWindow
}

// noWindow is what the script answers first if it has found no window around now.
const noWindow = -1

// decide returns the decision on an ask, given the state that was found. Times
// in it count from now, but for those of aligned windows where that is not said.
func (p *plan) decide(state []int64, ask algorithm.Ask) penstock.Decision {
	switch p.step {
	case algorithm.TokenBucketStep:
		debt := state[0] * p.unit
		b, v := p.token.Decide(algorithm.Bucket{Full: debt, Reserved: debt > p.token.Capacity()}, 0, ask)
		return p.decision(v, p.token.Standing(b.Full))
	case algorithm.LeakyBucketStep:
		drained, v := p.leaky.Decide(state[0]*p.unit, 0, ask)
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
	return p.decided(state, ask)
}

func (p *plan) decideAligned(used, end, now int64, ask algorithm.Ask) penstock.Decision {
	var w algorithm.Window
	if now == leftFromNow {
		now, w = 0, algorithm.Window{End: end * tick, Length: end * tick}
	} else {
		w = p.window(now)
	}
	c, v := p.fixed.Decide(algorithm.Counter{Used: used, End: end * tick}, now*tick, w, ask)
	return p.decision(v, p.fixed.Standing(c, now*tick))
}

// decided returns the decision that a script has made.
func (p *plan) decided(reply []int64, ask algorithm.Ask) penstock.Decision {
	granted, used, wait, reset := reply[0], reply[1], reply[2], reply[3]
	v := algorithm.Verdict{Allowed: wait == 0, Granted: granted, RetryAfter: wait * tick}
	if p.never(ask) {
		v = algorithm.Verdict{RetryAfter: algorithm.Never}
	}
	return p.decision(v, algorithm.Standing{Remaining: p.normal.Count - used, ResetAfter: reset * tick})
}

func (p *plan) decision(v algorithm.Verdict, st algorithm.Standing) penstock.Decision {
	return penstock.Decision{
		Allowed:    v.Allowed,
		Granted:    v.Granted,
		Limit:      p.most,
		Remaining:  st.Remaining,
		RetryAfter: time.Duration(v.RetryAfter),
		ResetAfter: time.Duration(st.ResetAfter),
		Delay:      time.Duration(v.Delay),
	}
}

// A question is a request on its way to a script.
type question struct {
	plan   *plan
	ask    algorithm.Ask
	once   bool  // whether it has an ID that matters
	memory int64 // how long a grant under it is remembered, in ticks
}

// anyLimit is valid.
var anyLimit = penstock.PerSecond(1)

// pose writes a request into a call. A grant under an ID is remembered for as long
// as the limit says, but no longer than the given time.
func (s *Store) pose(q *question, c *Call, r *penstock.Request, memory time.Duration) error {
	err := s.name(q, c, r, memory)
	if err == nil {
		s.poseAgain(q, c)
	}
	return err
}

// name writes what does not change when a question has to be posed again.
func (s *Store) name(q *question, c *Call, r *penstock.Request, memory time.Duration) (err error) {
	apart := *r
	apart.Limit = anyLimit // its own is checked once, when it is planned
	if err = apart.Validate(); err != nil {
		return err
	}
	if q.plan, err = s.plans.get(r.Limit); err != nil {
		return err
	}
	q.ask, q.once = askOf(r), r.ID != "" && r.Cost != 0
	q.memory = min(q.plan.memory, memory.Milliseconds())
	state := stateName(s.prefix, r.Key, q.plan.identity)
	c.Keys = append(c.Keys[:0], state)
	if c.safe = q.once; q.once {
		c.Keys = append(c.Keys, recordName(s.prefix, state, r.ID))
	}
	return nil
}

// poseAgain writes all but the keys, which do not change when the server's clock
// turns out not to be where it was looked for.
func (s *Store) poseAgain(q *question, c *Call) {
	p := q.plan
	c.Reply, c.Err, c.Text, c.refusal = c.Reply[:0], nil, false, nil
	p.center(here() + s.ahead.Load())
	switch {
	case q.once:
		c.Script = p.once
		c.own = p.arguments(q.ask, append(c.own[:0], strconv.FormatInt(q.memory, 10), p.unitCost()))
		if q.ask.Cost < 0 {
			c.own[2] = strconv.FormatInt(p.sent(q.ask), 10)
		}
		c.Args = c.own
	case q.ask == (algorithm.Ask{Cost: 1}) && p.step != algorithm.AlignedWindowStep:
		c.Script = p.script
		c.Args = p.one
	default:
		c.Script = p.script
		c.own = p.arguments(q.ask, c.own[:0])
		c.Args = c.own
	}
}

// unitCost returns what one unit costs the step.
func (p *plan) unitCost() string {
	if p.unit == 0 {
		return "1"
	}
	return strconv.FormatInt(p.rate().Interval/p.unit, 10)
}

// answer reads the decision from the reply to a question. It is not ok if the
// server's clock is elsewhere; then the question has to be posed again.
func (s *Store) answer(q *question, c *Call) (d penstock.Decision, ok bool, err error) {
	reply, before := c.Reply, 0
	if q.once {
		before = 2
	}
	if !q.once {
		reply = q.plan.unpack(reply, q.ask)
	}
	if len(reply) != before+q.plan.replyLen() {
		return d, true, c.unexpected()
	}
	if now, ok := q.plan.undecided(reply[before:]); ok {
		s.ahead.Store(now - here())
		return d, false, nil
	}
	if q.once {
		return q.answerOnce(reply[0], reply[1], reply[before:]), true, nil
	}
	return q.plan.decide(reply, q.ask), true, nil
}

// unexpected returns the error of a reply that no script of ours gives.
func (c *Call) unexpected() error {
	return c.failed(fmt.Errorf("%w: unexpected reply %d", penstock.ErrUnavailable, c.Reply))
}

// answerOnce returns the decision on a request with an ID, for which units are
// on record, or were asked back.
func (q *question) answerOnce(units, acting int64, state []int64) penstock.Decision {
	switch {
	case q.ask.Cost < 0:
		return q.plan.decide(state, algorithm.Ask{Cost: -units})
	case units == 0:
		return q.plan.decide(state, q.ask)
	}
	d := q.plan.decide(state, algorithm.Ask{})
	d.Granted = units
	d.Delay = time.Duration(acting * tick)
	return d
}
