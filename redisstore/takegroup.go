package redisstore

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/redisstore/internal/script"
)

// A takeGroup is what TakeAlls, or TakeEachs, that can share the arguments of a script have in
// common: their limits, in this order, and what they ask for. They have no IDs, and no key twice.
// Groups whose steps are the same share a queue, and so the script and batches.
type takeGroup struct {
	each   bool // whether the requests are independent
	limits []*compiledLimit
	asks   []algorithm.Request
	order  []int    // of the limits in the script: by step, so that there are few scripts
	weight int      // of a call, in steps on a key that holds one number
	args   []string // of each request; nil if they change from call to call
	serial uint64   // distinguishes it from all other groups
	queue  *batchQueue
}

// takeGroups holds groups by their hash. It is of a fixed size, because remote callers
// may choose limits: a group that is replaced only forms its next batch apart.
type takeGroups [256]atomic.Pointer[takeGroup]

// groupOf returns the group of a TakeAll or TakeEach, or nil if it has none.
func (s *Store) groupOf(items []takeAllItem, rs []penstock.Request, each bool) *takeGroup {
	if len(items) < 2 || !allDistinct(items) || s.sharded() && !s.onePlace(items) {
		return nil
	}
	for i := range items {
		if rs[i].ID != "" || !items[i].limit.hasRecords {
			return nil
		}
	}
	slot := &s.groups[hashItems(items, each)%uint64(len(s.groups))]
	if g := slot.Load(); g != nil && g.each == each && g.matches(items) {
		return g
	}
	g := s.newTakeGroup(items, each)
	if g != nil {
		slot.Store(g)
	}
	return g
}

// hashItems spreads groups over their table.
func hashItems(items []takeAllItem, each bool) (h uint64) {
	if each {
		h = 1
	}
	for i := range items {
		h = (h ^ items[i].limit.serial ^ uint64(items[i].ask.Cost)<<32) * 0x9e3779b97f4a7c15 //nolint:gosec // only bits
	}
	return h >> 32
}

func (g *takeGroup) matches(items []takeAllItem) bool {
	for i := range items {
		if i >= len(g.limits) || g.limits[i] != items[i].limit || g.asks[i] != items[i].ask {
			return false
		}
	}
	return len(items) == len(g.limits)
}

// newTakeGroup returns nil if the store has used too many scripts already.
func (s *Store) newTakeGroup(items []takeAllItem, each bool) *takeGroup {
	g := &takeGroup{each: each, serial: limitSerial.Add(1)}
	changing := false
	for i := range items {
		cl := items[i].limit
		g.limits, g.asks, g.order = append(g.limits, cl), append(g.asks, items[i].ask), append(g.order, i)
		g.weight += maxBatch / cl.takes.maxBatch
		changing = changing || cl.changing
	}
	slices.SortStableFunc(g.order, func(i, j int) int { return cmp.Compare(g.limits[i].step, g.limits[j].step) })
	var steps []script.Step
	for _, i := range g.order {
		steps = append(steps, g.limits[i].lua)
	}
	if g.queue = s.groupQueues.get(steps, each); g.queue == nil {
		return nil
	}
	if !changing {
		g.args = g.appendArgs(nil)
	}
	return g
}

// groupQueues are where the calls of a store's groups meet, by their scripts.
type groupQueues struct {
	mu   sync.Mutex
	have map[groupSteps]*batchQueue
}

// groupSteps are the steps of a group's script, by their letters.
type groupSteps struct {
	steps string
	each  bool
}

func groupStepsOf(steps []script.Step, each bool) groupSteps {
	letters := ""
	for _, s := range steps {
		letters += s.Letter
	}
	return groupSteps{letters, each}
}

// maxGroupScripts bounds the scripts that callers can make Redis hold by their choice of
// algorithms.
const maxGroupScripts = 256

// get returns the queue for these steps, or nil if there are too many.
func (u *groupQueues) get(steps []script.Step, each bool) *batchQueue {
	u.mu.Lock()
	defer u.mu.Unlock()
	key := groupStepsOf(steps, each)
	queue := u.have[key]
	if queue == nil && len(u.have) < maxGroupScripts {
		if u.have == nil {
			u.have = map[groupSteps]*batchQueue{}
		}
		queue = &batchQueue{script: groupScript(steps, each), maxBatch: maxBatch}
		u.have[key] = queue
	}
	return queue
}

// appendArgs appends the arguments of each request.
func (g *takeGroup) appendArgs(args []string) []string {
	fits := "1"
	if g.neverFits() {
		fits = "0"
	}
	args = append(args, fits)
	var room [10]string
	for _, i := range g.order {
		step := g.limits[i].appendAsk(room[:0], g.asks[i])
		n := len(step)
		if g.asks[i].Overdraw {
			n = -n
		}
		args = append(append(args, strconv.Itoa(n)), step...)
	}
	return args
}

