package rules

import (
	"bytes"
	"slices"
	"strings"
)

// A path is the way to a node: as messages have it, which is Envoy's way, and as
// rules are named.
type path struct {
	composite string // such as "api.path_/login."
	name      []byte // such as "api/path=\/login"
	depth     int
}

func rootPath(domain string) path {
	return path{composite: domain + ".", name: appendEscaped(nil, domain, '/')}
}

func (p path) to(n *node) path {
	return path{
		composite: p.composite + n.joined + ".",
		name:      appendName(bytes.Clone(p.name), n.key, n.value),
		depth:     p.depth + 1,
	}
}

// descriptors reads a list of descriptors into a list of nodes.
func (p *parser) descriptors(r *reader, f field, into *list, above path) {
	if r.tooDeep(f.line, above.depth) {
		return
	}
	for _, m := range r.listOfMaps(f) {
		p.descriptor(r, m, into, above)
	}
}

// descriptor reads one descriptor, and what is below it.
func (p *parser) descriptor(r *reader, m field, into *list, above path) {
	before := p.problems.count()
	d := r.descriptor(m, above.depth)
	sound := p.problems.count() == before
	if d.key == "" {
		if sound {
			r.fail(d.line, "descriptor has empty key")
		}
		return
	}
	n := d.node(r.file)
	if _, ok := into.joined[n.joined]; ok {
		r.fail(d.line, "duplicate descriptor composite key '%s'", shown(above.composite+n.joined))
		return
	}
	here := above.to(n)
	if d.hasLimit && sound {
		n.rule = p.rule(r, d, string(here.name))
	}
	if d.shareThreshold && n.parts == nil {
		r.fail(d.line, "share_threshold can only be used with wildcard values (containing '*'), but found key '%s'", shown(n.joined))
	}
	into.add(n)
	if d.children.value != nil {
		p.descriptors(r, d.children, &n.below, here)
	}
}

// A descriptor is what a file says about one node.
type descriptor struct {
	line           int
	key, value     string
	shareThreshold bool
	shadow, quota  bool
	metadata       map[string]any
	children       field
	hasLimit       bool
	limit          limitSpec
}

// descriptor reads the fields of one.
func (r *reader) descriptor(m field, depth int) *descriptor {
	d := &descriptor{line: m.line, limit: limitSpec{line: m.line, said: map[string]field{}}}
	var beside []field // what is about a limit, if there is one
	for _, f := range r.fields(m.value, depth) {
		switch f.name {
		case "key":
			d.key = r.text(f)
		case "value":
			d.value = r.text(f)
		case "descriptors":
			d.children = f
		case "share_threshold":
			d.shareThreshold = r.flag(f)
		case "rate_limit":
			d.hasLimit = r.rateLimit(f, &d.limit, depth) || d.hasLimit
		case "metadata":
			d.metadata = r.metadata(f)
		case "shadow_mode":
			d.shadow = r.flag(f)
		case "quota_mode":
			d.quota = r.flag(f)
		case "detailed_metric", "value_to_metric":
			if r.flag(f) {
				r.warn(f.line, "'%s' has no effect: metrics are by rule, and never by value", f.name)
			}
		default:
			beside = append(beside, f)
		}
	}
	if i := slices.IndexFunc(beside, isLimitText); i >= 0 && !d.hasLimit {
		d.hasLimit, d.limit.line = true, beside[i].line
	}
	for _, f := range beside {
		r.besideLimit(d, f)
	}
	if !d.hasLimit && (d.shadow || d.quota) {
		r.warn(d.line, "shadow_mode and quota_mode have no effect without a limit")
	}
	return d
}

func isLimitText(f field) bool { return f.name == "limit" && !isNull(f.value) }

// besideLimit reads a field of the limit that stands beside rate_limit, or in
// place of it.
func (r *reader) besideLimit(d *descriptor, f field) {
	switch {
	case !r.limitField(&d.limit, f):
		r.stray(f)
	case !d.hasLimit && !isNull(f.value):
		r.fail(f.line, "'%s' has nothing to apply to: there is neither a rate_limit nor a limit", f.name)
	}
}

func (d *descriptor) node(file string) *node {
	n := &node{key: d.key, value: d.value, joined: d.key, file: file, line: d.line, shared: d.shareThreshold}
	if d.value != "" {
		n.joined += "_" + d.value
	}
	if strings.Contains(n.joined, "*") {
		n.parts = bytes.Split([]byte(n.joined), []byte("*"))
	}
	return n
}
