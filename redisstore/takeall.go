package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
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
// other, and gives back what it took when one refuses. That never admits too
// much. Others may see units taken for a moment, and be refused because of it; a
// process that dies in between leaves them taken until they come back by
// themselves.
func (s *Store) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	// AllowAll refuses what has no meaning, and whatever it grants is nothing.
	if err := penstock.TakeAll(ctx, penstock.AllowAll, rs, ds); err != nil {
		return err
	}
	ms, err := s.members(rs)
	if err != nil || len(ms) == 0 {
		return err
	}
	for range maxPosed {
		var decided bool
		if s.client.Sharded() && !oneSlot(ms) {
			decided, err = s.takeAcross(ctx, rs, ms, ds)
		} else {
			decided, err = s.takeTogether(ctx, ms, ds)
		}
		if decided || err != nil {
			return err
		}
	}
	return fmt.Errorf("redisstore: take all: %w: %w", penstock.ErrUnavailable, errClock)
}

var errClock = errors.New("the server's clock does not stay in one place")

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
	for i := range ms {
		for j := range ms {
			if ms[j].name != ms[i].name {
				continue
			}
			if ms[j].ask.Cost > math.MaxInt64-ms[i].total {
				return requestError(i, &penstock.FieldError{
					Field: "Cost", Kind: penstock.ErrBadCost, Problem: "costs of one key add up to more than fits",
				})
			}
			ms[i].total += ms[j].ask.Cost
			if j < i {
				ms[i].ahead += ms[j].ask.Cost
			}
		}
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
		try[3] = m.boundBehind()
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
func (s *Store) takeTogether(ctx context.Context, ms []member, ds []penstock.Decision) (decided bool, err error) {
	calls := []Call{s.together(ms, true)}
	s.travel(ctx, calls)
	took, err := s.readTogether(ctx, &calls[0], ms)
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
func (s *Store) readTogether(ctx context.Context, c *Call, ms []member) (took bool, err error) {
	if c.Err != nil {
		return false, s.callError(ctx, c)
	}
	reply := c.Reply
	want := 1
	for i := range ms {
		want += ms[i].plan.replyLen()
	}
	if len(reply) != want {
		return false, fmt.Errorf("redisstore: take all: %w: unexpected reply %d", penstock.ErrUnavailable, reply)
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
func (s *Store) takeAcross(ctx context.Context, rs []penstock.Request, ms []member, ds []penstock.Decision) (decided bool, err error) {
	if decided, err = s.tryAcross(ctx, ms, ds); decided || err != nil {
		return decided, err
	}
	if s.elsewhere(ms) {
		return false, nil
	}
	id := rand.Text()
	for i, r := range rs {
		if r.Cost > 0 {
			r.ID = id + strconv.Itoa(i)
		}
		d, err := s.Take(ctx, r)
		ds[i] = d
		if err == nil && d.Allowed {
			continue
		}
		undone := s.undo(ctx, rs[:i+1], id)
		if err != nil {
			return false, requestError(i, err)
		}
		if undone == nil {
			undone = s.lookAgain(ctx, rs, ds, i)
		}
		return true, undone
	}
	return true, nil
}

// tryAcross looks at all keys, in one trip. If one refuses, that is the decision.
func (s *Store) tryAcross(ctx context.Context, ms []member, ds []penstock.Decision) (refused bool, err error) {
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
	s.travel(ctx, calls)
	for i, group := range groups {
		some := pick(ms, group)
		if _, err := s.readTogether(ctx, &calls[i], some); err != nil {
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

// undo gives back what was taken under the IDs of a batch, even if ctx has ended.
func (s *Store) undo(ctx context.Context, rs []penstock.Request, id string) error {
	ctx = context.WithoutCancel(ctx)
	var first error
	for i, r := range rs {
		if r.Cost == 0 {
			continue
		}
		r.ID, r.Cost, r.MaxDelay = id+strconv.Itoa(i), -r.Cost, 0
		if _, err := s.Take(ctx, r); err != nil && first == nil {
			first = requestError(i, fmt.Errorf("giving back: %w", err))
		}
	}
	return first
}

// lookAgain writes how the keys stand after one of them refused late.
func (s *Store) lookAgain(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, refusing int) error {
	retryAfter := ds[refusing].RetryAfter
	looks := slices.Clone(rs)
	for i := range looks {
		looks[i].Cost, looks[i].MaxDelay = 0, 0
	}
	if err := s.TakeEach(ctx, looks, ds); err != nil {
		return err
	}
	stand(&ds[refusing], retryAfter)
	return nil
}
