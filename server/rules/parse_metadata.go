package rules

import (
	"math"

	"go.yaml.in/yaml/v3"
)

// readMetadata returns the metadata that a rule passes to Envoy.
func (r *reader) readMetadata(f field) map[string]any {
	if isNull(f.value) {
		return nil
	}
	if f.value.Kind != yaml.MappingNode {
		r.failType(f, "a map")
		return nil
	}
	m := r.freeMap(f.value, 0)
	if len(m) == 0 {
		return nil
	}
	return m
}

// freeMap returns a map of any shape.
func (r *reader) freeMap(n *yaml.Node, depth int) map[string]any {
	m := map[string]any{}
	for _, f := range r.allFields(n, depth, true) {
		m[f.name] = r.freeValue(f.value, f.line, depth+1)
	}
	return m
}

func (r *reader) freeList(n *yaml.Node, depth int) []any {
	l := make([]any, 0, len(n.Content))
	for _, element := range n.Content {
		l = append(l, r.freeValue(r.resolveAlias(element), element.Line, depth+1))
	}
	return l
}

// freeValue returns a node as the Go value that encoding/json would decode, except that
// whole numbers are int64 or uint64.
func (r *reader) freeValue(n *yaml.Node, line, depth int) any {
	if r.tooDeep(line, depth) {
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		return r.freeMap(n, depth)
	case yaml.SequenceNode:
		return r.freeList(n, depth)
	}
	value, ok := freeScalar(n)
	if !ok {
		r.fail(line, "metadata: %s cannot be represented in JSON", r.kindText(n))
	}
	return value
}

func freeScalar(n *yaml.Node) (any, bool) {
	var (
		whole int64
		large uint64
		float float64
		truth bool
		text  string
	)
	switch n.ShortTag() {
	case "!!null":
		return nil, true
	case "!!bool":
		err := n.Decode(&truth)
		return truth, err == nil
	case "!!int":
		if n.Decode(&whole) == nil {
			return whole, true
		}
		err := n.Decode(&large)
		return large, err == nil
	case "!!float":
		err := n.Decode(&float)
		return float, err == nil && !math.IsNaN(float) && !math.IsInf(float, 0)
	}
	err := n.Decode(&text)
	return text, err == nil
}
