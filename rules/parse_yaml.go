package rules

import (
	"bytes"
	"errors"
	"io"
	"slices"

	"github.com/penstock-io/penstock/internal/yamlerror"
	"go.yaml.in/yaml/v3"
)

// Limits on what is read. Aliases can expand a few lines to billions of nodes, so
// nodes are counted as they are read.
const (
	maxNodes = 1 << 21 // in all files together; a descriptor has about ten
	maxDepth = 64      // of descriptors within descriptors, and so on
)

// A reader reads the YAML of one file.
type reader struct {
	*parser
	file string
}

// A field is one key of a YAML map, with its value.
type field struct {
	name   string
	line   int // of the key
	value  *yaml.Node
	merged bool // it comes from another map, by <<
}

func (r *reader) fail(line int, format string, args ...any) {
	r.problems.add(r.file, line, format, args...)
}

func (r *reader) warn(line int, format string, args ...any) {
	r.warnings.add(r.file, line, format, args...)
}

// duplicate reports what envoyproxy/ratelimit ignores without a word, which would surprise its author.
func (r *reader) duplicate(line int, format string, args ...any) {
	if r.allowDuplicates {
		r.warn(line, format, args...)
		return
	}
	r.fail(line, format, args...)
}

// readDocument returns the root node of a file, or nil if the file is empty.
func (r *reader) readDocument(text []byte) *yaml.Node {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var docs [2]yaml.Node
	for i := range docs {
		err := decoder.Decode(&docs[i])
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil && i > 0 && r.allowDuplicates {
			line, _ := yamlerror.Locate(text, err)
			r.warn(line, "second YAML document in the file, which is not valid: only the first is read")
			return docs[0].Content[0]
		}
		if err != nil {
			r.failYAML(text, err)
			return nil
		}
	}
	if docs[0].IsZero() {
		return nil
	}
	if second := docs[1]; !second.IsZero() && !isNull(second.Content[0]) {
		r.duplicate(second.Content[0].Line, "second YAML document in the file: put each domain into its own file")
	}
	return docs[0].Content[0]
}

// failYAML reports a syntax error.
func (r *reader) failYAML(text []byte, err error) {
	line, message := yamlerror.Locate(text, err)
	r.fail(line, "yaml: %s", message)
}

var nullNode = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}

// resolveAlias returns a node, or the one it is an alias of; or the null node when too
// many nodes have been read. Every node is read through it.
func (r *reader) resolveAlias(n *yaml.Node) *yaml.Node {
	r.nodes++
	if r.nodes == maxNodes {
		r.fail(n.Line, "more than %d YAML nodes in all files, with aliases expanded", maxNodes)
	}
	if r.nodes >= maxNodes {
		return nullNode
	}
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// tooDeep reports a node that is nested too deeply, possibly within itself.
func (r *reader) tooDeep(line, depth int) bool {
	if depth <= maxDepth {
		return false
	}
	r.fail(line, "nested more than %d levels deep", maxDepth)
	return true
}

// readFields returns the fields of a map, with those merged into it.
func (r *reader) readFields(n *yaml.Node, depth int) []field { return r.allFields(n, depth, false) }

// allFields returns the fields of a map; with anyKey, their names need not be strings.
// If two have one name the later counts, as in the YAML library of Envoy's service;
// but a duplicate within one map is reported.
func (r *reader) allFields(n *yaml.Node, depth int, anyKey bool) []field {
	if r.tooDeep(n.Line, depth) {
		return nil
	}
	fs := fieldList{list: make([]field, 0, len(n.Content)/2)}
	for i := 0; i+1 < len(n.Content); i += 2 {
		line := n.Content[i].Line
		key, value := r.resolveAlias(n.Content[i]), r.resolveAlias(n.Content[i+1])
		if key.ShortTag() == "!!merge" {
			r.merge(&fs, field{line: line, value: value}, depth+1, anyKey)
			continue
		}
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" && !anyKey {
			r.fail(line, "map key must be text, got %s: put it in quotes", r.kindText(key))
			continue
		}
		if before, ok := fs.add(field{name: key.Value, line: line, value: value}); !ok {
			r.duplicate(line, "duplicate key '%s', first on line %d", excerpt(key.Value), before.line)
			if r.allowDuplicates && !anyKey {
				fs.add(field{name: key.Value, line: line, value: joined(before.value, value)})
			}
		}
	}
	return fs.list
}

// joined returns the second of two values of one name, with the fields of the first that it lacks if both are
// maps: envoyproxy/ratelimit reads the second into what it has read of the first.
func joined(first, second *yaml.Node) *yaml.Node {
	if first.Kind != yaml.MappingNode || second.Kind != yaml.MappingNode {
		return second
	}
	both := *second
	both.Content = slices.Concat([]*yaml.Node{{Kind: yaml.ScalarNode, Tag: "!!merge", Value: "<<", Line: first.Line}, first}, second.Content)
	return &both
}

// merge adds the fields of the maps that << names. If several have a field, the first
// counts.
func (r *reader) merge(fs *fieldList, f field, depth int, anyKey bool) {
	maps := []*yaml.Node{f.value}
	if f.value.Kind == yaml.SequenceNode {
		maps = slices.Clone(f.value.Content)
		slices.Reverse(maps)
	}
	for _, n := range maps {
		m := r.resolveAlias(n)
		if m.Kind != yaml.MappingNode {
			r.fail(f.line, "<<: want a map or a list of maps")
			return
		}
		for _, f := range r.allFields(m, depth, anyKey) {
			f.merged = true
			fs.add(f)
		}
	}
}

// A fieldList holds the fields of a map, each name once.
type fieldList struct {
	list    []field
	indexes map[string]int // into list, by name; nil while the list is short
}

// maxScanned is the length up to which a list is searched from one end, which takes less
// time than a map: the files with many nodes have few fields in each.
const maxScanned = 16

// add adds a field, or replaces the one of that name. If it replaces one and neither
// was merged, it returns the earlier one and false.
func (fs *fieldList) add(f field) (field, bool) {
	if i := fs.index(f.name); i >= 0 {
		before := fs.list[i]
		fs.list[i] = f
		return before, f.merged || before.merged
	}
	if fs.indexes != nil {
		fs.indexes[f.name] = len(fs.list)
	}
	fs.list = append(fs.list, f)
	return f, true
}

// index returns the index of the field of that name, or -1.
func (fs *fieldList) index(name string) int {
	if len(fs.list) <= maxScanned {
		return slices.IndexFunc(fs.list, func(f field) bool { return f.name == name })
	}
	if fs.indexes == nil {
		fs.indexes = make(map[string]int, 2*len(fs.list))
		for i, f := range fs.list {
			fs.indexes[f.name] = i
		}
	}
	if i, ok := fs.indexes[name]; ok {
		return i
	}
	return -1
}

// listOfMaps returns the maps in a list, with the line of each.
func (r *reader) listOfMaps(f field) []field {
	if isNull(f.value) {
		return nil
	}
	if f.value.Kind != yaml.SequenceNode {
		r.failType(f, "a list")
		return nil
	}
	var maps []field
	for _, n := range f.value.Content {
		value := r.resolveAlias(n)
		if value.Kind != yaml.MappingNode {
			r.fail(n.Line, "%s: each element must be a map, got %s", f.name, r.kindText(value))
			continue
		}
		maps = append(maps, field{name: f.name, line: n.Line, value: value})
	}
	return maps
}
