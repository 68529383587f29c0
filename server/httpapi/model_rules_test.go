package httpapi_test

// modelRules has a rule of each kind. Its windows begin with their first unit.
const modelRules = `domain: edge
descriptors:
- {key: hard, limit: 4/40ms fixed-window, settle: true}
- {key: plain, limit: 3/30ms fixed-window}
- {key: quota, quota_mode: true, limit: 3/40ms fixed-window, settle: true}
- {key: other, quota_mode: true, limit: 2/20ms fixed-window}
- {key: shadow, shadow_mode: true, limit: 2/40ms fixed-window, settle: true}
- {key: gate, charge: always, limit: 3/30ms fixed-window}
- {key: slot, limit: 2/30ms concurrent, id: permit}
`

// A modelRule is what the model has to know of a rule.
type modelRule struct{ settle, quota, shadow, gate, permits bool }

var modelRuleOf = map[string]modelRule{
	"hard=x":   {settle: true},
	"plain=x":  {},
	"quota=x":  {quota: true, settle: true},
	"other=x":  {quota: true},
	"shadow=x": {shadow: true, settle: true},
	"gate=x":   {gate: true},
	"slot=x":   {permits: true},
}

func (r modelRule) enforced() bool { return !r.quota && !r.shadow && !r.gate }

// A ruleDecision is how the model decides one request by rules.
type ruleDecision struct {
	world   world
	now     int64
	asks    []ask
	answers []answer
	done    []bool
	denied  []bool
	over    bool
	unknown bool
}

// decideRules decides or settles asks by their rules, under an ID if there is one.
func (w world) decideRules(asks []ask, id string, settle bool, now int64) *ruleDecision {
	d := &ruleDecision{world: w, now: now, asks: w.underID(asks, id), answers: make([]answer, len(asks)), done: make([]bool, len(asks)), denied: make([]bool, len(asks))}
	if settle {
		d.settle()
		return d
	}
	d.takeGates()
	d.over = d.anyDenied(modelRule.enforcedOrGate)
	if !d.over {
		d.each(func(r modelRule, a ask) bool { return r.quota && a.cost > 0 })
		d.over = d.quotasDenied()
	}
	if !d.over {
		d.takeEnforced()
	}
	switch {
	case d.unknown:
	case d.over:
		d.undo()
	default:
		d.each(func(modelRule, ask) bool { return true })
	}
	return d
}

func (r modelRule) enforcedOrGate() bool { return !r.quota && !r.shadow }

// underID gives the ID to all asks but those for permits, which have their own. All remember it
// equally long.
func (w world) underID(asks []ask, id string) (all []ask) {
	hold := int64(0)
	for _, a := range asks {
		hold = max(hold, w[a.key].period)
	}
	for _, a := range asks {
		if id != "" && !modelRuleOf[a.key].permits {
			a.id, a.hold = id, hold
		}
		all = append(all, a)
	}
	return all
}

// conflicts reports whether the asks cannot be decided all or nothing: an ID stands twice on one
// key, or a permit has another ID than the request.
func conflicts(asks []ask, id string, settle bool) bool {
	var seen []ask
	for _, a := range asks {
		r := modelRuleOf[a.key]
		if !r.permits {
			a.id = id
		}
		if !r.enforced() || a.id == "" || settle && !r.settle || !settle && a.cost <= 0 {
			continue
		}
		for _, b := range seen {
			if a.key == b.key && a.id == b.id || a.id != b.id && id != "" {
				return true
			}
		}
		seen = append(seen, a)
	}
	return false
}

// set records an answer.
func (d *ruleDecision) set(i int, a answer) {
	d.answers[i], d.done[i], d.denied[i] = a, true, !a.allowed
}

// each decides those asks by themselves that are not decided yet and that match.
func (d *ruleDecision) each(matches func(modelRule, ask) bool) {
	for i, a := range d.asks {
		if !d.done[i] && matches(modelRuleOf[a.key], a) {
			d.set(i, d.world.decide(a, d.now))
		}
	}
}

// takeGates charges what has happened already. It denies if nothing was left before.
func (d *ruleDecision) takeGates() {
	for i, a := range d.asks {
		if !modelRuleOf[a.key].gate || a.cost < 0 {
			continue
		}
		c := d.world[a.key]
		before := c.peek(0)
		if a.overdraw = true; a.cost > 0 {
			d.set(i, d.world.decide(a, d.now))
		} else {
			d.set(i, before)
		}
		if before.remaining == 0 {
			d.answers[i].allowed, d.denied[i], d.answers[i].retry = false, true, c.end-d.now
		}
	}
}

func (d *ruleDecision) anyDenied(matches func(modelRule) bool) bool {
	for i, a := range d.asks {
		if d.denied[i] && matches(modelRuleOf[a.key]) {
			return true
		}
	}
	return false
}

// quotasDenied reports whether there are quotas, and all of them deny.
func (d *ruleDecision) quotasDenied() bool {
	quotas, denied := 0, 0
	for i, a := range d.asks {
		if modelRuleOf[a.key].quota {
			quotas++
			if d.denied[i] {
				denied++
			}
		}
	}
	return quotas > 0 && quotas == denied
}

// takeEnforced takes from the rules that deny by themselves, all or nothing.
func (d *ruleDecision) takeEnforced() {
	var asks []ask
	var index []int
	for i, a := range d.asks {
		if modelRuleOf[a.key].enforced() && a.cost > 0 {
			asks, index = append(asks, a), append(index, i)
		}
	}
	if len(asks) == 0 {
		return
	}
	for n, answer := range d.world.decideAll(asks, d.now) {
		d.unknown = d.unknown || answer.unknown
		d.set(index[n], answer)
		d.over = d.over || !answer.allowed
	}
}

// undo refunds what a denied request took of quotas, releases its permits and peeks at the rest.
func (d *ruleDecision) undo() {
	for i, a := range d.asks {
		r := modelRuleOf[a.key]
		switch {
		case r.gate && a.cost >= 0:
		case d.answers[i].granted > 0:
			a.cost = -d.answers[i].granted
			d.world.decide(a, d.now)
			d.answers[i] = answer{allowed: true}
		case a.cost < 0 && r.permits:
			d.answers[i], d.done[i] = d.world.decide(a, d.now), true
		}
	}
	for i, a := range d.asks {
		if !d.done[i] || d.answers[i].allowed && d.answers[i].granted == 0 && !modelRuleOf[a.key].gate {
			d.answers[i] = d.world[a.key].peek(0)
		}
	}
}

// settle settles the rules with settle that can deny, all or nothing, then those of the other
// rules with settle that remember the ID, and peeks at the rest.
func (d *ruleDecision) settle() {
	var asks []ask
	var index []int
	for i := range d.asks {
		a := &d.asks[i]
		a.settle = modelRuleOf[a.key].settle
		if a.settle && modelRuleOf[a.key].enforced() {
			asks, index = append(asks, *a), append(index, i)
		}
	}
	if len(asks) > 0 {
		for n, answer := range d.world.decideAll(asks, d.now) {
			d.unknown = d.unknown || answer.unknown
			d.set(index[n], answer)
		}
	}
	if d.unknown {
		return
	}
	for i, a := range d.asks {
		if d.done[i] {
			continue
		}
		answer := d.world[a.key].peek(0)
		if a.settle && d.world[a.key].knows(a.id) {
			answer = d.world.decide(a, d.now)
		}
		d.set(i, answer)
	}
}
