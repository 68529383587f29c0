package rls

import (
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/engine"
)

const testRules = `
domain: api
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 2, name: usual}
    metadata: {plan: basic}
  - key: vip
    rate_limit: {unlimited: true}
`

var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

func newService(t testing.TB, o *ServiceOptions) *Service {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "test.yaml", Text: []byte(testRules)})
	if err != nil {
		t.Fatal(err)
	}
	now := func() time.Time { return noon }
	e := engine.New(penstock.NewMemory(&penstock.MemoryOptions{Now: now}), nil)
	e.SetRules(set)
	o.Now = now
	return NewService(e, o)
}

// sameJSON reports whether two JSON texts have the same value.
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

func TestHandleJSONDecidesByRules(t *testing.T) {
	s := newService(t, &ServiceOptions{Headers: true, DynamicMetadata: true})
	for _, c := range []struct {
		request, response string
		over              bool
	}{
		{
			request: `{"domain":"api","descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}`,
			response: `{"overallCode":"OK",
				"statuses":[{"code":"OK","currentLimit":{"name":"usual","requestsPerUnit":2,"unit":"HOUR"},"limitRemaining":1,"durationUntilReset":"3600s"}],
				"responseHeadersToAdd":[{"key":"RateLimit-Limit","value":"2"},{"key":"RateLimit-Remaining","value":"1"},{"key":"RateLimit-Reset","value":"3600"}],
				"dynamicMetadata":{"domain":"api","descriptors":[{"entries":["user=ada"]}],"metadata":{"plan":"basic"}}}`,
		},
		{
			request: `{"domain":"api","hits_addend":2,"descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}`,
			response: `{"overallCode":"OVER_LIMIT",
				"statuses":[{"code":"OVER_LIMIT","currentLimit":{"name":"usual","requestsPerUnit":2,"unit":"HOUR"},"durationUntilReset":"3600s"}],
				"responseHeadersToAdd":[{"key":"RateLimit-Limit","value":"2"},{"key":"RateLimit-Remaining","value":"0"},{"key":"RateLimit-Reset","value":"3600"}],
				"dynamicMetadata":{"domain":"api","hitsAddend":2,"descriptors":[{"entries":["user=ada"]}]}}`,
			over: true,
		},
		{
			request: `{"domain":"api","descriptors":[{"entries":[{"key":"vip"}],"hitsAddend":"0"},
				{"limit":{"requestsPerUnit":7,"unit":"SECOND","unitMultiplier":30}}]}`,
			response: `{"overallCode":"OK",
				"statuses":[{"code":"OK","limitRemaining":4294967295},
					{"code":"OK","currentLimit":{"requestsPerUnit":7,"unit":"SECOND","unitMultiplier":30},"limitRemaining":6,"durationUntilReset":"30s"}],
				"responseHeadersToAdd":[{"key":"RateLimit-Limit","value":"7"},{"key":"RateLimit-Remaining","value":"6"},{"key":"RateLimit-Reset","value":"30"}],
				"dynamicMetadata":{"domain":"api","descriptors":[{"entries":["vip="],"hitsAddend":0},
					{"entries":[],"limit":"requests_per_unit:7 unit:SECOND unit_multiplier:{value:30}"}]}}`,
		},
	} {
		response, over, err := s.HandleJSON(t.Context(), []byte(c.request), testCaller(false))
		if err != nil {
			t.Errorf("%s: %v", c.request, err)
			continue
		}
		if over != c.over || !sameJSON(t, string(response), c.response) {
			t.Errorf("%s\ngot %s, over %v\nwant %s, over %v", c.request, response, over, c.response, c.over)
		}
	}
}

func TestHandleJSONRejectsInvalidRequests(t *testing.T) {
	s := newService(t, &ServiceOptions{})
	entries := strings.Repeat(`{"key":"a"},`, 128) + `{"key":"a"}`
	for _, c := range []struct {
		request string
		reason  error
	}{
		{``, ErrMalformed},
		{`{`, ErrMalformed},
		{`[]`, ErrMalformed},
		{`{"domain":"api","colour":"red"}`, ErrMalformed},
		{`{"domain":7}`, ErrMalformed},
		{`{}`, engine.ErrNoDomain},
		{`{"domain":"api"}`, engine.ErrNoDescriptors},
		{`{"domain":"api","descriptors":[` + strings.Repeat("{},", 256) + `{}]}`, engine.ErrTooManyDescriptors},
		{`{"domain":"api","descriptors":[{"entries":[` + entries + `]}]}`, ErrMalformed},
		{`{"domain":"api","descriptors":[{"limit":{"requestsPerUnit":1}}]}`, ErrBadOverride},
		{`{"domain":"api","descriptors":[{"isNegativeHits":true}]}`, ErrRefundForbidden},
	} {
		if response, _, err := s.HandleJSON(t.Context(), []byte(c.request), testCaller(false)); !errors.Is(err, c.reason) || response != nil {
			t.Errorf("%.80s: got %s, %v, want %v", c.request, response, err, c.reason)
		}
	}
}

func testCaller(mayRefund bool) Caller {
	return Caller{MayRefund: func() bool { return mayRefund }, Entry: func() audit.Entry { return audit.Entry{API: "test"} }}
}

func TestHandleJSONRefundNeedsMayRefund(t *testing.T) {
	s := newService(t, &ServiceOptions{})
	const request = `{"domain":"api","descriptors":[{"entries":[{"key":"user","value":"ada"}],"hitsAddend":"2"%}]}`
	remaining := func(mayRefund bool, more string) uint32 {
		t.Helper()
		var got struct {
			Statuses []struct{ LimitRemaining uint32 }
		}
		response, _, err := s.HandleJSON(t.Context(), []byte(strings.Replace(request, "%", more, 1)), testCaller(mayRefund))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(response, &got); err != nil {
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
