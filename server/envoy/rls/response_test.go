package rls

import (
	"math"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/rules"
)

func drawResponse(t *rapid.T) *Response {
	r := &Response{OverLimit: rapid.Bool().Draw(t, "over")}
	for range rapid.IntRange(0, 4).Draw(t, "statuses") {
		st := Status{OverLimit: rapid.Bool().Draw(t, "status over"), Remaining: rapid.Uint32().Draw(t, "remaining")}
		if st.HasLimit = rapid.Bool().Draw(t, "has limit"); st.HasLimit {
			st.Limit = Limit{
				Name:            texts.Draw(t, "name"),
				RequestsPerUnit: rapid.Uint32().Draw(t, "requests"),
				Unit:            rules.Unit(rapid.Int32Range(0, 7).Draw(t, "unit")),
				UnitMultiplier:  rapid.Uint32().Draw(t, "multiplier"),
			}
			st.Reset = rapid.Int64Range(0, math.MaxInt64).Draw(t, "reset")
		}
		r.Statuses = append(r.Statuses, st)
	}
	for range rapid.IntRange(0, 3).Draw(t, "headers") {
		r.Headers = append(r.Headers, Header{texts.Draw(t, "header"), texts.Draw(t, "value")})
	}
	for range rapid.IntRange(0, 3).Draw(t, "request headers") {
		r.Request = append(r.Request, Header{texts.Draw(t, "header"), texts.Draw(t, "value")})
	}
	if rapid.Bool().Draw(t, "has metadata") {
		r.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{texts.Draw(t, "field"): stringValue(texts.Draw(t, "text"))}}
	}
	return r
}

func TestResponseAppendMatchesGenerated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawResponse(t)
		var got pb.RateLimitResponse
		if err := proto.Unmarshal(r.Append(nil), &got); err != nil {
			t.Fatalf("decoding the encoded %+v: %v", r, err)
		}
		if want := r.toProto(); !proto.Equal(&got, want) {
			t.Fatalf("got %v, want %v", &got, want)
		}
		if unknown := got.ProtoReflect().GetUnknown(); len(unknown) > 0 {
			t.Fatalf("encoded unknown fields: %x", unknown)
		}
	})
}
