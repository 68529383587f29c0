package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/redisstore/internal/script"
)

// TakeAll decides the requests as one, all or nothing. [penstock.TakeAll] calls it.
//
// If all keys are on one server, or in one slot of a Cluster, it is one atomic
// script. Keys with the same {tag} are in one slot. Concurrent calls without IDs, for two to
// five different keys under limits of the same algorithms, share a script, except in a Cluster.
//
// Across several slots of a Cluster it reserves the units of all keys in one round trip, and
// refunds them in a second if one denies or does not answer; the refunds have
// [Options].Timeout once more, also after 20 timeouts. It peeks before, in a round trip, if a
// key denied the last call or if the requests have an ID. Each of these calls all nodes at the
// same time. Each request leaves a record, for 40 Timeouts and ten seconds.
//
// It never admits too much. Other callers may see units reserved for a moment, and be
// denied because of it; a call that is denied after it has reserved something tries once
// more after a random pause, if there is time. Units that cannot be
// refunded, because the process has died or a node does not answer, become available
// again in the course of the limit, like all units taken; the retry of a call with an
// ID that ended so is then [penstock.ErrUnknownID]. After an error, units that a node may have
// reserved are refunded in the background; a retry with the same ID waits for that, and must be
// made by the same process, or after 20 more Timeouts. A refund that Redis executes later still,
// after it hung, takes back what such a retry was granted.
func (s *Store) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	start := time.Now()
	err := s.takeAll(ctx, start, rs, ds)
	if err != nil && crossesSlots(err) { // which is known by now
		err = s.takeAll(ctx, start, rs, ds)
	}
	if err != nil {
		clear(ds[:min(len(rs), len(ds))]) // decisions beside an error must deny
	}
	return err
}

func (s *Store) takeAll(ctx context.Context, start time.Time, rs []penstock.Request, ds []penstock.Decision) (err error) {
	if err := penstock.ValidateBatch(rs, ds, true); err != nil {
		return err
	}
	if len(rs) == 1 && rs[0].ID == "" { // it can join a batch of takes
		ds[0], err = s.Take(ctx, rs[0])
		return err
	}
	t := groupTakePool.Get().(*groupTake)
	if t.items, err = s.compileItems(t.items[:0], rs); err != nil || len(rs) == 0 {
		return err
	}
	if err = sumCosts(t.items); err != nil {
		return err
	}
	if t.group = s.groupOf(t.items, rs, false); t.group != nil {
		if err = s.submitGroup(ctx, start, t, ds); err != nil {
			return err // the client may still write into it
		}
	} else {
		err = s.takeApart(ctx, start, rs, t.items, ds)
	}
	t.release()
	return err
}

// takeApart decides a TakeAll that has no group.
func (s *Store) takeApart(
	ctx context.Context, start time.Time, rs []penstock.Request, items []takeAllItem, ds []penstock.Decision,
) error {
	setLifetimes(items, rs)
	d := s.deadlineAfter(ctx, start, s.timeout)
	defer d.stop()
	if err := s.awaitRollBacks(d, rs, items); err != nil {
		return err
	}
	if s.sharded() && !s.onePlace(items) {
		return s.takeAcrossSlots(d, rs, items, ds)
	}
	for range maxClockAttempts {
		if decided, err := s.takeInOneScript(d, items, ds); decided || err != nil {
			return err
		}
	}
	return fmt.Errorf("redisstore: take all: %w", errClockChanged)
}

// A takeAllItem is one request of a TakeAll or TakeEach.
type takeAllItem struct {
	compiledRequest
	totalCost int64 // of all items on this key; they all overdraw it, or none does
	priorCost int64 // of the items before it on this key
	state     []int64
	buf       [4]int64 // room for a state

	// Under an ID.
	lifetime int64       // of the records of all items, in ticks; 0 without an ID
	held     bool        // whether the ID held permits when the keys were tried across slots
	found    foundRecord // of an earlier grant
}

// compileItems appends an item for each request.
func (s *Store) compileItems(items []takeAllItem, rs []penstock.Request) ([]takeAllItem, error) {
	for i := range rs {
		items = append(items, takeAllItem{})
		if err := s.compile(&items[i].compiledRequest, &rs[i], 0); err != nil {
			return nil, requestError(i, err)
		}
	}
	return items, nil
}

// setLifetimes lets the records of items under one ID live as long as the longest. Without one there
// are none.
func setLifetimes(items []takeAllItem, rs []penstock.Request) {
	lifetime := int64(0)
	once := !slices.ContainsFunc(rs, func(r penstock.Request) bool { return r.ID == "" || r.ID != rs[0].ID || r.NewID })
	for i := range items {
		lifetime = max(lifetime, items[i].recordTTL)
	}
	for i := range items {
		if once {
			items[i].lifetime = lifetime
		} else {
			items[i].record = ""
		}
	}
}

