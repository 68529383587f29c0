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
	ms, err := s.members(rs)
	if err != nil || len(ms) == 0 {
		return err
	}
	d := deadlineAfter(ctx, s.timeout)
	defer d.stop()
	for range maxPosed {
		var decided bool
		if s.client.Sharded() && !oneSlot(ms) {
			decided, err = s.takeAcross(d, rs, ms, ds)
		} else {
			decided, err = s.takeTogether(d, ms, ds)
		}
		if decided || err != nil {
			return err
		}
	}
	return fmt.Errorf("redisstore: take all: %w", errClock)
}

// A member is one request of a TakeAll.
type member struct {
	plan  *plan
	name  string
	ask   algorithm.Ask
	total int64 // what all of them ask of this key
	ahead int64 // what those before it ask of this key
	state []int64
}

func (s *Store) members(rs []penstock.Request) ([]member, error) {
	ms := make([]member, len(rs))
	for i := range rs {
		p, err := s.plans.get(rs[i].Limit)
		if err != nil {
			return nil, requestError(i, err)
		}
		ms[i] = member{plan: p, name: stateName(s.prefix, rs[i].Key, p.identity), ask: askOf(&rs[i])}
	}
	return ms, addUp(ms)
}

// addUp works out what is asked of each key.
func addUp(ms []member) error {
	totals := make(map[string]int64, len(ms))
	for i := range ms {
		m := &ms[i]
		m.ahead = totals[m.name]
		if m.ask.Cost > math.MaxInt64-m.ahead {
			return requestError(i, &penstock.FieldError{
				Field: "Cost", Kind: penstock.ErrBadCost, Problem: "costs of one key add up to more than fits",
			})
		}
		totals[m.name] = m.ahead + m.ask.Cost
	}
	for i := range ms {
		ms[i].total = totals[ms[i].name]
	}
	return nil
}

func oneSlot(ms []member) bool {
	return !slices.ContainsFunc(ms, func(m member) bool { return slotOf(m.name) != slotOf(ms[0].name) })
}

// whole returns the ask for all that is asked of the member's key. A look asks
// for nothing, and refuses nothing.
func (m *member) whole() algorithm.Ask {
	ask := m.ask
	if ask.Cost > 0 {
		ask.Cost = m.total
	}
	return ask
}

// together returns the call that takes members as one, or only tries to.
func (s *Store) together(ms []member, take bool) Call {
	for i := range ms {
		take = take && !ms[i].plan.never(ms[i].whole())
		ms[i].plan.center(here() + s.ahead.Load())
	}
	c := Call{Args: []string{"0"}}
	if take {
		c.Args[0] = "1"
	}
	set := uint(0)
	for i := range ms {
		set |= 1 << slices.Index(steps[:], ms[i].plan.step)
		c.Keys = append(c.Keys, ms[i].name)
		c.Args = ms[i].arguments(c.Args)
	}
	c.Script = takeAllScript(set)
	return c
}

// arguments appends the step's letter, and with what it is tried and taken.
func (m *member) arguments(args []string) []string {
	try := m.plan.arguments(m.whole(), nil)
	if m.ahead > 0 && m.ask.Cost > 0 && m.plan.step == algorithm.LeakyBucketStep && m.ask.MaxDelay > 0 {
		try[2] = m.boundBehind()
	}
	args = append(args, string(m.plan.step), strconv.Itoa(len(try)))
	args = append(args, try...)
	if m.whole() == m.ask {
		return append(args, "0")
	}
	take := m.plan.arguments(m.ask, nil)
	return append(append(args, strconv.Itoa(len(take))), take...)
}

// boundBehind returns the bound on a leaky bucket's debt for a member that will
// wait behind others of the same batch.
func (m *member) boundBehind() string {
	p := m.plan
	delay := min(algorithm.RoundDown(m.ask.MaxDelay, tick), p.leaky.Capacity())
	if m.ahead > p.leaky.Burst {
		return "-1"
	}
	return strconv.FormatInt((delay-m.ahead*p.leaky.Interval)/p.unit, 10)
}

// takeTogether takes all members in one script. Nothing is decided if the
// server's clock is elsewhere.
func (s *Store) takeTogether(d *deadline, ms []member, ds []penstock.Decision) (decided bool, err error) {
	calls := []Call{s.together(ms, true)}
	s.travel(d, calls)
	took, err := s.readTogether(d, &calls[0], ms)
	if err != nil || s.elsewhere(ms) {
		return false, err
	}
	if !took {
		refuse(ms, ds)
		return true, nil
	}
	for i := range ms {
		ds[i] = ms[i].plan.decide(ms[i].state, ms[i].ask)
	}
	return true, nil
}

// readTogether gives each member its part of the reply.
func (s *Store) readTogether(d *deadline, c *Call, ms []member) (took bool, err error) {
	if c.Err != nil {
		return false, s.callError(d, c)
	}
	reply := c.Reply
	want := 1
	for i := range ms {
		want += ms[i].plan.replyLen()
	}
	if len(reply) != want {
		return false, c.unexpected()
	}
	took, reply = reply[0] == 1, reply[1:]
	for i := range ms {
		n := ms[i].plan.replyLen()
		ms[i].state, reply = reply[:n], reply[n:]
	}
	return took, nil
}

