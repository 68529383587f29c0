package xds

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/penstock-io/penstock/rules"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
)

// Bounds of what a response may contain, beyond those of rule files.
const (
	maxDescriptors = 1 << 18 // in all resources together
	maxDepth       = 64      // of descriptors within descriptors
)

// A writer writes resources as the rule files that say the same, so that they are parsed and
// checked as all others. Each descriptor is on a line of its own, below the first, so the
// number of a line is that of a descriptor plus one.
type writer struct {
	resource    *resource // which is being written
	text        []byte
	descriptors int
	unknown     []string // fields that were ignored, as MESSAGE.NUMBER
}

// parse returns the rules of a response. If they are wrong, the error is [rules.Errors], by the
// names of the resources. Unknown are fields that were ignored.
func parse(response *discovery.DiscoveryResponse, merge bool) (set *rules.Set, unknown []string, err error) {
	w := &writer{}
	resources, err := w.decodeAll(response)
	if err != nil {
		return nil, nil, err
	}
	var files []rules.File
	total := 0
	for _, r := range resources {
		text, err := w.write(r)
		if total += len(text); err == nil && total > rules.MaxTotalBytes {
			err = fmt.Errorf("rules have more than %d bytes in total", rules.MaxTotalBytes)
		}
		if err != nil {
			return nil, nil, rules.Errors{{File: r.name, Reason: err.Error()}}
		}
		files = append(files, rules.File{Name: r.name, Text: text})
	}
	if merge {
		set, err = rules.ParseMerged(files...)
	} else {
		set, err = rules.Parse(files...)
	}
	return set, w.unknown, located(err, resources)
}

// decodeAll returns the resources, sorted by name: servers send them in any order.
func (w *writer) decodeAll(response *discovery.DiscoveryResponse) ([]*resource, error) {
	if n := len(response.GetResources()); n > rules.MaxFiles {
		return nil, fmt.Errorf("response has %d resources: at most %d are allowed", n, rules.MaxFiles)
	}
	var all []*resource
	for i, any := range response.GetResources() {
		if any.GetTypeUrl() != TypeURL {
			return nil, fmt.Errorf("resource %d has type %.200q: want %s", i, any.GetTypeUrl(), TypeURL)
		}
		r, err := w.decodeResource(any.GetValue())
		if err != nil {
			return nil, fmt.Errorf("resource %d: %w", i, err)
		}
		r.name = cmp.Or(r.name, r.domain)
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(a, b *resource) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.domain, b.domain))
	})
	return all, nil
}

// write returns the rule file of a resource.
func (w *writer) write(r *resource) ([]byte, error) {
	w.resource, w.text = r, nil
	w.add("{domain: %+q", r.domain)
	if err := w.writeDescriptors(r.descriptors, nil); err != nil {
		return nil, err
	}
	w.add("}\n")
	return w.text, nil
}

// add adds to the text. YAML has all the escapes of %+q.
func (w *writer) add(format string, args ...any) { w.text = fmt.Appendf(w.text, format, args...) }

func (w *writer) writeDescriptors(all [][]byte, parent *node) error {
	if len(all) == 0 {
		return nil
	}
	if parent != nil && parent.depth == maxDepth {
		return fmt.Errorf("descriptors are nested more than %d levels deep", maxDepth)
	}
	w.add(", descriptors: [")
	for _, message := range all {
		if err := w.writeDescriptor(message, parent); err != nil {
			return err
		}
		w.add(",") // YAML allows one after the last, too
	}
	w.add("]")
	return nil
}

func (w *writer) writeDescriptor(message []byte, parent *node) error {
	w.descriptors++
	if w.descriptors > maxDescriptors {
		return fmt.Errorf("more than %d descriptors in all resources", maxDescriptors)
	}
	if len(w.text) > rules.MaxFileBytes {
		return fmt.Errorf("resource has more than %d bytes as a rule file", rules.MaxFileBytes)
	}
	d, err := w.decodeDescriptor(message)
	if err != nil {
		return err
	}
	n := newNode(parent, d)
	w.resource.nodes = append(w.resource.nodes, n)
	w.add("\n{key: %+q", d.key)
	if d.value != "" {
		w.add(", value: %+q", d.value)
	}
	w.addFlag("shadow_mode", d.shadow)
	w.addFlag("detailed_metric", d.detailed)
	w.addFlag("quota_mode", d.quota)
	if err := w.writeLimit(d.limit); err != nil {
		return err
	}
	if err := w.writeMetadata(d.metadata); err != nil {
		return err
	}
	err = w.writeDescriptors(d.children, n)
	w.add("}")
	return err
}