// sumCosts works out the total and prior cost of each item.
func sumCosts(items []takeAllItem) error {
	if allDistinct(items) {
		for i := range items {
			items[i].totalCost = items[i].ask.Cost
		}
		return nil
	}
	totals := make(map[string]int64, len(items))
	for i := range items {
		it := &items[i]
		it.priorCost = totals[it.key]
		if it.ask.Cost > math.MaxInt64-it.priorCost {
			return requestError(i, &penstock.FieldError{
				Field: "Cost", Kind: penstock.ErrBadCost, Problem: "the costs for one key add up to more than 2^63-1",
			})
		}
		totals[it.key] = it.priorCost + it.ask.Cost
	}
	for i := range items {
		items[i].totalCost = totals[items[i].key]
	}
	return nil
}

// allDistinct reports whether a few items have different keys. It is false if there are
// many.
func allDistinct(items []takeAllItem) bool {
	if len(items) > script.MaxUnrolled {
		return false
	}
	for i := range items {
		for j := range i {
			if items[i].key == items[j].key {
				return false
			}
		}
	}
	return true
}

// onePlace reports whether the keys of items can share a script even if those of different slots cannot.
func (s *Store) onePlace(items []takeAllItem) bool {
	return !slices.ContainsFunc(items, func(it takeAllItem) bool { return s.placeOf(it.key) != s.placeOf(items[0].key) })
}

// takeInOneScript takes all items in one script. Nothing is decided if Redis's clock
// was outside the windows sent.
func (s *Store) takeInOneScript(d *deadline, items []takeAllItem, ds []penstock.Decision) (decided bool, err error) {
	calls := []Call{s.encodeTakeAll(items, true)}
	s.roundTrip(d, calls)
	took, err := s.decodeTakeAll(d, &calls[0], items)
	if err != nil || s.clockMissed(items) {
		return false, err
	}
	if items[0].settle {
		return true, settleAll(items, ds)
	}
	if repeated, err := repeatAll(items, ds); repeated || err != nil {
		return repeated, err
	}
	if took {
		takeItems(items, ds)
	} else {
		denyAll(items, ds)
	}
	return true, nil
}

// takeItems writes the decisions on items that were taken.
func takeItems(items []takeAllItem, ds []penstock.Decision) {
	for i := range items {
		ds[i] = items[i].limit.decide(items[i].state, items[i].ask)
	}
}

// repeatAll answers items that were granted under their ID before. If only some were,
// the grants of the others have expired, which is an error.
func repeatAll(items []takeAllItem, ds []penstock.Decision) (repeated bool, err error) {
	takes, granted := 0, 0
	for i := range items {
		if items[i].isRecorded() {
			takes++
		}
		if items[i].wasGranted() {
			granted++
		}
		ds[i] = items[i].repeat()
	}
	if granted > 0 && granted < takes {
		return false, fmt.Errorf("redisstore: take all: %w: %d of %d grants are no longer remembered",
			penstock.ErrUnknownID, takes-granted, takes)
	}
	return granted > 0, nil
}

// isRecorded reports whether the item leaves a record, or permits, which are their own.
func (it *takeAllItem) isRecorded() bool { return it.lifetime > 0 && (it.once() || it.permits != "") }

func (it *takeAllItem) wasGranted() bool { return it.lifetime > 0 && it.found.exists() }

// repeat returns the decision on an item that was granted under its ID before.
func (it *takeAllItem) repeat() penstock.Decision {
	if it.wasGranted() {
		return it.limit.repeat(it.found, it.state)
	}
	return it.limit.peek(it.state)
}

// settleAll writes the decisions on items that were settled, which they were if all were
// granted before.
func settleAll(items []takeAllItem, ds []penstock.Decision) error {
	for i := range items {
		if !items[i].wasGranted() {
			return requestError(i, errNotRemembered)
		}
		ds[i] = items[i].limit.settle(items[i].found.grant, items[i].state, items[i].ask.Cost)
	}
	return nil
}

