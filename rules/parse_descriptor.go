package rules

import (
	"bytes"
	"cmp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
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

// parseDescriptors adds the descriptors below a draft to a list of nodes.
func (d *draft) parseDescriptors(into *nodeList, at path) {
	if d.children.value == nil || d.tooDeep(d.children.line, at.depth) {
		return
	}
	for _, m := range d.listOfMaps(d.children) {
		d.parseDescriptor(m, into, at)
	}
}

// parseDescriptor adds one descriptor, with its children, to a list of nodes.
func (r *reader) parseDescriptor(m field, into *nodeList, above path) {
	before := r.problems.count()
	d := r.readDescriptor(m, above.depth)
	valid := r.problems.count() == before
	if d.key == "" {
		if valid {
			r.fail(d.line, "descriptor has empty key: add key: NAME")
		}
		return
	}
	n := d.node()
	if first, ok := into.joined[n.joined]; ok {
		r.fail(d.line, "duplicate descriptor composite key '%s', first in %s: for two limits on one key, write the second there as also: LIMIT",
			excerpt(above.composite+n.joined), location(first.file, first.line))
		return
	}
	here := above.child(n)
	switch {
	case d.hasLimit && valid:
		n.rule = d.addRule(string(here.name))
	case d.sharesLimit && valid:
		n.rule, n.sharesLimit = d.addSharingRule(string(here.name), above.rule), true
	}
	here.rule = n.rule
	if d.shareThreshold && n.parts == nil {
		r.fail(d.line, "share_threshold can only be used with wildcard values (containing '*'), but found key '%s'", excerpt(n.joined))
	}
	into.add(n)
	d.parseDescriptors(&n.children, here)
	if n.rule != nil {
		n.rule.setMetric(here.nodes, d.detailedMetric)
	}
}

// readDescriptor reads the fields of a descriptor. Those that Envoy's format lacks are read last,
// when it is known whether there is a limit.
func (r *reader) readDescriptor(m field, depth int) *draft {
	d := r.newDraft(m.line)
	var later []field
	for _, f := range r.readFields(m.value, depth) {
		if kind := r.kinds[f.name]; kind.in&inDescriptor == 0 || kind.ours {
			later = append(later, f)
		} else {
			d.read(f, inDescriptor)
		}
	}
	if i := slices.IndexFunc(later, isLimitText); i >= 0 && !d.hasLimit {
		d.hasLimit, d.limitLine = true, later[i].line
	}
	d.sharesLimit = !d.hasLimit && slices.ContainsFunc(later, isKeepFree)
	for _, f := range later {
		d.read(f, inDescriptor)
		if !d.hasLimit && d.isSet(f.name) && !isKeepFree(f) {
			r.fail(f.line, "'%s' needs a limit: add rate_limit or limit to this descriptor", f.name)
		}
	}
	if !d.hasLimit && !d.sharesLimit && (d.rule.Shadow || d.rule.Quota) {
		r.warn(d.line, "shadow_mode and quota_mode have no effect without a limit")
	}
	return d
}

func isLimitText(f field) bool { return f.name == "limit" && !isNull(f.value) }

func isKeepFree(f field) bool { return f.name == "keep_free" && !isNull(f.value) }

// readRateLimit reads a rate_limit.
func (d *draft) readRateLimit(f field) {
	if f.value.Kind != yaml.MappingNode {
		d.failType(f, "a map")
		return
	}
	d.hasLimit, d.limitLine = true, f.line
	d.readMap(f.value, inRateLimit)
}

// readReplaces reads the names of the rules that a rule replaces.
func (d *draft) readReplaces(f field) {
	for _, m := range d.listOfMaps(f) {
		replaced := d.newDraft(m.line)
		replaced.readMap(m.value, inReplaces)
		if replaced.rule.Alias == "" {
			d.fail(m.line, "should not have an empty replaces entry: add name: NAME")
			continue
		}
		d.rule.Replaces = append(d.rule.Replaces, replaced.rule.Alias)
	}
}

// readPenalty reads the penalty of a rule: {after: 100/1m, for: 10m, up_to: 24h}.
func (d *draft) readPenalty(f field) {
	if f.value.Kind != yaml.MappingNode {
		d.failType(f, "a map such as {after: 100/1m, for: 10m, up_to: 24h}")
		return
	}
	inside := d.newDraft(f.line)
	inside.rule.Penalty = &Penalty{}
	inside.readMap(f.value, inPenalty)
	p := inside.rule.Penalty
	d.rule.Penalty = p
	p.UpTo = cmp.Or(p.UpTo, max(p.For, defaultUpTo))
	switch {
	case p.After == 0 || p.For == 0:
		d.fail(f.line, "penalty: needs after and for, such as {after: 100/1m, for: 10m, up_to: 24h}")
	case p.UpTo < p.For || p.UpTo > maxPenalty:
		d.fail(f.line, "penalty: up_to: want from %s to 366d, got %s", p.For, p.UpTo)
	}
}

// The longest ban of a penalty, and that of one that does not say how long.
const (
	maxPenalty  = 366 * 24 * time.Hour
	defaultUpTo = 24 * time.Hour
)

func (d *draft) node() *node {
	n := &node{
		nodeText: nodeText{joined: d.key, shared: d.shareThreshold, valueToMetric: d.valueToMetric},
		key:      d.key, value: d.value, keyText: string(appendEntry(nil, d.key, d.value)),
		file: d.file, line: d.line,
	}
	if d.value != "" {
		n.joined += "_" + d.value
	}
	if strings.Contains(n.joined, "*") {
		n.parts = bytes.Split([]byte(n.joined), []byte("*"))
	}
	return n
}

// readGlobal reads how a limit holds over all regions: {pool: 12%, age: 10s, on_partition: deny}.
func (d *draft) readGlobal(f field) {
	const form = "a map such as {pool: 12%, age: 10s, on_partition: deny}, or {} for the defaults"
	if f.value.Kind != yaml.MappingNode {
		d.failType(f, form)
		return
	}
	inside := d.newDraft(f.line)
	inside.rule.Global = &Global{}
	inside.readMap(f.value, inGlobal)
	d.rule.Global = inside.rule.Global
	if age := d.rule.Global.Age; age > maxGlobalAge {
		d.fail(f.line, "global: age: want at most %s, got %s", maxGlobalAge, age)
	}
}

// maxGlobalAge is the longest time for which a region takes units in advance.
const maxGlobalAge = time.Hour
