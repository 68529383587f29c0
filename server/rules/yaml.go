package rules

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// What a file may ask for. Aliases can make a few lines stand for billions of
// nodes, so it is the nodes that are walked through that count.
const (
	maxNodes = 1 << 20 // in all files together
	maxDepth = 64      // of descriptors within descriptors, and so on
)

// A reader takes the YAML of one file apart.
type reader struct {
	file     string
	problems *problems
	warnings *problems
	nodes    *int // walked through so far
}

// A field is one key of a YAML map and what stands under it.
type field struct {
	name   string
	line   int // of the key
	value  *yaml.Node
	merged bool // it came from another map, by <<
}

func (r *reader) fail(line int, format string, args ...any) {
	r.problems.add(r.file, line, format, args...)
}

func (r *reader) warn(line int, format string, args ...any) {
	r.warnings.add(r.file, line, format, args...)
}

// document returns what the file holds, or nil if that is nothing. A second
// document is refused: who writes one expects it to count.
func (r *reader) document(text []byte) *yaml.Node {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var docs [2]yaml.Node
	for i := range docs {
		err := decoder.Decode(&docs[i])
		if errors.Is(err, io.EOF) {
			break
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
		r.fail(second.Content[0].Line, "error loading config file: a second document; put each domain into a file of its own")
	}
	return docs[0].Content[0]
}

// failYAML reports what the YAML parser says. The line that the parser names is
// often that of the beginning of what it did not understand, pages above; so unless
// the file is huge, the line is searched for.
func (r *reader) failYAML(text []byte, err error) {
	const huge = 256 << 10
	line, complaint := splitComplaint(err)
	if len(text) <= huge {
		line = complaintLine(text, complaint)
	}
	r.fail(line, "error loading config file: yaml: line %d: %s", line, complaint)
}

var yamlPlace = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// splitComplaint returns where the parser sees a problem, and which. It names no
// line when it is the first.
func splitComplaint(err error) (line int, complaint string) {
	message := err.Error()
	place := yamlPlace.FindStringSubmatch(message)
	if place == nil {
		return 1, message
	}
	line, _ = strconv.Atoi(place[1])
	return max(1, line), message[len(place[0]):]
}

// complaintLine returns the first line with which the parser has that complaint.
func complaintLine(text []byte, complaint string) int {
	var ends []int
	end := 0
	for line := range bytes.Lines(text) {
		end += len(line)
		ends = append(ends, end)
	}
	return 1 + sort.Search(len(ends)-1, func(i int) bool {
		decoder := yaml.NewDecoder(bytes.NewReader(text[:ends[i]]))
		for {
			var n yaml.Node
			if err := decoder.Decode(&n); err != nil {
				_, other := splitComplaint(err)
				return other == complaint
			}
		}
	})
}

var nothing = &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null"}

// visit returns the node that a node stands for, and nothing when too many were
// visited.
func (r *reader) visit(n *yaml.Node) *yaml.Node {
	*r.nodes++
	if *r.nodes == maxNodes {
		r.fail(n.Line, "error loading config file: more than %d YAML nodes in all files, with aliases expanded", maxNodes)
	}
	if *r.nodes >= maxNodes {
		return nothing
	}
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

// tooDeep reports a node that is nested too deeply, perhaps within itself.
func (r *reader) tooDeep(line, depth int) bool {
	if depth <= maxDepth {
		return false
	}
	r.fail(line, "error loading config file: nested more than %d levels deep", maxDepth)
	return true
}

// fields returns the fields of a map, with those merged into it.
func (r *reader) fields(n *yaml.Node, depth int) []field { return r.allFields(n, depth, false) }

// allFields returns the fields of a map; anyKey says whether their names may be
// numbers and the like. Where two have one name the later counts, as in the YAML
// library that these files were first written for; but within one map nobody can
// have meant that.
func (r *reader) allFields(n *yaml.Node, depth int, anyKey bool) []field {
	if r.tooDeep(n.Line, depth) {
		return nil
	}
	fs := fieldList{places: map[string]int{}}
	for i := 0; i+1 < len(n.Content); i += 2 {
		line := n.Content[i].Line
		key, value := r.visit(n.Content[i]), r.visit(n.Content[i+1])
		if key.ShortTag() == "!!merge" {
			r.merge(&fs, field{line: line, value: value}, depth+1, anyKey)
			continue
		}
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" && !anyKey {
			r.fail(line, "config error, key is not of type string: %s", r.goText(key))
			continue
		}
		if before, ok := fs.add(field{name: key.Value, line: line, value: value}); !ok {
			r.fail(line, "error loading config file: '%s' is said twice, first on line %d", shown(key.Value), before.line)
		}
	}
	return fs.list
}

// merge adds the fields of the maps that << names; the first of several counts.
func (r *reader) merge(fs *fieldList, f field, depth int, anyKey bool) {
	maps := []*yaml.Node{f.value}
	if f.value.Kind == yaml.SequenceNode {
		maps = slices.Clone(f.value.Content)
		slices.Reverse(maps)
	}
	for _, n := range maps {
		m := r.visit(n)
		if m.Kind != yaml.MappingNode {
			r.fail(f.line, "error loading config file: << wants a map, or a list of maps")
			return
		}
		for _, f := range r.allFields(m, depth, anyKey) {
			f.merged = true
			fs.add(f)
		}
	}
}

// A fieldList is the fields of a map, each name once.
type fieldList struct {
	list   []field
	places map[string]int // in list, by name
}

// add adds a field, or lets it stand in for the one of its name. If neither came
// by a merge it returns the earlier one, and false.
func (fs *fieldList) add(f field) (field, bool) {
	i, ok := fs.places[f.name]
	if !ok {
		fs.places[f.name] = len(fs.list)
		fs.list = append(fs.list, f)
		return f, true
	}
	before := fs.list[i]
	fs.list[i] = f
	return before, f.merged || before.merged
}

// listOfMaps returns the maps of a list, with the line that each stands on.
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
		value := r.visit(n)
		if value.Kind != yaml.MappingNode {
			r.fail(n.Line, "config error, yaml file contains list of type other than map: %s", r.goText(value))
			continue
		}
		maps = append(maps, field{name: f.name, line: n.Line, value: value})
	}
	return maps
}