// encodeTakeAll returns the call that takes all items, or only tries to.
func (s *Store) encodeTakeAll(items []takeAllItem, take bool) Call {
	how := "0"
	if take {
		how = "1"
	}
	for i := range items {
		if take && !items[i].settle && items[i].permits == "" && items[i].totalAsk().NeverFits(items[i].limit.capacity) {
			how = "2"
		}
		items[i].limit.centerCalendar(s.redisMillis())
	}
	if take && items[0].settle {
		how = "s"
	}
	c := Call{Args: []string{how, strconv.FormatInt(items[0].lifetime, 10)}, idempotent: items[0].lifetime > 0}
	set := uint(0)
	for i := range items {
		set |= 1 << items[i].limit.step
		c.Keys = append(c.Keys, items[i].key)
		c.Args = items[i].appendArgs(c.Args)
	}
	if c.idempotent {
		for i := range items {
			c.Keys = append(c.Keys, cmp.Or(items[i].record, items[i].key)) // a key that is not used has a slot too
		}
	}
	c.Script = takeAllScript(set)
	return c
}

// totalAsk returns the ask for the total cost on the item's key. A peek asks for
// nothing, and is never denied.
func (it *takeAllItem) totalAsk() algorithm.Request {
	if it.settle {
		return algorithm.Request{} // whether it was granted is not up to the state
	}
	ask := it.ask
	if ask.Cost > 0 {
		ask.Cost, ask.Prior = it.totalCost, it.priorCost
	}
	return ask
}

// appendArgs appends the step's letter, and the arguments to try and to take with.
func (it *takeAllItem) appendArgs(args []string) []string {
	args = append(args, it.letter())
	if it.lifetime > 0 {
		args = append(args, it.unitArg(), it.limit.onceArgs.perTick, it.limit.onceArgs.most)
	}
	total := it.totalAsk()
	args = appendCounted(args, it.stepArgs(total, it.limit.costArg(total)))
	switch {
	case it.settle:
		return appendCounted(args, it.stepArgs(it.limit.settleAsk(1), formatUnits(it.ask.Cost)))
	case total != it.ask:
		return appendCounted(args, it.stepArgs(it.ask, it.limit.costArg(it.ask)))
	}
	return appendCounted(args, nil)
}

// unitArg returns what one unit costs the step if it is recorded.
func (it *takeAllItem) unitArg() string {
	switch {
	case it.permits != "":
		return "-1"
	case !it.isRecorded():
		return "0"
	}
	return it.limit.onceArgs.unit
}

// stepArgs returns the arguments of the item's step.
func (it *takeAllItem) stepArgs(ask algorithm.Request, cost string) []string {
	return it.limit.appendStep(nil, stepAsk{ask: ask, cost: cost, permits: it.permits})
}

// appendCounted appends how many arguments there are, and these.
func appendCounted(args, list []string) []string {
	return append(append(args, strconv.Itoa(len(list))), list...)
}

// letter returns the step's letter, a capital if the item overdraws its key.
func (it *takeAllItem) letter() string {
	if it.ask.Overdraw {
		return strings.ToUpper(it.limit.lua.Letter)
	}
	return it.limit.lua.Letter
}

// decodeTakeAll gives each item its part of the reply.
func (s *Store) decodeTakeAll(d *deadline, c *Call, items []takeAllItem) (took bool, err error) {
	if c.Err != nil {
		return false, s.callError(d, c)
	}
	reply := c.Reply
	want := 1
	for i := range items {
		want += items[i].limit.replyLen
		if items[i].lifetime > 0 {
			want += recordReplyLen
		}
	}
	if len(reply) != want {
		return false, c.unexpectedReply()
	}
	took, reply = reply[0] == 1, reply[1:]
	for i := range items {
		if items[i].lifetime > 0 {
			items[i].found, reply = foundOf(reply), reply[recordReplyLen:]
		}
	}
	for i := range items {
		n := items[i].limit.replyLen
		items[i].state, reply = reply[:n], reply[n:]
	}
	return took, nil
}

// clockMissed reports whether Redis's clock was outside the windows sent, and
// corrects the estimate of it.
func (s *Store) clockMissed(items []takeAllItem) bool {
	for i := range items {
		if now, missed := items[i].limit.missedWindow(items[i].state); missed {
			s.setRedisMillis(now)
			return true
		}
	}
	return false
}

// denyAll writes decisions for a call that took nothing: each is a peek, and those
// of the items that did not fit are denials with a RetryAfter.
func denyAll(items []takeAllItem, ds []penstock.Decision) {
	for i := range items {
		ds[i] = items[i].limit.peek(items[i].state)
		if total := items[i].limit.decide(items[i].state, items[i].totalAsk()); total.RetryAfter > 0 {
			setDenied(&ds[i], total.RetryAfter)
		}
	}
}

func setDenied(d *penstock.Decision, retryAfter time.Duration) {
	d.Allowed, d.Delay, d.RetryAfter = false, 0, retryAfter
}
