package xds

import (
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/penstock-io/penstock/server/envoy/xds/xdstest"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// Whatever a server sends is rules or an error of theirs: the text that it is parsed from is
// always well-formed.
func FuzzParse(f *testing.F) {
	metadata, err := proto.Marshal(&structpb.Struct{Fields: map[string]*structpb.Value{
		strings.Repeat("long", 1000): structpb.NewStringValue("v: "), "n": structpb.NewNumberValue(1e300), "": nil,
	}})
	if err != nil {
		f.Fatal(err)
	}
	c := xdstest.Config{Name: "n", Domain: "d", Descriptors: []xdstest.Descriptor{
		{Key: "a: *b", Value: "\u0085\x00\"\\", Shadow: true, Limit: &xdstest.Limit{Unit: xdstest.Week, Requests: 7, Name: "x", Replaces: []string{"y", ""}}},
		{Key: "k", Quota: true, Detailed: true, Metadata: metadata, Descriptors: []xdstest.Descriptor{{Key: "l", Limit: &xdstest.Limit{Unlimited: true}}}},
		{Key: "m", Limit: &xdstest.Limit{Unit: 99}, UnknownFieldNumber: 50},
	}}
	f.Add(c.Encode())
	f.Add([]byte("\x12\x01d\x1a\x04\x0a\x02\xc2\x85"))
	f.Fuzz(func(t *testing.T, message []byte) {
		response := &discovery.DiscoveryResponse{Resources: []*anypb.Any{{TypeUrl: TypeURL, Value: message}}}
		set, _, err := parse(response, false)
		if err == nil && set == nil {
			t.Fatal("neither rules nor an error")
		}
		if err != nil && strings.Contains(err.Error(), ": yaml: ") {
			t.Fatalf("%q is written as broken YAML: %v", message, err)
		}
	})
}
