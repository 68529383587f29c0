package xds_test

import (
	"context"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/durable"
	"github.com/penstock-io/penstock/server/envoy/xds"
	"github.com/penstock-io/penstock/server/envoy/xds/xdstest"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

func damageSaved(t *testing.T, dir *durable.Dir) {
	t.Helper()
	saved, err := dir.ReadFile("rules-xds", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	saved[len(saved)-1] ^= 1
	if err := dir.WriteFile("rules-xds", func(w io.Writer) error {
		_, err := w.Write(saved)
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

// receive returns what a client makes of resources.
func receive(t *testing.T, o *xds.Options, resources ...*anypb.Any) (set *rules.Set, err error) {
	t.Helper()
	s := startServer(t, "127.0.0.1:0")
	s.SetAny("1", resources...)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	client := newClient(t, config(s), o)
	defer client.Close()
	if err := client.Next(ctx, func(got *rules.Set, gotErr error) error {
		set, err = got, gotErr
		return gotErr
	}); err != nil {
		t.Fatal(err)
	}
	return set, err
}

func resource(message []byte) *anypb.Any {
	return &anypb.Any{TypeUrl: xds.TypeURL, Value: message}
}

// Rules over xDS mean what the same rules mean in a file.
func TestClientRulesEqualThoseOfFile(t *testing.T) {
	t.Parallel()
	m, err := structpb.NewStruct(map[string]any{"plan": "b\"\x7f\u2028é", "n": 3.0, "f": 0.5, "l": []any{true, nil}, "m": map[string]any{"": "x"}})
	if err != nil {
		t.Fatal(err)
	}
	encoded, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	c := xdstest.Config{Name: "default/eg", Domain: "default/eg/http", Descriptors: []xdstest.Descriptor{
		{Key: "route/*/rule/0", Value: "route/*/rule/0", UnknownFieldNumber: 99, Descriptors: []xdstest.Descriptor{
			{Key: "odd \"'\n{}: #", Value: "é\x00\u0085\U0001F600", Limit: &xdstest.Limit{Unit: xdstest.Week, Requests: 4294967295}, Shadow: true, Quota: true, Metadata: encoded},
			{Key: "masked_remote_address", Value: "0.0.0.0/0", Descriptors: []xdstest.Descriptor{
				{Key: "remote_address", Limit: &xdstest.Limit{Unit: xdstest.Second}, Detailed: true},
			}},
		}},
		{Key: "year", Limit: &xdstest.Limit{Unit: xdstest.Year, Requests: 2, Name: "y", Replaces: []string{"a", "b"}}},
		{Key: "month", Limit: &xdstest.Limit{Unit: xdstest.Month, Requests: 2}},
		{Key: "free", Limit: &xdstest.Limit{Unlimited: true, Name: "a"}},
		{Key: "true", Value: "1.5", Limit: &xdstest.Limit{Unit: xdstest.Day, Requests: 1}},
	}}
	set, err := receive(t, nil, resource(c.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	want, err := rules.Parse(rules.File{Name: "default/eg", Text: []byte(`
domain: default/eg/http
descriptors:
  - key: route/*/rule/0
    value: route/*/rule/0
    descriptors:
      - key: "odd \"'\n{}: #"
        value: "é\0\x85\U0001F600"
        shadow_mode: true
        quota_mode: true
        metadata: {plan: "b\"\x7f\u2028é", n: 3, f: 0.5, l: [true, null], m: {"": x}}
        rate_limit: {unit: week, requests_per_unit: 4294967295}
      - key: masked_remote_address
        value: 0.0.0.0/0
        descriptors:
          - {key: remote_address, detailed_metric: true, rate_limit: {unit: second, requests_per_unit: 0}}
  - {key: year, rate_limit: {unit: year, requests_per_unit: 2, name: y, replaces: [{name: a}, {name: b}]}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 2}}
  - {key: free, rate_limit: {unlimited: true, name: a}}
  - {key: "true", value: "1.5", rate_limit: {unit: day, requests_per_unit: 1}}
`)})
	if err != nil {
		t.Fatal(err)
	}
	if len(set.Rules()) != len(want.Rules()) {
		t.Fatalf("%d rules, want %d", len(set.Rules()), len(want.Rules()))
	}
	for i, r := range want.Rules() {
		got := *set.Rules()[i]
		got.Line = r.Line
		if !reflect.DeepEqual(&got, r) {
			t.Errorf("got  %+v\nwant %+v", &got, r)
		}
	}
}

func TestClientRejectsBrokenResources(t *testing.T) {
	t.Parallel()
	limit := &xdstest.Limit{Unit: xdstest.Minute, Requests: 1}
	one := func(d ...xdstest.Descriptor) *anypb.Any {
		return resource((&xdstest.Config{Name: "n", Domain: "d", Descriptors: d}).Encode())
	}
	deep := xdstest.Descriptor{Key: "a", Limit: limit}
	for range 100 {
		deep = xdstest.Descriptor{Key: "a", Descriptors: []xdstest.Descriptor{deep}}
	}
	number, _ := proto.Marshal(&structpb.Struct{Fields: map[string]*structpb.Value{"n": {}}})
	for want, resources := range map[string][]*anypb.Any{
		"config file cannot have empty domain":                              {resource((&xdstest.Config{Name: "n"}).Encode())},
		"duplicate domain 'd'":                                              {one(), one()},
		"duplicate descriptor composite key 'd.a'":                          {one(xdstest.Descriptor{Key: "a", Limit: limit}, xdstest.Descriptor{Key: "a"})},
		"descriptor has empty key":                                          {one(xdstest.Descriptor{Value: "v"})},
		"descriptor a: should not specify rate limit unit when unlimited":   {one(xdstest.Descriptor{Key: "a", Limit: &xdstest.Limit{Unit: 1, Unlimited: true}})},
		"invalid rate limit unit 'UNKNOWN'":                                 {one(xdstest.Descriptor{Key: "a", Limit: &xdstest.Limit{Unit: 8, Requests: 1}})},
		"nested more than 64 levels":                                        {one(deep)},
		"message is malformed":                                              {resource([]byte("\xff\xff"))},
		"n: message is malformed":                                           {one(xdstest.Descriptor{Key: "a", Limit: limit, Metadata: []byte("\xff")})},
		"resource 0 has type \"other\"":                                     {{TypeUrl: "other"}},
		"resource 0: message is malformed":                                  {resource(protowire.AppendBytes(protowire.AppendTag(nil, 2, protowire.BytesType), []byte("\xff\xfe")))},
		"metadata of a descriptor has 65537 bytes: at most 65536 are allow": {one(xdstest.Descriptor{Key: "a", Limit: limit, Metadata: make([]byte, 65537)})},
		"more than 262144 descriptors in all resources":                     {resource(append((&xdstest.Config{Name: "n", Domain: "d"}).Encode(), strings.Repeat("\x1a\x00", 262145)...))},
		"response has 1001 resources: at most 1000 are allowed":             make([]*anypb.Any, 1001),
	} {
		if _, err := receive(t, nil, resources...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %.300v, want %s", err, want)
		}
	}
	if _, err := receive(t, nil, one(xdstest.Descriptor{Key: "a", Limit: limit, Metadata: number})); err != nil {
		t.Errorf("a metadata value without a kind, which is null: %v", err)
	}
}

func TestClientMergesDomains(t *testing.T) {
	t.Parallel()
	a := (&xdstest.Config{Name: "1", Domain: "d", Descriptors: []xdstest.Descriptor{{Key: "a", Limit: &xdstest.Limit{Unit: 1}}}}).Encode()
	b := (&xdstest.Config{Name: "2", Domain: "d", Descriptors: []xdstest.Descriptor{{Key: "b", Limit: &xdstest.Limit{Unit: 1}}}}).Encode()
	set, err := receive(t, &xds.Options{MergeDomains: true}, resource(b), resource(a))
	if err != nil || len(set.Domains()) != 1 || len(set.Rules()) != 2 || set.Rules()[0].Name != "d/a" {
		t.Errorf("got %v, %v, want a and b of one domain, by the names of the resources", set, err)
	}
}