// neverFits reports whether a TakeAll of the group is always denied.
func (g *takeGroup) neverFits() bool {
	for i, cl := range g.limits {
		if !g.each && g.asks[i].NeverFits(cl.capacity) {
			return true
		}
	}
	return false
}

// appendSection appends a section for so many requests; see arguments.go.
func (g *takeGroup) appendSection(s *Store, args []string, requests string) []string {
	args = append(args, requests)
	if g.args != nil {
		return append(args, g.args...)
	}
	for _, cl := range g.limits {
		cl.centerCalendar(s.redisMillis())
	}
	return g.appendArgs(args)
}

// A groupTake is a TakeAll or TakeEach. If it has a group it can share a script.
type groupTake struct {
	pending
	items []takeAllItem
	group *takeGroup
	took  bool // whether the script took all
}

var groupTakePool = sync.Pool{New: func() any { return newGroupTake() }}

func newGroupTake() *groupTake {
	t := &groupTake{}
	t.init()
	return t
}

// release returns a take to the pool. After an error, the client may still write into it.
func (t *groupTake) release() {
	t.ctx, t.group, t.queue = nil, nil, nil
	groupTakePool.Put(t)
}

// submitGroup sends a TakeAll or TakeEach in a batch if others of its queue are in flight, and
// otherwise alone, without delay.
func (s *Store) submitGroup(ctx context.Context, start time.Time, t *groupTake, ds []penstock.Decision) error {
	t.encodeKeys(start)
	defer t.queue.inFlight.Add(-1)
	if t.queue.inFlight.Add(1) > 1 {
		if ok, err := s.sendBatched(ctx, t); ok || err != nil {
			t.decideAll(ds, ok)
			return err
		}
	}
	d := s.deadlineAfter(ctx, t.start, s.timeout)
	defer d.stop()
	return s.sendGroupAlone(d, t, ds)
}

// encodeKeys makes a take ready to be sent.
func (t *groupTake) encodeKeys(start time.Time) {
	t.start, t.queue, t.weight = start, t.group.queue, t.group.weight
	t.calls[0].Keys = t.calls[0].Keys[:0]
	for _, i := range t.group.order {
		t.calls[0].Keys = append(t.calls[0].Keys, t.items[i].key)
	}
}

// sendGroupAlone sends a TakeAll or TakeEach in its own script, as sendAlone does a take.
func (s *Store) sendGroupAlone(d *deadline, t *groupTake, ds []penstock.Decision) error {
	c := &t.calls[0]
	for range maxClockAttempts {
		c.reset(false)
		c.Script, c.argsBuf = t.group.queue.script, t.group.appendSection(s, c.argsBuf[:0], "")
		c.Args = c.argsBuf
		s.roundTrip(d, t.calls[:])
		switch {
		case c.Err != nil:
			return s.callError(d, c)
		case len(c.Reply) == 3 && c.Reply[0] == noWindow:
			s.setRedisMillis(c.Reply[2])
			continue
		}
		if rest, ok := t.readBatch(c.Reply); !ok || len(rest) > 0 {
			return c.unexpectedReply()
		}
		t.decideAll(ds, true)
		return nil
	}
	return c.wrapError(errClockChanged)
}

// encodeBatch brings takes of one group together. Each group is a section.
func (t *groupTake) encodeBatch(s *Store, takes []take, c *Call) {
	groupOf := func(t take) *takeGroup { return t.(*groupTake).group }
	slices.SortStableFunc(takes, func(x, y take) int { return cmp.Compare(groupOf(x).serial, groupOf(y).serial) })
	c.reset(false)
	c.argsBuf = c.argsBuf[:0]
	for left := takes; len(left) > 0; {
		group, n := groupOf(left[0]), 1
		for n < len(left) && groupOf(left[n]) == group {
			n++
		}
		c.argsBuf = group.appendSection(s, c.argsBuf, strconv.Itoa(n))
		left = left[n:]
	}
	c.Args = c.argsBuf
	for _, t := range takes {
		c.Keys = append(c.Keys, t.base().calls[0].Keys...)
	}
}

func (t *groupTake) readBatch(reply []int64) (rest []int64, ok bool) {
	if len(reply) == 0 || reply[0] != 0 && reply[0] != 1 {
		return reply, false
	}
	t.took, rest = reply[0] == 1, reply[1:]
	for _, i := range t.group.order {
		it := &t.items[i]
		if it.state, rest, ok = it.limit.readStep(it.buf[:0], rest); !ok {
			return rest, false
		}
		if it.state = it.limit.unpacked(it.state, it.ask); len(it.state) != it.limit.replyLen {
			return rest, false
		}
	}
	return rest, true
}

// decideAll writes the decisions of a call that was answered.
func (t *groupTake) decideAll(ds []penstock.Decision, answered bool) {
	switch {
	case !answered:
	case t.took:
		takeItems(t.items, ds)
	default:
		denyAll(t.items, ds)
	}
}
