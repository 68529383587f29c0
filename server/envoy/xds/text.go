package xds

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/penstock-io/penstock/server/rules"
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
		if r.name == "" {
			r.name = r.domain
		}
		all = append(all, r)
	}
	slices.SortStableFunc(all, func(a, b *resource) int {
		return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.domain, b.domain))
	})
	return all, nil
}

// write returns the rule file of a resource.
func (w *writer) write(r *resource) ([]byte, error) {
	w.text = nil
	w.add("{domain: ")
	w.addText(r.domain)
	if err := w.writeDescriptors(r.descriptors, 0); err != nil {
		return nil, err
	}
	w.add("}\n")
	return w.text, nil
}

func (w *writer) add(text string) { w.text = append(w.text, text...) }

// addText adds a text in quotes. YAML has all the escapes that Go has.
func (w *writer) addText(text string) { w.text = strconv.AppendQuoteToASCII(w.text, text) }

func (w *writer) writeDescriptors(all [][]byte, depth int) error {
	if len(all) == 0 {
		return nil
	}
	if depth > maxDepth {
		return fmt.Errorf("descriptors are nested more than %d levels deep", maxDepth)
	}
	w.add(", descriptors: [")
	for i, message := range all {
		if i > 0 {
			w.add(",")
		}
		if err := w.writeDescriptor(message, depth); err != nil {
			return err
		}
	}
	w.add("]")
	return nil
}

func (w *writer) writeDescriptor(message []byte, depth int) error {
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
	w.add("\n{key: ")
	w.addText(d.key)
	if d.value != "" {
		w.add(", value: ")
		w.addText(d.value)
	}
	w.addFlag("shadow_mode", d.shadow)
	w.addFlag("detailed_metric", d.detailed)
	w.addFlag("quota_mode", d.quota)
	if d.limit != nil {
		w.writeLimit(d.limit)
	}
	if err := w.writeMetadata(d.metadata); err != nil {
		return err
	}
	err = w.writeDescriptors(d.children, depth+1)
	w.add("}")
	return err
}

func (w *writer) addFlag(name string, on bool) {
	if on {
		w.add(", " + name + ": true")
	}
}

func (w *writer) writeLimit(l *rateLimit) {
	w.add(", rate_limit: {unlimited: " + strconv.FormatBool(l.unlimited))
	if !l.unlimited || l.unit != 0 {
		unit := "UNKNOWN"
		if l.unit < uint64(len(unitNames)) {
			unit = unitNames[l.unit]
		}
		w.add(", unit: " + unit)
	}
	if !l.unlimited || l.requests != 0 {
		w.add(", requests_per_unit: " + strconv.FormatUint(uint64(l.requests), 10))
	}
	if l.name != "" {
		w.add(", name: ")
		w.addText(l.name)
	}
	if len(l.replaces) > 0 {
		w.add(", replaces: [")
		for i, name := range l.replaces {
			w.add(strings.Repeat(", ", min(i, 1)) + "{name: ")
			w.addText(name)
			w.add("}")
		}
		w.add("]")
	}
	w.add("}")
}

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
	w.add(", metadata: ")
	return w.writeValue(structpb.NewStructValue(&m))
}

func (w *writer) writeValue(v *structpb.Value) error {
	switch v := v.GetKind().(type) {
	case *structpb.Value_BoolValue:
		w.add(strconv.FormatBool(v.BoolValue))
	case *structpb.Value_StringValue:
		w.addText(v.StringValue)
	case *structpb.Value_NumberValue:
		return w.writeNumber(v.NumberValue)
	case *structpb.Value_StructValue:
		return w.writeMap(v.StructValue.GetFields())
	case *structpb.Value_ListValue:
		return w.writeList(v.ListValue.GetValues())
	default:
		w.add("null")
	}
	return nil
}

// writeNumber writes whole numbers as such, as far as they are exact.
func (w *writer) writeNumber(n float64) error {
	switch {
	case math.IsNaN(n) || math.IsInf(n, 0):
		return errors.New("metadata has a number that is not finite")
	case n == math.Trunc(n) && math.Abs(n) < 1<<53:
		w.text = strconv.AppendInt(w.text, int64(n), 10)
	default:
		w.text = strconv.AppendFloat(w.text, n, 'e', -1, 64)
	}
	return nil
}

func (w *writer) writeMap(fields map[string]*structpb.Value) error {
	w.add("{")
	for i, name := range slices.Sorted(maps.Keys(fields)) {
		w.add(strings.Repeat(", ", min(i, 1)))
		w.add("? ") // without it, YAML allows 1024 characters
		w.addText(name)
		w.add(" : ")
		if err := w.writeValue(fields[name]); err != nil {
			return err
		}
	}
	w.add("}")
	return nil
}

func (w *writer) writeList(values []*structpb.Value) error {
	w.add("[")
	for i, v := range values {
		w.add(strings.Repeat(", ", min(i, 1)))
		if err := w.writeValue(v); err != nil {
			return err
		}
	}
	w.add("]")
	return nil
}

// located adds the descriptor to each error that is about one: the author of the rules does not
// see the lines.
func located(err error, resources []*resource) error {
	var all rules.Errors
	if !errors.As(err, &all) {
		return err
	}
	named := make(rules.Errors, len(all))
	for i, e := range all {
		named[i] = e
		for _, r := range resources {
			if path := r.path(e.Line - 1); r.name == e.File && path != "" {
				named[i] = &rules.Error{File: e.File, Line: e.Line, Reason: "descriptor " + path + ": " + e.Reason}
				break
			}
		}
	}
	return named
}

// path returns the keys and values that lead to a descriptor, whose number counts from 1, or "".
func (r *resource) path(number int) string {
	if number < 1 {
		return ""
	}
	path, _ := pathIn(r.descriptors, &number)
	return path
}

// pathIn counts down to the descriptor.
func pathIn(all [][]byte, number *int) (path string, found bool) {
	for _, message := range all {
		d, err := (&writer{}).decodeDescriptor(message)
		if err != nil {
			return "", false
		}
		name := excerpt(d.key)
		if d.value != "" {
			name += "=" + excerpt(d.value)
		}
		if *number--; *number == 0 {
			return name, true
		}
		if below, found := pathIn(d.children, number); found {
			return name + "/" + below, true
		}
	}
	return "", false
}

// excerpt returns a printable text of limited length.
func excerpt(text string) string {
	const longest = 80
	quoted := strconv.Quote(text[:min(len(text), longest)])
	return quoted[1 : len(quoted)-1]
}