// elsewhere reports whether the server's clock is not where it was looked for,
// and remembers where it is.
func (s *Store) elsewhere(ms []member) bool {
	for i := range ms {
		if now, ok := ms[i].plan.undecided(ms[i].state); ok {
			s.ahead.Store(now - here())
			return true
		}
	}
	return false
}

// refuse writes how the keys stand when nothing was taken: those that stood in
// the way say when to come back.
func refuse(ms []member, ds []penstock.Decision) {
	all := true
	for i := range ms {
		ds[i] = ms[i].look()
		if verdict := ms[i].plan.decide(ms[i].state, ms[i].whole()); verdict.RetryAfter > 0 {
			stand(&ds[i], verdict.RetryAfter)
			all = false
		}
	}
	if all {
		refuseLate(ms, ds)
	}
}

// refuseLate finds the member of a leaky bucket that fits, but would have to wait
// for too long behind others of the same batch.
func refuseLate(ms []member, ds []penstock.Decision) {
	for i := range ms {
		m := &ms[i]
		if m.plan.step != algorithm.LeakyBucketStep || m.ask.Cost == 0 {
			continue
		}
		behind := m.state[0]*m.plan.unit + m.ahead*m.plan.leaky.Interval
		if _, v := m.plan.leaky.Decide(behind, 0, m.ask); !v.Allowed {
			stand(&ds[i], time.Duration(v.RetryAfter))
			return
		}
	}
}

// stand makes a look that of a member which stood in the way.
func stand(d *penstock.Decision, retryAfter time.Duration) {
	d.Allowed, d.Delay, d.RetryAfter = false, 0, retryAfter
}

// look returns how a member stands.
func (m *member) look() penstock.Decision {
	if m.plan.replyLen() == 4 {
		return m.plan.decided([]int64{0, m.state[1], 0, m.state[3]}, algorithm.Ask{})
	}
	return m.plan.decide(m.state, algorithm.Ask{})
}

// takeAcross takes of keys in several slots, one after the other.
func (s *Store) takeAcross(d *deadline, rs []penstock.Request, ms []member, ds []penstock.Decision) (decided bool, err error) {
	if decided, err = s.tryAcross(d, ms, ds); decided || err != nil {
		return decided, err
	}
	if s.elsewhere(ms) {
		return false, nil
	}
	id := rand.Text()
	for i, r := range rs {
		if r.Cost > 0 {
			r.ID = memberID(id, i)
		}
		ds[i], err = s.take(d, &r, s.briefly())
		if err == nil && ds[i].Allowed {
			continue
		}
		return true, s.retreat(d, rs, ds, i, id, err)
	}
	return true, nil
}

// briefly is how long a grant is remembered that may have to be given back: for
// longer than there is time to do that, and not for a whole period, because
// every member leaves a record.
func (s *Store) briefly() time.Duration { return 2*s.timeout + 10*time.Second }

func memberID(id string, i int) string { return id + strconv.Itoa(i) }

// tryAcross looks at all keys, in one trip. If one refuses, that is the decision.
func (s *Store) tryAcross(d *deadline, ms []member, ds []penstock.Decision) (refused bool, err error) {
	bySlot := map[uint16][]int{}
	for i := range ms {
		slot := slotOf(ms[i].name)
		bySlot[slot] = append(bySlot[slot], i)
	}
	var calls []Call
	var groups [][]int
	for _, group := range bySlot {
		calls, groups = append(calls, s.together(pick(ms, group), false)), append(groups, group)
	}
	s.travel(d, calls)
	for i, group := range groups {
		some := pick(ms, group)
		if _, err := s.readTogether(d, &calls[i], some); err != nil {
			return false, requestError(group[0], err)
		}
		for j, place := range group {
			ms[place] = some[j]
		}
	}
	if s.elsewhere(ms) {
		return false, nil
	}
	refuse(ms, ds)
	return slices.ContainsFunc(ds[:len(ms)], func(d penstock.Decision) bool { return !d.Allowed }), nil
}

func pick(ms []member, places []int) []member {
	some := make([]member, len(places))
	for i, place := range places {
		some[i] = ms[place]
	}
	return some
}

// retreat gives back what was taken up to the member that refused, or failed with
// an error, even if the caller has gone away meanwhile. After a refusal it writes
// how the keys stand.
func (s *Store) retreat(d *deadline, rs []penstock.Request, ds []penstock.Decision, at int, id string, failed error) error {
	d = deadlineAfter(context.WithoutCancel(d.Context), s.timeout)
	defer d.stop()
	retryAfter := ds[at].RetryAfter
	asks := slices.Clone(rs)
	for i := range asks {
		asks[i].Cost, asks[i].MaxDelay = 0, 0
		if i <= at && rs[i].Cost > 0 {
			asks[i].Cost, asks[i].ID = -rs[i].Cost, memberID(id, i)
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
	stand(&ds[at], retryAfter)
	return nil
}
