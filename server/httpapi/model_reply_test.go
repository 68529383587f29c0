package httpapi_test

import (
	"net/http"
	"slices"
)

// outcomes returns the worlds after a call in one world, and the response that is expected.
func (m *modelCase) outcomes(before world, c *modelCall, status int) ([]world, *reply) {
	w := before.clone()
	for _, cell := range w {
		cell.expire(m.now())
	}
	switch {
	case !c.token && c.refunds():
		return []world{w}, &reply{status: http.StatusForbidden}
	case c.invalid():
		return []world{w}, &reply{status: http.StatusBadRequest}
	case len(m.store.faults) > 0 && (status == http.StatusServiceUnavailable || status == http.StatusNotFound && c.mode == each):
		return m.afterFailure(w, c), &reply{status: status}
	}
	return []world{w}, w.reply(c, m.now())
}

// invalid reports whether a call cannot be decided, whatever the state is.
func (c *modelCall) invalid() bool {
	var asks []ask
	for _, p := range c.parts {
		asks = append(asks, p.asks...)
		if p.invalid != "" || p.byRules && conflicts(p.asks, p.id, c.settle) {
			return true
		}
	}
	return c.mode == all && c.parts[0].byRules && conflicts(asks, c.parts[0].id, c.settle)
}

// refunds reports whether a call needs the token.
func (c *modelCall) refunds() bool {
	for _, p := range c.parts {
		for _, a := range p.asks {
			if a.cost < 0 && a.id == "" {
				return true
			}
		}
	}
	return false
}

// reply decides a call.
func (w world) reply(c *modelCall, now int64) *reply {
	r := &reply{status: http.StatusOK, parts: make([]replyPart, len(c.parts))}
	if c.mode == all {
		w.replyAll(c, now, r)
		return r
	}
	for _, i := range c.order() {
		if c.parts[i].byRules && r.status == http.StatusNotFound {
			break // those with a limit are decided in one call, whether or not one of them fails
		}
		if !w.replyPart(&c.parts[i], c.settle, now, &r.parts[i]) {
			r.status = http.StatusNotFound
		}
	}
	if c.mode == single && r.status == http.StatusOK && !r.parts[0].allowed {
		r.status = http.StatusTooManyRequests
	}
	return r
}

// order returns the parts in the order in which they are decided: those by rules last.
func (c *modelCall) order() (index []int) {
	for _, byRules := range []bool{false, true} {
		for i := range c.parts {
			if c.parts[i].byRules == byRules {
				index = append(index, i)
			}
		}
	}
	return index
}

// replyPart decides one request by itself, unless its ID is not remembered.
func (w world) replyPart(p *modelPart, settle bool, now int64, r *replyPart) (known bool) {
	if p.byRules {
		d := w.decideRules(p.asks, p.id, settle, now)
		r.allowed, r.answers = !d.over, d.visible()
		return !d.unknown
	}
	a := p.asks[0]
	a.settle = settle
	answer := w.decide(a, now)
	r.allowed, r.answers = answer.allowed, append(r.answers, answer)
	return !answer.unknown
}

// visible returns the answers as the API shows them: a rule in shadow mode allows.
func (d *ruleDecision) visible() []answer {
	for i, a := range d.asks {
		d.answers[i].allowed = d.answers[i].allowed || modelRuleOf[a.key].shadow
	}
	return d.answers
}

// replyAll decides all requests of a call or none.
func (w world) replyAll(c *modelCall, now int64, r *reply) {
	var asks []ask
	for _, p := range c.parts {
		asks = append(asks, p.asks...)
	}
	for i := range asks {
		asks[i].settle = c.settle && !c.parts[0].byRules
	}
	var answers []answer
	over, unknown := false, false
	if c.parts[0].byRules {
		d := w.decideRules(asks, c.parts[0].id, c.settle, now)
		answers, over, unknown = d.visible(), d.over, d.unknown
	} else {
		answers = w.decideAll(asks, now)
		over = slices.ContainsFunc(answers, func(a answer) bool { return !a.allowed })
		unknown = slices.ContainsFunc(answers, func(a answer) bool { return a.unknown })
	}
	if over {
		r.status = http.StatusTooManyRequests
	}
	if unknown {
		r.status = http.StatusNotFound
	}
	for i, p := range c.parts {
		n := len(p.asks)
		r.parts[i] = replyPart{!slices.ContainsFunc(answers[:n], func(a answer) bool { return !a.allowed }), answers[:n]}
		answers = answers[n:]
	}
}

// afterFailure returns the worlds that a call may leave behind that failed because of the store.
func (m *modelCase) afterFailure(w world, c *modelCall) (all []world) {
	if c.mode != each {
		var asks []ask
		for _, p := range c.parts {
			asks = append(asks, p.asks...)
		}
		return m.leftBehind(w, c.parts[0].byRules, c.parts[0].id, c.settle, asks)
	}
	return m.afterFailureOfEach(w, c)
}

// afterFailureOfEach is afterFailure for a list in which every request is decided by itself. Those
// with a limit are decided first, in one call; if none of them failed, those by rules follow in turn.
func (m *modelCase) afterFailureOfEach(w world, c *modelCall) (worlds []world) {
	limitFailed := slices.ContainsFunc(m.store.faults, func(f storeFault) bool { return modelLimits[f.asks[0].key] != "" })
	worlds = []world{w}
	for _, i := range c.order() {
		p := &c.parts[i]
		switch {
		case limitFailed && p.byRules:
		case limitFailed:
			worlds = fork(worlds, func(w world) { w.replyPart(p, c.settle, m.now(), &replyPart{}) })
		default:
			if p.byRules {
				worlds = append(worlds, m.leftBehind(w.clone(), true, p.id, c.settle, p.asks)...)
			}
			if !w.replyPart(p, c.settle, m.now(), &replyPart{}) && p.byRules {
				return worlds
			}
		}
	}
	return worlds
}

// fork adds a changed copy of each world.
func fork(worlds []world, change func(world)) []world {
	for _, w := range slices.Clone(worlds) {
		changed := w.clone()
		change(changed)
		worlds = append(worlds, changed)
	}
	return worlds
}

// leftBehind returns the worlds after one request that failed.
func (m *modelCase) leftBehind(w world, byRules bool, id string, settle bool, asks []ask) []world {
	worlds := []world{w}
	if byRules {
		worlds = m.leftUnderIDs(worlds, w.underID(asks, id), settle)
	}
	for _, f := range m.store.faults {
		if f.lost {
			worlds = fork(worlds, func(w world) { w.decideAll(f.asks, m.now()) })
		}
		for _, a := range f.asks {
			if a.cost < 0 && a.cost != resetCost && byRules { // the take that it would have undone stays
				a.cost, a.overdraw = -a.cost, true
				worlds = fork(worlds, func(w world) { w.decide(a, m.now()) })
			}
		}
	}
	return worlds
}

// leftUnderIDs returns the worlds with what a request by rules that failed may have done for good:
// what it took under an ID, since a repetition gets the same, what its denial returned of that,
// and its releases and refunds.
func (m *modelCase) leftUnderIDs(worlds []world, asks []ask, settle bool) []world {
	for _, a := range asks {
		r := modelRuleOf[a.key]
		a.settle = settle && r.settle
		if a.id != "" || a.cost < 0 {
			worlds = fork(worlds, func(w world) { w.decide(a, m.now()) })
		}
		if a.id != "" && r.quota && !settle {
			worlds = fork(worlds, func(w world) { w.decide(ask{key: a.key, id: a.id, cost: -w[a.key].ids[a.id].units}, m.now()) })
		}
	}
	return worlds
}
