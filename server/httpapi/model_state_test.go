package httpapi_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// This model decides as documented, in the simplest way: it counts units in windows that begin
// with their first unit, knows what was charged under which ID, and which permits are held. All
// times are in milliseconds. It shares no code with the product.

// An ask is one request for a key, as a caller or the engine makes it.
type ask struct {
	key              string
	id               string
	cost             int64
	keepFree, hold   int64
	atMost, overdraw bool
	newID, settle    bool
}

// resetCost is the cost of an ask that resets its key.
const resetCost = -1 << 63

// An answer is what an ask gets.
type answer struct {
	allowed                   bool
	granted, remaining, retry int64
	unknown                   bool // the ID is not remembered
}

// never is the retry of an ask that cannot be granted in any state.
const never = -1

// A cell is what is counted for one key, under one limit.
type cell struct {
	count, period, debt int64
	concurrent          bool

	used, end int64 // of the window, which is open while used is above 0
	ids       map[string]chargedID
	permits   map[string]heldPermit
}

// A chargedID is what was charged under an ID.
type chargedID struct {
	units    int64
	owed     int64 // of the units, those that the window that ends at due counts
	due      int64
	apart    bool // whether the others were counted by a window that had not ended
	refunded bool // which is possible once
	expiry   int64
}

// A heldPermit is what an ID holds.
type heldPermit struct {
	units, expiry int64
	released      bool
}

func (c *cell) clone() *cell {
	d := *c
	d.ids, d.permits = maps.Clone(c.ids), maps.Clone(c.permits)
	return &d
}

// expire drops what has ended.
func (c *cell) expire(now int64) {
	if c.end <= now || c.used == 0 {
		c.used, c.end = 0, 0
	}
	maps.DeleteFunc(c.ids, func(_ string, r chargedID) bool { return r.expiry <= now })
	maps.DeleteFunc(c.permits, func(_ string, p heldPermit) bool { return p.expiry <= now })
}

// held returns how many units are not free.
func (c *cell) held() int64 {
	n := c.used
	for _, p := range c.permits {
		n += p.units
	}
	return n
}

// peek returns an allowed answer that was granted so many units.
func (c *cell) peek(granted int64) answer {
	return answer{allowed: true, granted: granted, remaining: max(c.count-c.held(), 0)}
}

// knows reports whether an ID was granted units that are remembered.
func (c *cell) knows(id string) bool {
	_, charged := c.ids[id]
	_, held := c.permits[id]
	return charged || held
}

// fits returns how many units an ask is granted that takes under no known ID, and the denial if
// that is none. The total is what all asks of one call take from the cell.
func (c *cell) fits(a ask, total, now int64) (granted int64, denial *answer) {
	free := c.count - c.held() - min(a.keepFree, c.count)
	least := total
	if a.atMost {
		total, least = min(total, max(free, 1)), 1
	}
	if total <= free {
		return min(a.cost, total), nil
	}
	d := c.peek(0)
	d.allowed, d.retry = false, c.freed(total-free)-now
	if least > c.count-a.keepFree {
		d.retry = never
	}
	return 0, &d
}

// freed returns when n units will be free that are not.
func (c *cell) freed(n int64) int64 {
	if !c.concurrent {
		return c.end
	}
	last := int64(0)
	for _, p := range slices.SortedFunc(maps.Values(c.permits), func(p, q heldPermit) int { return cmp.Compare(p.expiry, q.expiry) }) {
		if last = p.expiry; n <= p.units {
			break
		}
		n -= p.units
	}
	return last
}

// add charges units to the window, and returns when it ends.
func (c *cell) add(units, now int64) int64 {
	if c.used == 0 {
		c.end = now + c.period
	}
	c.used += units
	return c.end
}

// decide decides an ask, all by itself.
func (c *cell) decide(a ask, now int64) answer {
	switch {
	case a.cost == 0 && !a.settle:
		return c.peek(0)
	case a.cost == resetCost:
		n := c.held()
		c.used, c.end = 0, 0
		clear(c.permits)
		return c.peek(-n)
	case c.concurrent:
		return c.decidePermit(a, now)
	case a.settle || a.id != "" && (a.cost < 0 || c.knows(a.id)):
		return c.decideKnown(a, now)
	case a.cost < 0:
		n := min(-a.cost, c.used)
		c.used -= n
		return c.peek(-n)
	}
	granted, denial := int64(0), (*answer)(nil)
	if a.overdraw {
		granted = min(a.cost, max(c.count+c.debt-c.used, 0))
	} else if granted, denial = c.fits(a, a.cost, now); denial != nil {
		return *denial
	}
	c.grant(a, granted, now, max(c.period, a.hold))
	return c.peek(granted)
}

// grant charges units, and remembers them under the ID of the ask.
func (c *cell) grant(a ask, granted, now, lifetime int64) {
	due := int64(0)
	if granted > 0 {
		due = c.add(granted, now)
	}
	if a.id != "" {
		c.ids[a.id] = chargedID{units: granted, owed: granted, due: due, expiry: now + lifetime}
	}
}

