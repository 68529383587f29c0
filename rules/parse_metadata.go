package rules

import (
	"math"

	"go.yaml.in/yaml/v3"
)

// metadata returns the metadata that a rule passes to Envoy.
func (r *reader) metadata(f field) map[string]any {
	if f.value.Kind != yaml.MappingNode {
		r.failType(f, "a map")
		return nil
	}
	if m := r.freeMap(f.value, 0); len(m) > 0 {
		return m
	}
	return nil
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

// freeScalar returns a scalar. It returns false if JSON has no such value.
func freeScalar(n *yaml.Node) (value any, ok bool) {
	if n.ShortTag() == "!!timestamp" { // JSON has none: it stays as it is written
		return n.Value, true
	}
	err := n.Decode(&value)
	switch v := value.(type) {
	case int:
		return int64(v), err == nil
	case float64:
		return v, err == nil && !math.IsNaN(v) && !math.IsInf(v, 0)
	}
	return value, err == nil
}
