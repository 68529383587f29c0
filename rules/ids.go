package rules

import "slices"

// This file is about rules with an ID: their limits are concurrent, and an entry of each
// descriptor names the permit. That entry is skipped when descriptors are matched.

// setIDKeys collects the keys of the entries that name permits in a domain. No descriptor
// of the domain can match by such an entry, so a node with that key is a mistake.
func (p *parser) setIDKeys(d *Domain) {
	d.top.walk(func(n *node) {
		if n.rule != nil && n.rule.ID != "" && !d.isID(n.rule.ID) {
			d.idKeys = append(d.idKeys, n.rule.ID)
		}
	})
	if d.idKeys == nil {
		return
	}
	d.top.walk(func(n *node) {
		if d.isID(n.key) {
			p.problems.add(n.file, n.line, "key '%s': a rule of this domain has id: %s, so that entry matches nothing: rename one of them", excerpt(n.key), excerpt(n.key))
		}
	})
}

// walk calls visit for the nodes of a list, and for those below them.
func (l *nodeList) walk(visit func(*node)) {
	for _, n := range l.nodes {
		visit(n)
		n.children.walk(visit)
	}
}

func (d *Domain) isID(key string) bool { return slices.Contains(d.idKeys, key) }

// HasID reports whether a descriptor has an entry that names a permit of the domain.
func (d *Domain) HasID(entries []Entry) bool {
	return d != nil && d.idKeys != nil && slices.ContainsFunc(entries, func(e Entry) bool { return d.isID(e.Key) })
}

// withoutIDs returns the entries of a descriptor that do not name a permit.
func (d *Domain) withoutIDs(entries []Entry) []Entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e Entry) bool { return d.isID(e.Key) })
}

// IDOf returns the value of the entry that names the permit of a descriptor under the
// rule, or "".
func (r *Rule) IDOf(entries []Entry) string {
	for _, e := range entries {
		if e.Key == r.ID {
			return e.Value
		}
	}
	return ""
}