func (w *writer) addFlag(name string, on bool) {
	if on {
		w.add(", %s: true", name)
	}
}

func (w *writer) writeLimit(message []byte) error {
	if message == nil {
		return nil
	}
	l, err := w.decodeLimit(message)
	if err != nil {
		return err
	}
	w.add(", rate_limit: {unlimited: %t", l.unlimited)
	if !l.unlimited || l.unit != 0 {
		w.add(", unit: %s", unitNames[min(l.unit, uint64(len(unitNames)-1))])
	}
	if requests := uint32(l.requests); !l.unlimited || requests != 0 { // cut as protobuf does
		w.add(", requests_per_unit: %d", requests)
	}
	if l.name != "" {
		w.add(", name: %+q", l.name)
	}
	w.add(", replaces: [")
	for _, message := range l.replaces {
		var name string
		if err := w.decode("RateLimitReplace", message, fields{1: &name}); err != nil {
			return err
		}
		w.add("{name: %+q}, ", name)
	}
	w.add("]}")
	return nil
}

// unitNames are those of the units, by their numbers, and last that of all others.
var unitNames = []string{"UNKNOWN", "SECOND", "MINUTE", "HOUR", "DAY", "MONTH", "YEAR", "WEEK", "UNKNOWN"}

func (w *writer) writeMetadata(message []byte) error {
	if len(message) == 0 {
		return nil
	}
	const maxBytes = 64 << 10
	var m structpb.Struct
	if len(message) > maxBytes {
		return fmt.Errorf("metadata of a descriptor has %d bytes: at most %d are allowed", len(message), maxBytes)
	}
	if err := (proto.UnmarshalOptions{RecursionLimit: 2 * maxDepth}).Unmarshal(message, &m); err != nil {
		return errMalformed
	}
	fields := m.AsMap()
	if _, err := json.Marshal(fields); err != nil {
		return errors.New("metadata has a number that is not finite")
	}
	w.add(", metadata: ")
	w.addValue(fields)
	return nil
}

func (w *writer) addValue(value any) {
	switch value := value.(type) {
	case string:
		w.add("%+q", value)
	case []any:
		w.add("[")
		for _, element := range value {
			w.addValue(element)
			w.add(", ")
		}
		w.add("]")
	case map[string]any:
		w.add("{")
		for _, name := range slices.Sorted(maps.Keys(value)) {
			w.add("? %+q : ", name) // without the question mark, YAML allows 1024 characters
			w.addValue(value[name])
			w.add(", ")
		}
		w.add("}")
	default: // YAML has the numbers of JSON, and true, false and null
		text, _ := json.Marshal(value)
		w.text = append(w.text, text...)
	}
}

// located adds the descriptor to each error that is about one: the author of the rules does not
// see the lines.
func located(err error, resources []*resource) error {
	all, ok := errors.AsType[rules.Errors](err)
	if !ok {
		return err
	}
	named := make(rules.Errors, len(all))
	for i, e := range all {
		named[i] = e
		for _, r := range resources {
			if n := e.Line - 2; r.name == e.File && n >= 0 && n < len(r.nodes) {
				named[i] = &rules.Error{File: e.File, Line: e.Line, Reason: "descriptor " + r.nodes[n].path() + ": " + e.Reason}
				break
			}
		}
	}
	return named
}

// A node is a descriptor among others.
type node struct {
	parent     *node // nil if there is none
	depth      int
	key, value string
}

func newNode(parent *node, d *descriptor) *node {
	n := &node{parent: parent, key: d.key, value: d.value}
	if parent != nil {
		n.depth = parent.depth + 1
	}
	return n
}

// path returns the keys and values that lead to the descriptor.
func (n *node) path() string {
	name := excerpt(n.key)
	if n.value != "" {
		name += "=" + excerpt(n.value)
	}
	if n.parent == nil {
		return name
	}
	return n.parent.path() + "/" + name
}

// excerpt returns a printable text of limited length.
func excerpt(text string) string {
	const longest = 80
	quoted := strconv.Quote(text[:min(len(text), longest)])
	return quoted[1 : len(quoted)-1]
}
