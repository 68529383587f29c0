package rlsproto

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
)

// newMetadata returns what Envoy's filters behind the limit are told: the request,
// and the metadata of the rules that let it pass.
func newMetadata(q *Request, v *engine.Result) *structpb.Struct {
	fields := map[string]*structpb.Value{
		"domain":      stringValue(q.Domain),
		"descriptors": newList(q.Descriptors, descriptorMetadata),
	}
	addSources(fields["descriptors"].GetListValue().GetValues(), v)
	if q.HitsAddend != 0 {
		fields["hitsAddend"] = structpb.NewNumberValue(float64(q.HitsAddend))
	}
	passed := map[string]any{}
	for i := range v.Statuses {
		if st := &v.Statuses[i]; st.Rule != nil && !st.Rule.Unlimited && !st.OverLimit {
			merge(passed, st.Rule.Metadata)
		}
	}
	if len(passed) > 0 {
		fields["metadata"] = newValue(passed)
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

// addSources says of descriptors that the store has not decided who has.
func addSources(descriptors []*structpb.Value, v *engine.Result) {
	for i := range v.Statuses {
		if source := v.Statuses[i].Decision.Source; source != penstock.SourceStore {
			descriptors[i].GetStructValue().Fields["source"] = stringValue(source.String())
		}
	}
}

// String returns the override in protobuf's text form.
func (o Override) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "requests_per_unit:%d unit:%s", o.RequestsPerUnit, strings.ToUpper(rules.Unit(o.Unit).String()))
	if o.HasUnitMultiplier {
		fmt.Fprintf(&b, " unit_multiplier:{value:%d}", o.UnitMultiplier)
	}
	return b.String()
}

// merge adds what is new in from, also inside of maps that both have.
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

// deepCopy returns a value whose maps are not those of a rule, which others read.
func deepCopy(value any) any {
	from, ok := value.(map[string]any)
	if !ok {
		return value
	}
	into := make(map[string]any, len(from))
	merge(into, from)
	return into
}

// newValue returns a value of a rule file in protobuf's words. What has no such
// words is told as text.
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

// stringValue returns a text as protobuf can carry it.
func stringValue(s string) *structpb.Value { return structpb.NewStringValue(validUTF8(s)) }

func validUTF8(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
