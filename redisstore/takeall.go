package redisstore

import (
	"context"
	"crypto/rand"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
)

// TakeAll decides the requests as one, all or nothing. It is what
// [penstock.TakeAll] calls.
//
// Where all keys are on one server, or in one slot of a Cluster, it is one
// script, and nobody ever sees a part of it. Keys that have the same {tag} are in
// one slot.
//
// Over several slots of a Cluster it looks at all keys, takes of one after the
// other, and gives back what it took when one refuses or does not answer; for
// giving back it has [Options].Timeout once more. That never admits too much.
// Others may see units taken for a moment, and be refused because of it. What
// cannot be given back, because the process has died or the node does not
// answer, comes back by itself, as all that is taken does.
func (s *Store) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	// AllowAll refuses what has no meaning, and whatever it grants is nothing.
	if err := penstock.TakeAll(ctx, penstock.AllowAll, rs, ds); err != nil {
		return err
	}
	ms, err := s.compileItems(rs)
	if err != nil || len(ms) == 0 {
		return err
	}
	d := deadlineAfter(ctx, s.timeout)
	defer d.stop()
	for range maxClockAttempts {
		var decided bool
		if s.client.Sharded() && !oneSlot(ms) {
			decided, err = s.takeAcrossSlots(d, rs, ms, ds)
		} else {
			decided, err = s.takeInOneScript(d, ms, ds)
		}
		if decided || err != nil {
			return err
		}
	}
	return fmt.Errorf("redisstore: take all: %w", errClockChanged)
}

// A takeAllItem is one request of a TakeAll.
type takeAllItem struct {
	limit     *compiledLimit
	stateKey  string
	ask       algorithm.Ask
	totalCost int64 // what all of them ask of this key
	priorCost int64 // what those before it ask of this key
	state     []int64
}

func (s *Store) compileItems(rs []penstock.Request) ([]takeAllItem, error) {
	ms := make([]takeAllItem, len(rs))
	for i := range rs {
		p, err := s.limits.get(rs[i].Limit)
		if err != nil {
			return nil, requestError(i, err)
		}
		ms[i] = takeAllItem{limit: p, stateKey: stateKey(s.prefix, rs[i].Key, p.identity), ask: askOf(&rs[i])}
	}
	return ms, sumCosts(ms)
}

// sumCosts works out what is asked of each key.
func sumCosts(ms []takeAllItem) error {
	totals := make(map[string]int64, len(ms))
	for i := range ms {
		m := &ms[i]
		m.priorCost = totals[m.stateKey]
		if m.ask.Cost > math.MaxInt64-m.priorCost {
			return requestError(i, &penstock.FieldError{
				Field: "Cost", Kind: penstock.ErrBadCost, Problem: "costs of one key add up to more than fits",
			})
		}
		totals[m.stateKey] = m.priorCost + m.ask.Cost
	}
	for i := range ms {
		ms[i].totalCost = totals[ms[i].stateKey]
	}
	return nil
}

func oneSlot(ms []takeAllItem) bool {
	return !slices.ContainsFunc(ms, func(m takeAllItem) bool { return slotOf(m.stateKey) != slotOf(ms[0].stateKey) })
}

// totalAsk returns the ask for all that is asked of the member's key. A look asks
// for nothing, and refuses nothing.
func (m *takeAllItem) totalAsk() algorithm.Ask {
	ask := m.ask
	if ask.Cost > 0 {
		ask.Cost = m.totalCost
	}
	return ask
}

// encodeTakeAll returns the call that takes members as one, or only tries to.
func (s *Store) encodeTakeAll(ms []takeAllItem, take bool) Call {
	for i := range ms {
		take = take && !ms[i].limit.neverFits(ms[i].totalAsk())
		ms[i].limit.centerCalendar(s.nowMillis() + s.clockOffset.Load())
	}
	c := Call{Args: []string{"0"}}
	if take {
		c.Args[0] = "1"
	}
	set := uint(0)
	for i := range ms {
		set |= 1 << slices.Index(steps[:], ms[i].limit.step)
		c.Keys = append(c.Keys, ms[i].stateKey)
		c.Args = ms[i].appendArgs(c.Args)
	}
	c.Script = takeAllScript(set)
	return c
}

