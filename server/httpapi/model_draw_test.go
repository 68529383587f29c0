package httpapi_test

import (
	"maps"
	"slices"
)

var ruleKeys = []string{"hard=x", "plain=x", "quota=x", "other=x", "shadow=x", "gate=x", "slot=x"}

// oneIn reports true in one of n cases.
func (m *modelCase) oneIn(n int) bool { return m.rng.IntN(n) == 0 }

func pick(m *modelCase, from []string) string { return from[m.rng.IntN(len(from))] }

// drawScope draws the few keys and IDs of a case, so that its requests meet.
func (m *modelCase) drawScope() {
	m.windows = m.someOf([]string{"window", "short", "nodebt"}, 2)
	m.limitKeys = m.someOf([]string{"permits", m.windows[0], m.windows[1]}, 2)
	m.ids = m.someOf([]string{"a", "b", "c"}, 2)
	m.settled = pick(m, []string{"hard=x", "quota=x", "shadow=x"})
	m.ruleKeys = append(m.someOf(ruleKeys, 3+m.rng.IntN(2)), m.settled)
	slices.Sort(m.ruleKeys)
	m.ruleKeys = slices.Compact(m.ruleKeys)
}

// someOf returns n of the texts, in any order.
func (m *modelCase) someOf(texts []string, n int) []string {
	texts = slices.Clone(texts)
	m.rng.Shuffle(len(texts), func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
	return texts[:n]
}

// drawCall draws a call.
func (m *modelCase) drawCall() *modelCall {
	c := &modelCall{token: !m.oneIn(8), settle: m.oneIn(6)}
	switch m.rng.IntN(8) {
	case 0:
		m.drawAuth(c)
	case 1, 2:
		c.mode = all
		m.drawAll(c)
	case 3, 4:
		c.mode = each
		for range 1 + m.rng.IntN(3) {
			c.parts = append(c.parts, m.drawPart(c.settle))
		}
	default:
		c.parts = []modelPart{m.drawPart(c.settle)}
	}
	if !c.auth && m.oneIn(25) {
		c.token = true
		m.spoil(&c.parts[m.rng.IntN(len(c.parts))])
	}
	return c
}

// spoil makes a request invalid.
func (m *modelCase) spoil(p *modelPart) {
	p.invalid = `,"max_delay":-1`
	if p.byRules {
		p.invalid = `,"hold":1`
	}
}

func (m *modelCase) drawAuth(c *modelCall) {
	c.auth, c.settle = true, false
	a := ask{cost: m.rng.Int64N(3), key: pick(m, m.windows)}
	byRules := m.oneIn(2)
	if byRules {
		a.key = pick(m, ruleKeys[:6]) // all but permits
	}
	c.parts = []modelPart{{byRules: byRules, asks: []ask{a}}}
}

func (m *modelCase) drawPart(settle bool) modelPart {
	if m.oneIn(2) {
		id := ""
		if settle || m.oneIn(3) {
			id = m.drawID(m.settled)
		}
		return modelPart{byRules: true, id: id, asks: m.drawRuleAsks(1+m.rng.IntN(3), id != "")}
	}
	return modelPart{asks: []ask{m.drawAsk(settle)}}
}

// drawAsk draws a request that carries its limit.
func (m *modelCase) drawAsk(settle bool) ask {
	a := ask{key: pick(m, m.limitKeys), cost: m.rng.Int64N(9) - 4}
	if settle {
		a.key = pick(m, m.windows)
	}
	if m.oneIn(2) || a.key == "permits" || settle {
		a.id = m.drawID(a.key)
	}
	if settle {
		a.cost = max(a.cost, 0)
		return a
	}
	switch {
	case a.cost > 0:
		m.drawOptions(&a)
	case a.cost == 0 && m.oneIn(3):
		a.cost, a.id = resetCost, ""
	}
	return a
}

// drawID draws an ID, often one under which units of the key were charged.
func (m *modelCase) drawID(key string) string {
	c := m.worlds[0][key]
	known := slices.Sorted(maps.Keys(c.ids))
	if c.concurrent {
		known = slices.Sorted(maps.Keys(c.permits))
	}
	if len(known) == 0 || m.oneIn(3) {
		return pick(m, m.ids)
	}
	return pick(m, known)
}

// drawOptions draws how a take is made.
func (m *modelCase) drawOptions(a *ask) {
	switch m.rng.IntN(6) {
	case 0:
		a.atMost = true
	case 1:
		a.overdraw = a.key != "permits"
	case 2:
		a.keepFree = 1 + m.rng.Int64N(2)
	case 3:
		a.hold = 10 * m.rng.Int64N(8)
	case 4:
		a.newID = a.key == "permits"
	}
}

// drawRuleAsks draws descriptors. Under an ID, none has the same key or negative costs, and the
// first has a rule with settle.
func (m *modelCase) drawRuleAsks(n int, underID bool) (asks []ask) {
	keys := m.someOf(m.ruleKeys, len(m.ruleKeys))
	if underID {
		keys = slices.DeleteFunc(keys, func(key string) bool { return key == "gate=x" || key == m.settled })
		keys = append([]string{m.settled}, keys...)
	}
	for _, key := range keys[:min(n, len(keys))] {
		a := ask{key: key, cost: m.rng.Int64N(6) - 1}
		if underID {
			a.cost = max(a.cost, 0)
		}
		if modelRuleOf[key].permits {
			a.id = pick(m, m.ids)
		}
		asks = append(asks, a)
	}
	if again := asks[0]; m.oneIn(6) && (underID || !modelRuleOf[again.key].permits || !m.deniesEarly(asks)) {
		again.cost = 1
		asks = append(asks, again)
	}
	return asks
}

// drawAll draws a list that is decided all or nothing.
func (m *modelCase) drawAll(c *modelCall) {
	n := 1 + m.rng.IntN(3)
	if m.oneIn(2) {
		id := ""
		if c.settle || m.oneIn(3) {
			id = m.drawID(m.settled)
		}
		for _, a := range m.drawRuleAsks(n, id != "") {
			c.parts = append(c.parts, modelPart{byRules: true, id: id, asks: []ask{a}})
		}
		return
	}
	id := ""
	if c.settle || m.oneIn(2) {
		id = m.drawID(m.windows[0])
	}
	for _, key := range m.someOf(append(m.windows, "permits"), min(n, 3)) {
		a := ask{key: key, cost: m.rng.Int64N(5), id: id}
		switch {
		case c.settle && a.key == "permits":
			continue
		case a.key == "permits" && id == "":
			a.id = pick(m, m.ids)
		}
		if !c.settle && a.cost > 0 {
			m.drawOptions(&a)
			a.atMost, a.newID = false, a.newID && id == ""
		}
		c.parts = append(c.parts, modelPart{asks: []ask{a}})
	}
	if len(c.parts) == 0 {
		c.parts = []modelPart{{asks: []ask{{key: m.windows[0], id: id, cost: 1}}}}
	}
}

// deniesEarly reports whether asks may be denied before it is seen that one permit stands on two.
func (m *modelCase) deniesEarly(asks []ask) bool {
	return m.cached || slices.ContainsFunc(asks, func(a ask) bool { return modelRuleOf[a.key].gate || modelRuleOf[a.key].quota })
}