// text returns what a field says, numbers and the like as they are written.
func (r *reader) text(f field) (s string) {
	switch {
	case f.value.Kind != yaml.ScalarNode:
		r.failType(f, "text")
	case f.value.ShortTag() == "!!float":
		r.failLeaf(f)
	case f.value.Decode(&s) != nil || strings.ToValidUTF8(s, "") != s:
		r.failType(f, "text")
	}
	return s
}

// flag returns whether a field says yes, in any of the ways of YAML 1.1.
func (r *reader) flag(f field) bool {
	n := f.value
	plain := n.Kind == yaml.ScalarNode && n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0
	if isNull(n) {
		return false
	}
	if n.ShortTag() == "!!float" {
		r.failLeaf(f)
		return false
	}
	if plain {
		switch strings.ToLower(n.Value) {
		case "true", "yes", "on", "y":
			return true
		case "false", "no", "off", "n":
			return false
		}
	}
	r.failType(f, "true or false")
	return false
}

// requests returns the number of requests that a field says.
func (r *reader) requests(f field) (n uint32) {
	switch {
	case isNull(f.value):
	case f.value.ShortTag() == "!!float":
		r.failLeaf(f)
	case f.value.ShortTag() != "!!int" || f.value.Decode(&n) != nil:
		r.failType(f, "a whole number from 0 to 4294967295")
	}
	return n
}

// failLeaf reports a number that is not whole, which has no place in the files of
// Envoy's service.
func (r *reader) failLeaf(f field) {
	r.fail(f.line, "error checking config: %s: %s is no whole number; if it is text, it wants quotes",
		f.name, shown(f.value.Value))
}

func (r *reader) failType(f field, want string) {
	r.fail(f.line, "error loading config file: %s: want %s, and not %s", f.name, want, r.kindText(f.value))
}

func (r *reader) kindText(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	if isNull(n) {
		return "null"
	}
	return "'" + shown(n.Value) + "'"
}

// goText returns a node as Go prints it, which is how Envoy's service repeats
// what it does not understand.
func (r *reader) goText(n *yaml.Node) string {
	if isNull(n) {
		return "<nil>"
	}
	if n.Kind != yaml.SequenceNode {
		return strings.Trim(r.kindText(n), "'")
	}
	var words []string
	for _, element := range n.Content[:min(len(n.Content), 10)] {
		words = append(words, strings.Trim(r.kindText(r.visit(element)), "'"))
	}
	return "[" + strings.Join(words, " ") + "]"
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }
