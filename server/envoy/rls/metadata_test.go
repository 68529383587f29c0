package rls

import (
	"context"
	"reflect"
	"testing"
	"time"

	"github.com/penstock-io/penstock/rules"
)

// Invalid UTF-8 in an entry is replaced, since protobuf cannot encode it.
func TestMetadataReplacesInvalidUTF8(t *testing.T) {
	s := newService(t, &ServiceOptions{DynamicMetadata: true})
	var c Call
	c.Request = Request{Domain: "api", Descriptors: []Descriptor{{Entries: []rules.Entry{{Key: "user", Value: "\xffada"}}}}}
	if err := s.Handle(context.Background(), &c, Caller{}); err != nil {
		t.Fatal(err)
	}
	descriptor := c.Response.Metadata.AsMap()["descriptors"].([]any)[0].(map[string]any)
	if got := descriptor["entries"].([]any)[0]; got != "user=\uFFFDada" {
		t.Errorf("got %q", got)
	}
	if n := len(c.Response.Append(nil)); n < 50 {
		t.Errorf("the response has only %d bytes: the metadata is missing", n)
	}
}

func TestMetadataKeepsValueTypes(t *testing.T) {
	for _, c := range []struct{ from, want any }{
		{int64(-7), -7.0},
		{uint64(7), 7.0},
		{2.5, 2.5},
		{true, true},
		{nil, nil},
		{"\xff", "\uFFFD"},
		{[]any{"a", []any{int64(1)}}, []any{"a", []any{1.0}}},
		{map[string]any{"a": map[string]any{}}, map[string]any{"a": map[string]any{}}},
		{time.Second, "1s"},
	} {
		if got := newValue(c.from).AsInterface(); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%#v: got %#v, want %#v", c.from, got, c.want)
		}
	}
}

func TestMetadataMergeKeepsRules(t *testing.T) {
	first := map[string]any{"a": map[string]any{"x": "1"}, "b": "text"}
	second := map[string]any{"a": map[string]any{"x": "2", "y": "3"}, "b": map[string]any{}, "c": "new"}
	all := map[string]any{}
	merge(all, first)
	merge(all, second)
	want := map[string]any{"a": map[string]any{"x": "1", "y": "3"}, "b": "text", "c": "new"}
	if !reflect.DeepEqual(all, want) {
		t.Errorf("got %v, want %v", all, want)
	}
	if !reflect.DeepEqual(first, map[string]any{"a": map[string]any{"x": "1"}, "b": "text"}) {
		t.Errorf("the first rule's metadata became %v", first)
	}
}

// In place of envoyproxy/ratelimit metadata is that of it: the rules of requests that metrics tell by value
// have none, and there is no word about where a decision comes from.
func TestMetadataOfRatelimit(t *testing.T) {
	const yaml = `
domain: api
descriptors:
  - {key: detailed, detailed_metric: true, metadata: {a: 1}, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: above, detailed_metric: true, metadata: {a: 1}, rate_limit: {unit: year, requests_per_unit: 5}, descriptors: [{key: below}]}
  - {key: value, value_to_metric: true, metadata: {a: 1}, rate_limit: {unit: year, requests_per_unit: 5}}
  - {key: k, value: "*y", metadata: {a: 1}, rate_limit: {unit: year, requests_per_unit: 5}}
`
	now := noon
	for entry, kept := range map[rules.Entry]bool{
		{Key: "detailed", Value: "x"}: false, {Key: "above", Value: "x"}: true, {Key: "value", Value: "x"}: false,
		{Key: "value"}: true, {Key: "k", Value: "y"}: true, {Key: "k_k", Value: "y"}: false,
	} {
		for _, as := range []bool{false, true} {
			s := newPeerService(t, yaml, &now, nil)
			s.options.DynamicMetadata, s.options.AsRatelimit = true, as
			c := Call{Request: Request{Domain: "api", Descriptors: []Descriptor{{Entries: []rules.Entry{entry}}}}}
			if err := s.Handle(t.Context(), &c, testCaller(true)); err != nil {
				t.Fatal(err)
			}
			if _, got := c.Response.Metadata.AsMap()["metadata"]; got != (kept || !as) {
				t.Errorf("%v, as ratelimit %v: has metadata %v", entry, as, got)
			}
		}
	}
}

func TestOverrideTextIsThatOfProtobuf(t *testing.T) {
	for want, o := range map[string]Override{
		"unit:DAY": {Unit: int32(rules.Day)}, "requests_per_unit:7 unit:WEEK": {RequestsPerUnit: 7, Unit: int32(rules.Week)},
	} {
		if got := o.String(); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
