package redisstore

import (
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/redisstore/internal/script"
)

// A script replies with the state that it found, and the same step in Go works out
// what the script decided. Only logs, rings and permits are too long to be sent: their
// scripts reply with their decision.

// decode reads the decision from the reply to a request. ok is false if Redis's
// time was outside the windows sent, and the request must be sent again.
func (s *Store) decode(q *compiledRequest, c *Call) (d penstock.Decision, ok bool, err error) {
	state, found := c.Reply, foundRecord{grant: algorithm.Grant{Units: noRecord}}
	switch {
	case !q.once:
		state = q.limit.unpack(state, q.ask)
	case len(state) > q.limit.replyLen():
		found, state = q.readRecord(state)
	}
	if len(state) != q.limit.replyLen() {
		return d, true, c.unexpectedReply()
	}
	if now, missed := q.limit.missedWindow(state); missed {
		s.setRedisMillis(now)
		return d, false, nil
	}
	if q.once {
		d, err = q.decideOnce(found, state)
		return d, true, err
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
	case script.SlidingLog:
		return append(reply[:0], cl.scriptCost(ask), reply[0], 0, cl.period)
	case script.Concurrent:
		return append(reply[:0], cl.scriptCost(ask), reply[0]%permitsRadix, 0, reply[0]/permitsRadix)
	case script.SlidingWindow:
		maxTTL *= 2
	case script.FixedWindow, script.AlignedWindow:
	default:
		return reply
	}
	both := reply[0]
	reply = append(reply[:0], both/(maxTTL+1), both%(maxTTL+1))
	if cl.step == script.AlignedWindow {
		reply = append(reply, endFromNow)
	}
	return reply
}

// permitsRadix is above the permits that a key can have. In a reply of one number they are
// its lower part.
const permitsRadix = 16384

// endFromNow replaces the time in the state of an aligned window whose end is
// relative to now.
const endFromNow = -1

// replyLen returns how many integers a step replies with.
func (cl *compiledLimit) replyLen() int {
	switch cl.step {
	case script.TokenBucket, script.LeakyBucket:
		return 1
	case script.FixedWindow, script.SlidingWindow:
		return 2
	case script.AlignedWindow:
		return 3
	}
	return 4
}

// missedWindow returns Redis's time if it was outside the windows that the script
// was sent, so that nothing was decided.
func (cl *compiledLimit) missedWindow(reply []int64) (now int64, missed bool) {
	return reply[len(reply)-1], cl.step == script.AlignedWindow && reply[0] == noWindow
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
		f.grant.Owed, f.grant.Due = reply[1], reply[min(2, len(reply)-1)]*tick
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
		grant: algorithm.Grant{Units: reply[0], Owed: reply[2], Due: reply[3] * tick},
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
func (cl *compiledLimit) move(g algorithm.Grant, state []int64, change int64) (d penstock.Decision, charged int64) {
	if change > 0 {
		d = cl.decide(state, cl.settleAsk(change))
		return d, g.Units + d.Granted
	}
	back := min(-change, g.Unpaid(0, cl.interval()))
	if back == 0 {
		return cl.peek(state), g.Units + change
	}
	return cl.refundDue(state, back, g.Due), g.Units + change
}

// interval returns how long a bucket takes to earn one unit, or 0 for a window.
func (cl *compiledLimit) interval() int64 {
	if cl.debtUnit == 0 {
		return 0
	}
	return cl.rate().Interval
}

// peek returns the state that a script found as a decision.
func (cl *compiledLimit) peek(state []int64) penstock.Decision {
	if cl.replyLen() == 4 {
		return cl.decodeDecision([]int64{0, state[1], 0, state[3]}, algorithm.Request{})
	}
	return cl.decide(state, algorithm.Request{})
}

// refundDue returns the decision on a refund of units that time will have paid back at
// due, from now.
func (cl *compiledLimit) refundDue(state []int64, units, due int64) penstock.Decision {
	switch cl.step {
	case script.TokenBucket, script.LeakyBucket:
		b, outcome := cl.rate().RefundDue(cl.bucket(state[0]), 0, units, due)
		return cl.decision(outcome, cl.rate().Balance(b.Full))
	case script.FixedWindow:
		w := algorithm.Window{End: cl.period * tick, Length: cl.period * tick}
		c, outcome := cl.fixed.RefundDue(counter(state[0], state[1]), 0, w, units, due)
		return cl.decision(outcome, cl.fixed.Balance(c, 0))
	case script.AlignedWindow:
		used, end, now, w := cl.alignedWindow(state)
		c, outcome := cl.fixed.RefundDue(counter(used, end), now*tick, w, units, now*tick+due)
		return cl.decision(outcome, cl.fixed.Balance(c, now*tick))
	case script.SlidingWindow:
		s, outcome := cl.sliding.RefundDue(cl.slide(state[0], state[1]), 0, units, due)
		return cl.decision(outcome, cl.sliding.Balance(s, 0))
	}
	return cl.decodeDecision(state, algorithm.Request{})
}

// decide returns the decision on an ask, given the state that the script found.
// Times in the state count from now, except those of aligned windows without
// endFromNow.
func (cl *compiledLimit) decide(state []int64, ask algorithm.Request) penstock.Decision {
	switch cl.step {
	case script.TokenBucket:
		b, outcome := cl.token.Decide(cl.bucket(state[0]), 0, ask)
		return cl.decision(outcome, cl.token.Balance(b.Full))
	case script.LeakyBucket:
		b, outcome := cl.leaky.Decide(cl.bucket(state[0]), 0, ask)
		return cl.decision(outcome, cl.leaky.Balance(b.Full))
	case script.FixedWindow:
		w := algorithm.Window{End: cl.period * tick, Length: cl.period * tick}
		c, outcome := cl.fixed.Decide(counter(state[0], state[1]), 0, w, ask)
		return cl.decision(outcome, cl.fixed.Balance(c, 0))
	case script.AlignedWindow:
		return cl.decideAligned(state, ask)
	case script.SlidingWindow:
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

func (cl *compiledLimit) decideAligned(state []int64, ask algorithm.Request) penstock.Decision {
	used, end, now, w := cl.alignedWindow(state)
	c, outcome := cl.fixed.Decide(counter(used, end), now*tick, w, ask)
	return cl.decision(outcome, cl.fixed.Balance(c, now*tick))
}

// alignedWindow returns the state of an aligned window, and the window at now.
func (cl *compiledLimit) alignedWindow(state []int64) (used, end, now int64, w algorithm.Window) {
	used, end, now = state[0], state[1], state[2]
	if now == endFromNow {
		return used, end, 0, algorithm.Window{End: end * tick, Length: end * tick}
	}
	return used, end, now, cl.window(now)
}

// decodeDecision returns the decision that the script of a log, a ring or permits has
// made.
func (cl *compiledLimit) decodeDecision(reply []int64, ask algorithm.Request) penstock.Decision {
	granted, used, wait, reset := reply[0], reply[1], reply[2], reply[3]
	outcome := algorithm.Outcome{Allowed: wait == 0, Granted: granted, RetryAfter: wait * tick}
	if wait == neverWait || cl.step != script.Concurrent && ask.NeverFits(cl.capacity) {
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
