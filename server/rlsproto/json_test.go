package rlsproto

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
)

const testRules = `
domain: house
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2, name: usual}
    metadata: {plan: basic}
  - key: vip
    rate_limit: {unlimited: true}
`

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func newService(t testing.TB, o *Options) *Service {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "test.yaml", Text: []byte(testRules)})
	if err != nil {
		t.Fatal(err)
	}
	now := func() time.Time { return noon }
	j := engine.New(penstock.NewMemory(&penstock.MemoryOptions{Now: now}), nil)
	j.SetRules(set)
	o.Now = now
	return New(j, o)
}

// sameJSON reports whether two texts are the same JSON, whatever the spaces.
func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := json.Unmarshal([]byte(a), &x); err != nil {
		t.Fatalf("%s: %v", a, err)
	}
	if err := json.Unmarshal([]byte(b), &y); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return reflect.DeepEqual(x, y)
}

func TestHandleJSON(t *testing.T) {
	s := newService(t, &Options{Headers: true, DynamicMetadata: true})
	for _, c := range []struct {
		ask, answer string
		over        bool
	}{
		{
			ask: `{"domain":"house","descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}`,
			answer: `{"overallCode":"OK",
				"statuses":[{"code":"OK","currentLimit":{"name":"usual","requestsPerUnit":2,"unit":"HOUR"},"limitRemaining":1,"durationUntilReset":"3600s"}],
				"responseHeadersToAdd":[{"key":"RateLimit-Limit","value":"2"},{"key":"RateLimit-Remaining","value":"1"},{"key":"RateLimit-Reset","value":"3600"}],
				"dynamicMetadata":{"domain":"house","descriptors":[{"entries":["user=ada"]}],"metadata":{"plan":"basic"}}}`,
		},
		{
			ask: `{"domain":"house","hits_addend":2,"descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}`,
			answer: `{"overallCode":"OVER_LIMIT",
				"statuses":[{"code":"OVER_LIMIT","currentLimit":{"name":"usual","requestsPerUnit":2,"unit":"HOUR"},"durationUntilReset":"3600s"}],
				"responseHeadersToAdd":[{"key":"RateLimit-Limit","value":"2"},{"key":"RateLimit-Remaining","value":"0"},{"key":"RateLimit-Reset","value":"3600"}],
				"dynamicMetadata":{"domain":"house","hitsAddend":2,"descriptors":[{"entries":["user=ada"]}]}}`,
			over: true,
		},
		{
			ask: `{"domain":"house","descriptors":[{"entries":[{"key":"vip"}],"hitsAddend":"0"},
				{"limit":{"requestsPerUnit":7,"unit":"SECOND","unitMultiplier":30}}]}`,
			answer: `{"overallCode":"OK",
				"statuses":[{"code":"OK","limitRemaining":4294967295},
					{"code":"OK","currentLimit":{"requestsPerUnit":7,"unit":"SECOND","unitMultiplier":30},"limitRemaining":6,"durationUntilReset":"30s"}],
				"responseHeadersToAdd":[{"key":"RateLimit-Limit","value":"7"},{"key":"RateLimit-Remaining","value":"6"},{"key":"RateLimit-Reset","value":"30"}],
				"dynamicMetadata":{"domain":"house","descriptors":[{"entries":["vip="],"hitsAddend":0},
					{"entries":[],"limit":"requests_per_unit:7 unit:SECOND unit_multiplier:{value:30}"}]}}`,
		},
	} {
		answer, over, err := s.HandleJSON(t.Context(), []byte(c.ask), false)
		if err != nil {
			t.Errorf("%s: %v", c.ask, err)
			continue
		}
		if over != c.over || !sameJSON(t, string(answer), c.answer) {
			t.Errorf("%s\ngot %s, over %v\nwant %s, over %v", c.ask, answer, over, c.answer, c.over)
		}
	}
}

func TestHandleJSONErrors(t *testing.T) {
	s := newService(t, &Options{})
	entries := strings.Repeat(`{"key":"a"},`, 16) + `{"key":"a"}`
	for _, c := range []struct {
		ask    string
		reason error
	}{
		{``, ErrMalformed},
		{`{`, ErrMalformed},
		{`[]`, ErrMalformed},
		{`{"domain":"house","colour":"red"}`, ErrMalformed},
		{`{"domain":7}`, ErrMalformed},
		{`{}`, engine.ErrNoDomain},
		{`{"domain":"house"}`, engine.ErrNoDescriptors},
		{`{"domain":"house","descriptors":[` + strings.Repeat("{},", 64) + `{}]}`, engine.ErrTooManyDescriptors},
		{`{"domain":"house","descriptors":[{"entries":[` + entries + `]}]}`, ErrMalformed},
		{`{"domain":"house","descriptors":[{"limit":{"requestsPerUnit":1}}]}`, ErrBadOverride},
		{`{"domain":"house","descriptors":[{"isNegativeHits":true}]}`, ErrRefundForbidden},
	} {
		if answer, _, err := s.HandleJSON(t.Context(), []byte(c.ask), false); !errors.Is(err, c.reason) || answer != nil {
			t.Errorf("%.80s: got %s, %v, want %v", c.ask, answer, err, c.reason)
		}
	}
}

func TestHandleJSONRefund(t *testing.T) {
	s := newService(t, &Options{})
	const ask = `{"domain":"house","descriptors":[{"entries":[{"key":"user","value":"ada"}],"hitsAddend":"2"%}]}`
	remaining := func(mayUndo bool, more string) uint32 {
		t.Helper()
		var got struct {
			Statuses []struct{ LimitRemaining uint32 }
		}
		answer, _, err := s.HandleJSON(t.Context(), []byte(strings.Replace(ask, "%", more, 1)), mayUndo)
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(answer, &got); err != nil {
			t.Fatal(err)
		}
		return got.Statuses[0].LimitRemaining
	}
	if n := remaining(false, ""); n != 0 {
		t.Errorf("%d remaining, want 0", n)
	}
	if n := remaining(true, `,"isNegativeHits":true`); n != 2 {
		t.Errorf("%d remaining, want 2", n)
	}
}

// What is no text is told as text all the same, and does not spoil the answer.
func TestMetadataInvalidUTF8(t *testing.T) {
	s := newService(t, &Options{DynamicMetadata: true})
	var c Call
	c.Request = Request{Domain: "house", Descriptors: []Descriptor{{Entries: []rules.Entry{{Key: "user", Value: "\xffada"}}}}}
	if err := s.Handle(context.Background(), &c, false); err != nil {
		t.Fatal(err)
	}
	descriptor := c.Response.Metadata.AsMap()["descriptors"].([]any)[0].(map[string]any)
	if got := descriptor["entries"].([]any)[0]; got != "user=\uFFFDada" {
		t.Errorf("got %q", got)
	}
	if n := len(c.Response.Append(nil)); n < 50 {
		t.Errorf("the answer has only %d bytes, so the metadata is missing", n)
	}
}

func TestMetadataValueTypes(t *testing.T) {
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
