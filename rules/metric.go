package rules

import "slices"

// maxMetricValue is the longest entry that metrics tell.
const maxMetricValue = 128

// A metric is how the statistics of envoyproxy/ratelimit name the descriptors of a rule, if not by the rule
// alone: with all values of a request, or with those of some nodes. They name nodes with a pattern by the key of
// the request, which can differ from that of the node, as both are joined with their values to be compared.
type metric struct {
	nodes       []nodeText
	detailed    bool
	isLeaf      bool
	emptyValues bool // entries without a value have an empty one, not none
}

// setMetric sets how metrics name the descriptors of a rule.
func (r *Rule) setMetric(nodes []*node, detailed bool) {
	if !detailed && !slices.ContainsFunc(nodes, func(n *node) bool { return n.valueToMetric || n.parts != nil }) {
		return
	}
	m := &metric{detailed: detailed, isLeaf: len(nodes[len(nodes)-1].children.nodes) == 0, emptyValues: detailed}
	for _, n := range nodes {
		m.nodes = append(m.nodes, n.nodeText)
		m.emptyValues = m.emptyValues && !n.shared
	}
	r.metric = m
}

// HasMetricValues reports whether metrics can name requests otherwise than by the rule.
func (r *Rule) HasMetricValues() bool { return r.metric != nil }

// AppendMetricPath appends what metrics call a descriptor under one of the domain's rules that
// [Rule.HasMetricValues]: a node for each entry, with a zero byte between them. It reports false if
// it is called by the rule, as if an entry is too long. Control characters become underscores.
func (d *Domain) AppendMetricPath(path []byte, r *Rule, entries []Entry) (_ []byte, differs bool) {
	i := 0
	for _, e := range entries {
		if i == len(r.metric.nodes) || d.idKeys != nil && d.isID(e.Key) {
			continue
		}
		n := &r.metric.nodes[i]
		path = appendSeparated(path, i)
		start := len(path)
		path = appendPrintable(path, e.Key, n.metricValue(e, r.metric.detailed), r.metric.emptyValues)
		if string(path[start:]) != n.joined {
			differs = true
			if len(path)-start > maxMetricValue {
				return path, false
			}
		}
		i++
	}
	return path, differs
}

// RenamesMetric reports whether envoyproxy/ratelimit names a descriptor otherwise than by its rule. Then it
// makes another limit of it, which lacks the metadata of the rule.
func (d *Domain) RenamesMetric(r *Rule, entries []Entry) bool {
	m := r.metric
	switch {
	case m == nil:
		return false
	case m.detailed:
		return m.isLeaf
	}
	_, differs := d.AppendMetricPath(nil, r, entries)
	return differs
}

// AppendOwnMetricPath appends what metrics call a descriptor with its own limit, as AppendMetricPath does.
func AppendOwnMetricPath(path []byte, entries []Entry) (_ []byte, differs bool) {
	for i, e := range entries {
		if len(e.Key)+len(e.Value) > maxMetricValue {
			return path, false
		}
		path = appendPrintable(appendSeparated(path, i), e.Key, e.Value, false)
	}
	return path, true
}

// metricValue returns what metrics tell of the value of an entry.
func (n *nodeText) metricValue(e Entry, detailed bool) string {
	exact := n.isJoined(e)
	switch {
	case n.parts != nil && !exact && (n.shared || !detailed && !n.valueToMetric):
		return n.pattern(e.Key)
	case exact || detailed || n.valueToMetric:
		return e.Value
	}
	return ""
}

func appendSeparated(path []byte, i int) []byte {
	if i > 0 {
		path = append(path, 0)
	}
	return path
}

// appendPrintable appends a key and a value, joined if there is a value or it may be empty.
func appendPrintable(path []byte, key, value string, empty bool) []byte {
	start := len(path)
	path = append(path, key...)
	if value != "" || empty {
		path = append(append(path, '_'), value...)
	}
	for i, c := range path[start:] {
		if c < ' ' || c == 0x7f {
			path[start+i] = '_'
		}
	}
	return path
}