// appendArgs appends the step's letter, and with what it is tried and taken.
func (m *takeAllItem) appendArgs(args []string) []string {
	try := m.limit.appendArgs(m.totalAsk(), nil)
	if m.priorCost > 0 && m.ask.Cost > 0 && m.limit.step == algorithm.LeakyBucketStep && m.ask.MaxDelay > 0 {
		try[2] = m.boundBehind()
	}
	args = append(args, string(m.limit.step), strconv.Itoa(len(try)))
	args = append(args, try...)
	if m.totalAsk() == m.ask {
		return append(args, "0")
	}
	take := m.limit.appendArgs(m.ask, nil)
	return append(append(args, strconv.Itoa(len(take))), take...)
}

// boundBehind returns the bound on a leaky bucket's debt for a member that will
// wait behind others of the same batch.
func (m *takeAllItem) boundBehind() string {
	p := m.limit
	delay := min(algorithm.RoundDown(m.ask.MaxDelay, tick), p.leaky.Capacity())
	if m.priorCost > p.leaky.Burst {
		return "-1"
	}
	return strconv.FormatInt((delay-m.priorCost*p.leaky.Interval)/p.debtUnit, 10)
}

// takeInOneScript takes all members in one script. Nothing is decided if the
// server's clock is elsewhere.
func (s *Store) takeInOneScript(d *deadline, ms []takeAllItem, ds []penstock.Decision) (decided bool, err error) {
	calls := []Call{s.encodeTakeAll(ms, true)}
	s.roundTrip(d, calls)
	took, err := s.decodeTakeAll(d, &calls[0], ms)
	if err != nil || s.clockMoved(ms) {
		return false, err
	}
	if !took {
		denyAll(ms, ds)
		return true, nil
	}
	for i := range ms {
		ds[i] = ms[i].limit.decide(ms[i].state, ms[i].ask)
	}
	return true, nil
}

// decodeTakeAll gives each member its part of the reply.
func (s *Store) decodeTakeAll(d *deadline, c *Call, ms []takeAllItem) (took bool, err error) {
	if c.Err != nil {
		return false, s.callError(d, c)
	}
	reply := c.Reply
	want := 1
	for i := range ms {
		want += ms[i].limit.replyLen()
	}
	if len(reply) != want {
		return false, c.unexpectedReply()
	}
	took, reply = reply[0] == 1, reply[1:]
	for i := range ms {
		n := ms[i].limit.replyLen()
		ms[i].state, reply = reply[:n], reply[n:]
	}
	return took, nil
}

// clockMoved reports whether the server's clock is not where it was looked for,
// and remembers where it is.
func (s *Store) clockMoved(ms []takeAllItem) bool {
	for i := range ms {
		if now, ok := ms[i].limit.missedWindow(ms[i].state); ok {
			s.clockOffset.Store(now - s.nowMillis())
			return true
		}
	}
	return false
}

// denyAll writes how the keys stand when nothing was taken: those that stood in
// the way say when to come back.
func denyAll(ms []takeAllItem, ds []penstock.Decision) {
	all := true
	for i := range ms {
		ds[i] = ms[i].peek()
		if verdict := ms[i].limit.decide(ms[i].state, ms[i].totalAsk()); verdict.RetryAfter > 0 {
			setDenied(&ds[i], verdict.RetryAfter)
			all = false
		}
	}
	if all {
		denyLate(ms, ds)
	}
}

// denyLate finds the member of a leaky bucket that fits, but would have to wait
// for too long behind others of the same batch.
func denyLate(ms []takeAllItem, ds []penstock.Decision) {
	for i := range ms {
		m := &ms[i]
		if m.limit.step != algorithm.LeakyBucketStep || m.ask.Cost == 0 {
			continue
		}
		behind := m.state[0]*m.limit.debtUnit + m.priorCost*m.limit.leaky.Interval
		if _, v := m.limit.leaky.Decide(behind, 0, m.ask); !v.Allowed {
			setDenied(&ds[i], time.Duration(v.RetryAfter))
			return
		}
	}
}

