package rules

import "slices"

// A metricNode is what metrics tell of a node of a rule's path: its key and value as the rule file
// has them or, if byValue is set, those of the request.
type metricNode struct {
	text    string
	byValue bool
}

// maxMetricValue is the longest value that metrics tell.
const maxMetricValue = 128

// setMetric sets how metrics name the descriptors of a rule: detailed means by all values, and
// otherwise those nodes are told by value that say so. Patterns that have one count have one name.
func (r *Rule) setMetric(nodes []*node, detailed bool) {
	metric := make([]metricNode, len(nodes))
	for i, n := range nodes {
		metric[i] = metricNode{text: n.joined, byValue: (detailed || n.valueToMetric) && !n.shared}
	}
	if slices.ContainsFunc(metric, func(n metricNode) bool { return n.byValue }) {
		r.metric = metric
	}
}

// HasMetricValues reports whether metrics tell values of the rule's requests.
func (r *Rule) HasMetricValues() bool { return r.metric != nil }

// AppendMetricPath appends what metrics call a descriptor under one of the domain's rules that
// [Rule.HasMetricValues]: a node for each entry, with a zero byte between them. It reports false if
// a value is too long for that. Control characters become underscores.
func (d *Domain) AppendMetricPath(path []byte, r *Rule, entries []Entry) ([]byte, bool) {
	i := 0
	for _, e := range entries {
		if i == len(r.metric) || d.idKeys != nil && d.isID(e.Key) {
			continue
		}
		if i > 0 {
			path = append(path, 0)
		}
		switch n := r.metric[i]; {
		case !n.byValue:
			path = append(path, n.text...)
		case len(e.Key)+len(e.Value) > maxMetricValue:
			return path, false
		default:
			path = appendPrintable(path, e)
		}
		i++
	}
	return path, true
}

// appendPrintable appends a key and value, joined if there is a value.
func appendPrintable(path []byte, e Entry) []byte {
	start := len(path)
	path = append(path, e.Key...)
	if e.Value != "" {
		path = append(append(path, '_'), e.Value...)
	}
	for i, c := range path[start:] {
		if c < ' ' || c == 0x7f {
			path[start+i] = '_'
		}
	}
	return path
}