// decideKnown settles, refunds or repeats what was charged under an ID.
func (c *cell) decideKnown(a ask, now int64) answer {
	r, known := c.ids[a.id]
	switch {
	case a.settle && !known:
		return answer{unknown: true}
	case a.settle:
		c.move(&r, a.cost-r.units, now)
		c.ids[a.id] = r
		return c.peek(r.units)
	case a.cost > 0:
		return c.peek(r.units)
	case !known || r.refunded:
		return c.peek(0)
	}
	back := c.move(&r, -min(-a.cost, r.units), now)
	r.refunded = true
	if c.ids[a.id] = r; r.units == 0 {
		delete(c.ids, a.id)
	}
	return c.peek(-back)
}

// move changes what is charged under an ID, and returns how many units came back.
func (c *cell) move(r *chargedID, change, now int64) (back int64) {
	if r.due <= now {
		r.owed, r.apart = 0, false
	}
	if change > 0 {
		if more := min(change, max(c.count+c.debt-c.used, 0)); more > 0 {
			due := c.add(more, now)
			if due != r.due {
				r.owed, r.apart = 0, r.apart || r.owed > 0 // another window counts those
			}
			r.units, r.owed, r.due = r.units+more, r.owed+more, due
		}
		return 0
	}
	owed := min(-change, r.owed)
	if c.used > 0 && c.end == r.due {
		back = min(owed, c.used)
	}
	c.used -= back
	if r.apart {
		change = -owed // the others stay charged
	}
	r.units, r.owed = r.units+change, r.owed-owed
	return back
}

// decidePermit takes, renews or releases permits.
func (c *cell) decidePermit(a ask, now int64) answer {
	p, held := c.permits[a.id]
	switch {
	case a.cost < 0 && (!held || p.released):
		return c.peek(0)
	case a.cost < 0:
		n := min(-a.cost, p.units)
		p.units, p.released = p.units-n, true
		if c.permits[a.id] = p; p.units == 0 {
			delete(c.permits, a.id)
		}
		return c.peek(-n)
	case held && a.newID:
		d := c.peek(0)
		d.allowed, d.retry = false, p.expiry-now
		if _, denial := c.fits(a, a.cost, now); denial != nil && (denial.retry == never || d.retry != never && denial.retry > d.retry) {
			d.retry = denial.retry
		}
		return d
	case held:
		p.expiry = now + c.period
		c.permits[a.id] = p
		return c.peek(p.units)
	}
	granted, denial := c.fits(a, a.cost, now)
	if denial != nil {
		return *denial
	}
	c.permits[a.id] = heldPermit{units: granted, expiry: now + c.period}
	return c.peek(granted)
}

// A world is the state of all cells.
type world map[string]*cell

func (w world) clone() world {
	c := world{}
	for key, cell := range w {
		c[key] = cell.clone()
	}
	return c
}

// String is the same for worlds that cannot be told apart.
func (w world) String() (text string) {
	for _, key := range slices.Sorted(maps.Keys(w)) {
		c := w[key]
		text += fmt.Sprint(key, " ", c.used, " until ", c.end, " ", c.ids, c.permits, "\n")
	}
	return text
}

func (w world) decide(a ask, now int64) answer { return w[a.key].decide(a, now) }

// decideAll decides asks all or nothing. Under a common ID, all are known or none.
func (w world) decideAll(asks []ask, now int64) []answer {
	if len(asks) == 1 {
		return []answer{w.decide(asks[0], now)}
	}
	recorded, known := 0, 0
	for _, a := range asks {
		if a.id != "" && a.id == asks[0].id && (a.cost > 0 || a.settle) {
			recorded++
			if w[a.key].knows(a.id) {
				known++
			}
		}
	}
	common := !slices.ContainsFunc(asks, func(a ask) bool { return a.id != asks[0].id || a.newID })
	answers := make([]answer, len(asks))
	switch {
	case common && (asks[0].settle || known > 0) && known < recorded:
		answers[0].unknown = true
		return answers
	case common && known > 0 || asks[0].settle:
		for i, a := range asks {
			answers[i] = w.decide(a, now)
		}
		return w.lastStates(asks, answers)
	}
	return w.takeAll(asks, answers, now)
}

// lastStates returns answers with the state after all of them, as repetitions have it.
func (w world) lastStates(asks []ask, answers []answer) []answer {
	for i, a := range asks {
		if !a.settle {
			answers[i].remaining = w[a.key].peek(0).remaining
		}
	}
	return answers
}

// takeAll takes all asks or none.
func (w world) takeAll(asks []ask, answers []answer, now int64) []answer {
	total, lifetime, denied := map[string]int64{}, int64(0), false
	for _, a := range asks {
		if !a.overdraw {
			total[a.key] += a.cost
		}
		lifetime = max(lifetime, w[a.key].period, a.hold)
	}
	for i, a := range asks {
		c := w[a.key]
		answers[i] = c.peek(0)
		if a.cost == 0 || a.overdraw || c.concurrent && c.knows(a.id) && !a.newID {
			continue
		}
		if c.concurrent && c.knows(a.id) {
			answers[i] = c.decidePermit(a, now)
		} else if _, denial := c.fits(a, total[a.key], now); denial != nil {
			answers[i] = *denial
		}
		denied = denied || !answers[i].allowed
	}
	for i, a := range asks {
		if denied {
			break
		}
		a.keepFree = 0
		a.hold = lifetime
		answers[i] = w.decide(a, now)
	}
	return answers
}
