package redisstore

import (
	"context"
	"fmt"
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
// Groups whose steps are the same share the script, and batches.
type takeGroup struct {
	each   bool // whether the requests are independent
	limits []*compiledLimit
	asks   []algorithm.Request
	order  []int    // of the limits in the script: by step, so that there are few scripts
	weight int      // of a call, in steps on a key that holds one number
	args   []string // of the script; nil if they depend on the time
	serial uint64   // distinguishes it from all other groups
	*unrolledScript
}

// takeGroups holds groups by their hash. It is of a fixed size, because remote callers
// may choose limits: a group that is replaced only forms its next batch apart.
type takeGroups [256]atomic.Pointer[takeGroup]

// groupOf returns the group of a TakeAll or TakeEach, or nil if it has none.
func (s *Store) groupOf(items []takeAllItem, rs []penstock.Request, each bool) *takeGroup {
	if len(items) < 2 || !allDistinct(items) || s.client.Sharded() && !sameSlot(items) {
		return nil
	}
	for i := range items {
		if rs[i].ID != "" || items[i].limit.step == script.Concurrent {
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
	timed := false
	for i := range items {
		cl := items[i].limit
		g.limits, g.asks, g.order = append(g.limits, cl), append(g.asks, items[i].ask), append(g.order, i)
		g.weight += maxBatch / cl.maxBatch
		timed = timed || cl.step == script.AlignedWindow
	}
	slices.SortStableFunc(g.order, func(i, j int) int { return int(g.limits[i].step) - int(g.limits[j].step) })
	if g.unrolledScript = s.unrolled.get(g.steps(), each); g.unrolledScript == nil {
		return nil
	}
	if !timed {
		g.args = g.appendArgs(nil)
	}
	return g
}

// steps returns the steps of the group's script.
func (g *takeGroup) steps() (list []script.Step) {
	for _, i := range g.order {
		list = append(list, g.limits[i].step)
	}
	return list
}

// unrolledScripts are the scripts of a store's groups.
type unrolledScripts struct {
	mu   sync.Mutex
	have map[unrolledKey]*unrolledScript
}

// An unrolledScript is a script of groups, and where their calls meet.
type unrolledScript struct {
	script *Script
	batchQueue
}

type unrolledKey struct {
	steps string
	each  bool
}

func unrolledKeyOf(steps []script.Step, each bool) unrolledKey {
	return unrolledKey{fmt.Sprint(steps), each}
}

// maxUnrolledScripts bounds the scripts that callers can make Redis hold by their choice of
// algorithms.
const maxUnrolledScripts = 256

// get returns the script for these steps, or nil if there are too many.
func (u *unrolledScripts) get(steps []script.Step, each bool) *unrolledScript {
	u.mu.Lock()
	defer u.mu.Unlock()
	key := unrolledKeyOf(steps, each)
	made := u.have[key]
	if made == nil && len(u.have) < maxUnrolledScripts {
		if u.have == nil {
			u.have = map[unrolledKey]*unrolledScript{}
		}
		made = &unrolledScript{script: groupScript(steps, each), batchQueue: batchQueue{maxBatch: maxBatch}}
		u.have[key] = made
	}
	return made
}

// appendArgs appends the arguments of the group's script, for all keys that are left.
func (g *takeGroup) appendArgs(args []string) []string {
	args = append(args, "", "1")
	fits := len(args) - 1
	for _, i := range g.order {
		cl, at := g.limits[i], len(args)
		args = cl.appendArgs(g.asks[i], append(args, ""))
		n := len(args) - at - 1
		if g.asks[i].Overdraw {
			n = -n
		}
		args[at] = strconv.Itoa(n)
		if !g.each && g.asks[i].NeverFits(cl.capacity) {
			args[fits] = "0"
		}
	}
	return args
}

// encodeGroupArgs writes everything but the keys of a call.
func (s *Store) encodeGroupArgs(g *takeGroup, c *Call) {
	c.Script, c.Reply, c.Err, c.Text, c.lastErr, c.idempotent = g.script, c.Reply[:0], nil, false, nil, false
	if c.Args = g.args; c.Args != nil {
		return
	}
	for _, cl := range g.limits {
		cl.centerCalendar(s.redisMillis())
	}
	c.argsBuf = g.appendArgs(c.argsBuf[:0])
	c.Args = c.argsBuf
}

// encodeSections writes the arguments of a batch of several groups, which are sorted.
func (s *Store) encodeSections(takes []*pendingTake, c *Call) {
	var own Call
	args := c.argsBuf[:0]
	for len(takes) > 0 {
		n := 1
		for n < len(takes) && takes[n].group == takes[0].group {
			n++
		}
		at := len(args)
		s.encodeGroupArgs(takes[0].group, &own)
		args = append(args, own.Args...)
		args[at] = strconv.Itoa(n)
		takes = takes[n:]
	}
	c.argsBuf, c.Args = args, args
}

// submitAll sends a TakeAll or TakeEach in a batch if others of its group are in flight, and
// otherwise alone, without delay.
func (s *Store) submitAll(ctx context.Context, t *pendingTake, ds []penstock.Decision) error {
	t.encodeGroupKeys()
	q := &t.group.batchQueue
	defer q.inFlight.Add(-1)
	if q.inFlight.Add(1) > 1 && 2*t.group.weight <= q.maxBatch && !s.batchingOff.Load() && ctx.Err() == nil {
		if ok, err := s.sendBatched(ctx, t); ok || err != nil {
			t.decideAll(ds, ok)
			return err
		}
	}
	d := s.deadlineAfter(ctx, s.timeout-time.Since(t.start))
	defer d.stop()
	return s.sendAllAlone(d, t, ds)
}

// encodeGroupKeys makes a TakeAll or TakeEach ready to be sent.
func (t *pendingTake) encodeGroupKeys() {
	t.start, t.request = time.Now(), compiledRequest{}
	t.calls[0].Keys = t.calls[0].Keys[:0]
	for _, i := range t.group.order {
		t.calls[0].Keys = append(t.calls[0].Keys, t.items[i].key)
	}
}

// sendAllAlone sends a TakeAll or TakeEach in its own script, as sendAlone does a take.
func (s *Store) sendAllAlone(d *deadline, t *pendingTake, ds []penstock.Decision) error {
	c := &t.calls[0]
	for range maxClockAttempts {
		s.encodeGroupArgs(t.group, c)
		s.roundTrip(d, t.calls[:])
		switch {
		case c.Err != nil:
			return s.callError(d, c)
		case len(c.Reply) == 3 && c.Reply[0] == noWindow:
			s.setRedisMillis(c.Reply[2])
			continue
		}
		if rest, ok := t.readGroupReply(c.Reply); !ok || len(rest) > 0 {
			return c.unexpectedReply()
		}
		t.decideAll(ds, true)
		return nil
	}
	return c.wrapError(errClockChanged)
}

// readGroupReply reads the part of a reply that belongs to one call, and returns the rest.
func (t *pendingTake) readGroupReply(reply []int64) (rest []int64, ok bool) {
	if len(reply) == 0 || reply[0] != 0 && reply[0] != 1 {
		return reply, false
	}
	t.took, rest = reply[0] == 1, reply[1:]
	for _, i := range t.group.order {
		it := &t.items[i]
		if it.state, rest, ok = it.limit.readStep(it.buf[:0], rest); !ok {
			return rest, false
		}
		it.state = it.limit.unpack(it.state, it.ask)
	}
	return rest, true
}

// decideAll writes the decisions of a call that was answered.
func (t *pendingTake) decideAll(ds []penstock.Decision, answered bool) {
	switch {
	case !answered:
	case t.took:
		for i := range t.items {
			ds[i] = t.items[i].limit.decide(t.items[i].state, t.items[i].ask)
		}
	default:
		denyAll(t.items, ds)
	}
}
