package rls

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// newMetadata returns the dynamic metadata for Envoy's later filters: the request and
// the metadata of the rules that allowed it. If a domain is given, it is as envoyproxy/ratelimit has it.
func newMetadata(q *Request, v *engine.Result, domain *rules.Domain) *structpb.Struct {
	fields := map[string]*structpb.Value{
		"domain":      stringValue(q.Domain),
		"descriptors": newList(q.Descriptors, descriptorMetadata),
	}
	if domain == nil {
		addSources(fields["descriptors"].GetListValue().GetValues(), v)
	}
	if q.HitsAddend != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(q.HitsAddend))
	}
	allowed := map[string]any{}
	for i := range v.Statuses {
		st := &v.Statuses[i]
		if lost := domain != nil && st.Rule != nil && domain.RenamesMetric(st.Rule, q.Descriptors[i].Entries); lost {
			continue
		}
		if st.Rule != nil && !st.Rule.Unlimited && !st.OverLimit {
			merge(allowed, st.Rule.Metadata)
		}
	}
	if len(allowed) > 0 {
		fields["metadata"] = newValue(allowed)
	}
	return &structpb.Struct{Fields: fields}
}

func descriptorMetadata(d Descriptor) *structpb.Value {
	fields := map[string]*structpb.Value{
		"entries": newList(d.Entries, func(e rules.Entry) *structpb.Value { return stringValue(e.Key + "=" + e.Value) }),
	}
	if d.HasLimit {
		fields["limit"] = stringValue(d.Limit.String())
	}
	if d.HasHitsAddend {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(d.HitsAddend))
	}
	return structpb.NewStructValue(&structpb.Struct{Fields: fields})
}

// addSources adds the source of each decision that did not come from the store.
func addSources(descriptors []*structpb.Value, v *engine.Result) {
	for i := range v.Statuses {
		if source := v.Statuses[i].Decision.Source; source != penstock.SourceStore {
			descriptors[i].GetStructValue().Fields["source"] = stringValue(source.String())
		}
	}
}

// String returns the override in protobuf's text form, which lacks a zero.
func (o Override) String() string {
	var b strings.Builder
	if o.RequestsPerUnit > 0 {
		fmt.Fprintf(&b, "requests_per_unit:%d ", o.RequestsPerUnit)
	}
	b.WriteString("unit:" + strings.ToUpper(rules.Unit(o.Unit).String()))
	if o.HasUnitMultiplier {
		fmt.Fprintf(&b, " unit_multiplier:{value:%d}", o.UnitMultiplier)
	}
	return b.String()
}

// merge adds the keys of from that into lacks, recursively in maps that both have.
func merge(into, from map[string]any) {
	for key, value := range from {
		have, ok := into[key]
		if !ok {
			into[key] = deepCopy(value)
			continue
		}
		inner, isMap := have.(map[string]any)
		if more, ok := value.(map[string]any); ok && isMap {
			merge(inner, more)
		}
	}
}

// deepCopy copies the maps of a value: those of a rule are shared and must not change.
func deepCopy(value any) any {
	from, ok := value.(map[string]any)
	if !ok {
		return value
	}
	into := make(map[string]any, len(from))
	merge(into, from)
	return into
}

// newValue converts a value of a rule file to protobuf. A type without a protobuf
// equivalent becomes its text.
func newValue(value any) *structpb.Value {
	switch value := value.(type) {
	case map[string]any:
		fields := make(map[string]*structpb.Value, len(value))
		for key, inner := range value {
			fields[validUTF8(key)] = newValue(inner)
		}
		return structpb.NewStructValue(&structpb.Struct{Fields: fields})
	case []any:
		return newList(value, newValue)
	case string:
		return stringValue(value)
	}
	if v, err := structpb.NewValue(value); err == nil {
		return v
	}
	return stringValue(fmt.Sprint(value))
}

func newList[T any](from []T, value func(T) *structpb.Value) *structpb.Value {
	list := &structpb.ListValue{Values: make([]*structpb.Value, len(from))}
	for i := range from {
		list.Values[i] = value(from[i])
	}
	return structpb.NewListValue(list)
}

// stringValue replaces invalid UTF-8, which protobuf cannot carry.
func stringValue(s string) *structpb.Value { return structpb.NewStringValue(validUTF8(s)) }

func validUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
