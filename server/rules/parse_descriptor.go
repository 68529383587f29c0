package rules

import (
	"bytes"
	"slices"
	"strings"
)

// A path is the position of a node in its domain.
type path struct {
	composite string // in messages, as Envoy's service prints it: "api.path_/login."
	name      []byte // in rule names: "api/path=\/login"
	depth     int
	nodes     []*node // from the top to this one
	rule      *Rule   // of the node; nil if it has none
}

func rootPath(domain string) path {
	return path{composite: domain + ".", name: appendEscaped(nil, domain, '/')}
}

func (p path) child(n *node) path {
	return path{
		composite: p.composite + n.joined + ".",
		name:      appendName(bytes.Clone(p.name), n.key, n.value),
		depth:     p.depth + 1,
		nodes:     append(slices.Clip(p.nodes), n),
	}
}

// parseDescriptors adds a list of descriptors to a list of nodes.
func (p *parser) parseDescriptors(r *reader, f field, into *nodeList, above path) {
	if r.tooDeep(f.line, above.depth) {
		return
	}
	for _, m := range r.listOfMaps(f) {
		p.parseDescriptor(r, m, into, above)
	}
}

// parseDescriptor adds one descriptor, with its children, to a list of nodes.
func (p *parser) parseDescriptor(r *reader, m field, into *nodeList, above path) {
	before := p.problems.count()
	d := r.readDescriptor(m, above.depth)
	valid := p.problems.count() == before
	if d.key == "" {
		if valid {
			r.fail(d.line, "descriptor has empty key: add key: NAME")
		}
		return
	}
	n := d.node(r.file)
	if first, ok := into.joined[n.joined]; ok {
		r.fail(d.line, "duplicate descriptor composite key '%s', first in %s",
			excerpt(above.composite+n.joined), location(first.file, first.line))
		return
	}
	here := above.child(n)
	switch {
	case d.hasLimit && valid:
		n.rule = p.addRule(r, d, string(here.name))
	case d.sharesLimit && valid:
		n.rule, n.sharesLimit = p.addSharingRule(r, d, string(here.name), above.rule), true
	}
	if here.rule = n.rule; n.rule != nil {
		n.rule.setMetric(here.nodes, d.detailedMetric)
	}
	if d.shareThreshold && n.parts == nil {
		r.fail(d.line, "share_threshold can only be used with wildcard values (containing '*'), but found key '%s'", excerpt(n.joined))
	}
	into.add(n)
	if d.children.value != nil {
		p.parseDescriptors(r, d.children, &n.children, here)
	}
}

// A descriptor holds the settings of one node as a file has them.
type descriptor struct {
	line           int
	key, value     string
	shareThreshold bool
	detailedMetric bool
	valueToMetric  bool
	shadow, quota  bool
	metadata       map[string]any
	children       field
	hasLimit       bool
	sharesLimit    bool // has no limit but a part of the one above to keep free
	limit          limitSpec
}

// readDescriptor reads the fields of a descriptor.
func (r *reader) readDescriptor(m field, depth int) *descriptor {
	d := &descriptor{line: m.line, limit: limitSpec{line: m.line, fields: map[string]field{}}}
	var limitFields []field // read last, when it is known whether there is a limit
	for _, f := range r.readFields(m.value, depth) {
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
			d.hasLimit = r.readRateLimit(f, &d.limit, depth) || d.hasLimit
		case "metadata":
			d.metadata = r.readMetadata(f)
		case "shadow_mode":
			d.shadow = r.flag(f)
		case "quota_mode":
			d.quota = r.flag(f)
		case "detailed_metric":
			d.detailedMetric = r.flag(f)
		case "value_to_metric":
			d.valueToMetric = r.flag(f)
		default:
			limitFields = append(limitFields, f)
		}
	}
	if i := slices.IndexFunc(limitFields, isLimitText); i >= 0 && !d.hasLimit {
		d.hasLimit, d.limit.line = true, limitFields[i].line
	}
	d.sharesLimit = !d.hasLimit && slices.ContainsFunc(limitFields, isKeepFree)
	for _, f := range limitFields {
		r.readBesideLimit(d, f)
	}
	if !d.hasLimit && !d.sharesLimit && (d.shadow || d.quota) {
		r.warn(d.line, "shadow_mode and quota_mode have no effect without a limit")
	}
	return d
}

func isLimitText(f field) bool { return f.name == "limit" && !isNull(f.value) }

func isKeepFree(f field) bool { return f.name == "keep_free" && !isNull(f.value) }

// readBesideLimit reads a field of the limit that is beside rate_limit, or in place of
// it.
func (r *reader) readBesideLimit(d *descriptor, f field) {
	switch {
	case !r.readLimitField(&d.limit, f):
		r.misplaced(f)
	case !d.hasLimit && !isNull(f.value) && !isKeepFree(f):
		r.fail(f.line, "'%s' needs a limit: add rate_limit or limit to this descriptor", f.name)
	}
}

func (d *descriptor) node(file string) *node {
	n := &node{key: d.key, value: d.value, joined: d.key, file: file, line: d.line, shared: d.shareThreshold, valueToMetric: d.valueToMetric}
	n.keyText = string(appendEntry(nil, d.key, d.value))
	if d.value != "" {
		n.joined += "_" + d.value
	}
	if strings.Contains(n.joined, "*") {
		n.parts = bytes.Split([]byte(n.joined), []byte("*"))
	}
	return n
}
