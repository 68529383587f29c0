package redisstore

import (
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
)

// decode reads the decision from the reply to a request. ok is false if Redis's
// time was outside the windows sent, and the request must be sent again.
func (s *Store) decode(q *compiledRequest, c *Call) (d penstock.Decision, ok bool, err error) {
	state, found := c.Reply, foundRecord{grant: algorithm.Grant{Units: noRecord}}
	switch {
	case !q.once():
		state = q.limit.unpacked(state, q.ask)
	case len(state) > q.limit.replyLen:
		found, state = q.readRecord(state)
	}
	if len(state) != q.limit.replyLen {
		return d, true, c.unexpectedReply()
	}
	if now, missed := q.limit.missedWindow(state); missed {
		s.setRedisMillis(now)
		return d, false, nil
	}
	if q.once() {
		d, err = q.decideOnce(found, state)
		return d, true, err
	}
	return q.limit.decide(state, q.ask), true, nil
}

// unexpectedReply returns the error for a reply that no script gives.
func (c *Call) unexpectedReply() error {
	return c.wrapError(fmt.Errorf("%w: unexpected reply %d", penstock.ErrUnavailable, c.Reply))
}

// unpacked returns the state of a reply that may be packed in one number.
func (cl *compiledLimit) unpacked(reply []int64, ask algorithm.Request) []int64 {
	if len(reply) != 1 {
		return reply
	}
	return cl.unpack(cl, reply[0], ask, reply[:0])
}

// missedWindow returns Redis's time if it was outside the windows that the script
// was sent, so that nothing was decided.
func (cl *compiledLimit) missedWindow(reply []int64) (now int64, missed bool) {
	return reply[len(reply)-1], cl.normal.Align != penstock.AlignFirst && reply[0] == noWindow
}

// noWindow is the first number of a reply if no window includes Redis's time.
const noWindow = -1

// A foundRecord is the record that a script found under an ID, with times from now.
type foundRecord struct {
	grant algorithm.Grant
	delay int64 // until the caller may act on the grant
}

// readRecord reads what a script under an ID replies with before the reply of the step: of
// the record, what the decision depends on.
func (q *compiledRequest) readRecord(reply []int64) (f foundRecord, state []int64) {
	if f.grant.Units = reply[0]; q.settle || q.ask.Cost < 0 {
		f.grant = algorithm.NewGrant(reply[0], reply[1], reply[min(2, len(reply)-1)]*tick)
		return f, reply[min(3, len(reply)):]
	}
	f.delay = reply[1] * tick
	return f, reply[2:]
}

// recordReplyLen is how many numbers of a TakeAll's reply describe a record.
const recordReplyLen = 4

// noRecord is the units granted under an ID that has no record.
const noRecord = -1

func foundOf(reply []int64) foundRecord {
	return foundRecord{
		grant: algorithm.NewGrant(reply[0], reply[2], reply[3]*tick),
		delay: reply[1] * tick,
	}
}

func (f *foundRecord) exists() bool { return f.grant.Units != noRecord }

// decideOnce returns the decision on a request with an ID.
func (q *compiledRequest) decideOnce(f foundRecord, state []int64) (penstock.Decision, error) {
	cl := q.limit
	switch {
	case q.settle && !f.exists():
		return penstock.Decision{}, errNotRemembered
	case q.settle:
		return cl.settle(f.grant, state, q.ask.Cost), nil
	case q.ask.Cost < 0 && !f.exists():
		return cl.peek(state), nil
	case q.ask.Cost < 0:
		d, _ := cl.move(f.grant, state, max(q.ask.Cost, -f.grant.Units))
		return d, nil
	case !f.exists():
		return cl.decide(state, q.ask), nil
	}
	return cl.repeat(f, state), nil
}

var errNotRemembered = fmt.Errorf("redisstore: settle: %w: nothing was granted under it, or it has expired", penstock.ErrUnknownID)

// repeat returns the decision on a request that was granted before.
func (cl *compiledLimit) repeat(f foundRecord, state []int64) penstock.Decision {
	d := cl.peek(state)
	d.Granted, d.Delay = f.grant.Units, time.Duration(f.delay)
	return d
}

// settle returns the decision on a settlement.
func (cl *compiledLimit) settle(g algorithm.Grant, state []int64, amount int64) penstock.Decision {
	d, charged := cl.move(g, state, min(amount-g.Units, cl.maxCharge()))
	d.Allowed, d.Granted, d.RetryAfter, d.Delay = true, charged, 0, 0
	return d
}

// move returns the decision on a change of what is charged under an ID, and how much
// that is then.
func (cl *compiledLimit) move(g algorithm.Grant, state []int64, more int64) (d penstock.Decision, charged int64) {
	if more > 0 {
		d = cl.decide(state, cl.settleAsk(more))
		return d, g.Units + d.Granted
	}
	back := min(-more, g.Unpaid(0, cl.rate.Interval))
	d = cl.decision(cl.apply(cl, state, change{units: back, due: g.Due}))
	return d, g.Refunded(0, -more, back, cl.rate.Interval, tick).Units
}

// peek returns the state that a script found as a decision.
func (cl *compiledLimit) peek(state []int64) penstock.Decision {
	return cl.decide(state, algorithm.Request{})
}

// decide returns the decision on an ask, given the state that the script found.
func (cl *compiledLimit) decide(state []int64, ask algorithm.Request) penstock.Decision {
	return cl.decision(cl.apply(cl, state, change{ask: ask}))
}

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