// setDenied makes a look that of a member which stood in the way.
func setDenied(d *penstock.Decision, retryAfter time.Duration) {
	d.Allowed, d.Delay, d.RetryAfter = false, 0, retryAfter
}

// peek returns how a member stands.
func (m *takeAllItem) peek() penstock.Decision {
	if m.limit.replyLen() == 4 {
		return m.limit.decodeDecision([]int64{0, m.state[1], 0, m.state[3]}, algorithm.Ask{})
	}
	return m.limit.decide(m.state, algorithm.Ask{})
}

// takeAcrossSlots takes of keys in several slots, one after the other.
func (s *Store) takeAcrossSlots(d *deadline, rs []penstock.Request, ms []takeAllItem, ds []penstock.Decision) (decided bool, err error) {
	if decided, err = s.peekAcrossSlots(d, ms, ds); decided || err != nil {
		return decided, err
	}
	if s.clockMoved(ms) {
		return false, nil
	}
	id := rand.Text()
	for i, r := range rs {
		if r.Cost > 0 {
			r.ID = itemID(id, i)
		}
		ds[i], err = s.takeAlone(d, &r, s.rollBackTTL())
		if err == nil && ds[i].Allowed {
			continue
		}
		return true, s.rollBack(d, rs, ds, i, id, err)
	}
	return true, nil
}

// rollBackTTL is how long a grant is remembered that may have to be given back: for
// longer than there is time to do that, and not for a whole period, because
// every member leaves a record.
func (s *Store) rollBackTTL() time.Duration { return 2*s.timeout + 10*time.Second }

func itemID(id string, i int) string { return id + strconv.Itoa(i) }

// peekAcrossSlots looks at all keys, in one trip. If one refuses, that is the decision.
func (s *Store) peekAcrossSlots(d *deadline, ms []takeAllItem, ds []penstock.Decision) (refused bool, err error) {
	bySlot := map[uint16][]int{}
	for i := range ms {
		slot := slotOf(ms[i].stateKey)
		bySlot[slot] = append(bySlot[slot], i)
	}
	var calls []Call
	var groups [][]int
	for _, group := range bySlot {
		calls, groups = append(calls, s.encodeTakeAll(pick(ms, group), false)), append(groups, group)
	}
	s.roundTrip(d, calls)
	for i, group := range groups {
		some := pick(ms, group)
		if _, err := s.decodeTakeAll(d, &calls[i], some); err != nil {
			return false, requestError(group[0], err)
		}
		for j, place := range group {
			ms[place] = some[j]
		}
	}
	if s.clockMoved(ms) {
		return false, nil
	}
	denyAll(ms, ds)
	return slices.ContainsFunc(ds[:len(ms)], func(d penstock.Decision) bool { return !d.Allowed }), nil
}

func pick(ms []takeAllItem, places []int) []takeAllItem {
	some := make([]takeAllItem, len(places))
	for i, place := range places {
		some[i] = ms[place]
	}
	return some
}

// rollBack gives back what was taken up to the member that refused, or failed with
// an error, even if the caller has gone away meanwhile. After a refusal it writes
// how the keys stand.
func (s *Store) rollBack(d *deadline, rs []penstock.Request, ds []penstock.Decision, at int, id string, failed error) error {
	d = deadlineAfter(context.WithoutCancel(d.Context), s.timeout)
	defer d.stop()
	retryAfter := ds[at].RetryAfter
	asks := slices.Clone(rs)
	for i := range asks {
		asks[i].Cost, asks[i].MaxDelay = 0, 0
		if i <= at && rs[i].Cost > 0 {
			asks[i].Cost, asks[i].ID = -rs[i].Cost, itemID(id, i)
		}
	}
	switch err := s.takeEach(d, asks, ds); {
	case failed != nil:
		return requestError(at, failed)
	case err != nil:
		return err
	}
	for i := range asks {
		asks[i].Cost, asks[i].ID = 0, ""
	}
	if err := s.takeEach(d, asks, ds); err != nil {
		return err
	}
	setDenied(&ds[at], retryAfter)
	return nil
}
