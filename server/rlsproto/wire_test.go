package rlsproto

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
)

// The generated messages say what the binary form means. These tests hold what
// is read and written by hand against them.

var texts = rapid.StringN(0, 12, 60)

func drawRequest(t *rapid.T) *pb.RateLimitRequest {
	m := &pb.RateLimitRequest{Domain: texts.Draw(t, "domain"), HitsAddend: rapid.Uint32().Draw(t, "hits")}
	for range rapid.IntRange(0, 4).Draw(t, "descriptors") {
		m.Descriptors = append(m.Descriptors, drawDescriptor(t))
	}
	return m
}

func drawDescriptor(t *rapid.T) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{IsNegativeHits: rapid.Bool().Draw(t, "negative")}
	for range rapid.IntRange(0, 3).Draw(t, "entries") {
		e := &common.RateLimitDescriptor_Entry{Key: texts.Draw(t, "key"), Value: texts.Draw(t, "value")}
		d.Entries = append(d.Entries, e)
	}
	if rapid.Bool().Draw(t, "has hits") {
		d.HitsAddend = wrapperspb.UInt64(rapid.Uint64().Draw(t, "own hits"))
	}
	if rapid.Bool().Draw(t, "has limit") {
		d.Limit = &common.RateLimitDescriptor_RateLimitOverride{
			RequestsPerUnit: rapid.Uint32().Draw(t, "requests"),
			Unit:            typev3.RateLimitUnit(rapid.Int32().Draw(t, "unit")),
		}
		if rapid.Bool().Draw(t, "has multiplier") {
			d.Limit.UnitMultiplier = wrapperspb.UInt32(rapid.Uint32().Draw(t, "multiplier"))
		}
	}
	return d
}

func marshal(t rapid.TB, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// sameRequest reports whether two requests ask the same, however much room they
// keep.
func sameRequest(a, b *Request) bool {
	if a.Domain != b.Domain || a.HitsAddend != b.HitsAddend || len(a.Descriptors) != len(b.Descriptors) {
		return false
	}
	for i := range a.Descriptors {
		x, y := a.Descriptors[i], b.Descriptors[i]
		x.Entries, y.Entries = append([]rules.Entry{}, x.Entries...), append([]rules.Entry{}, y.Entries...)
		if !reflect.DeepEqual(x, y) {
			return false
		}
	}
	return true
}

func TestRequestUnmarshalMatchesGenerated(t *testing.T) {
	var got Request // used again and again
	rapid.Check(t, func(t *rapid.T) {
		m := drawRequest(t)
		data := marshal(t, m)
		if rapid.Bool().Draw(t, "twice") { // which merges the two
			data = append(data, marshal(t, drawRequest(t))...)
			m.Reset()
			if err := proto.Unmarshal(data, m); err != nil {
				t.Fatal(err)
			}
		}
		var want Request
		if err := want.fromProto(m, 64); err != nil {
			t.Fatal(err)
		}
		if err := got.Unmarshal(data, 64); err != nil {
			t.Fatalf("reading %x: %v", data, err)
		}
		if !sameRequest(&got, &want) {
			t.Fatalf("reading %x: got %+v, want %+v", data, got, want)
		}
	})
}

// FuzzRequestUnmarshal reads any bytes both ways.
func FuzzRequestUnmarshal(f *testing.F) {
	for _, m := range []*pb.RateLimitRequest{
		{},
		{Domain: "house", HitsAddend: 3, Descriptors: []*common.RateLimitDescriptor{{}}},
		{Domain: "house", Descriptors: []*common.RateLimitDescriptor{{
			Entries:        []*common.RateLimitDescriptor_Entry{{Key: "user", Value: "ada"}, {Key: "path"}},
			HitsAddend:     wrapperspb.UInt64(math.MaxUint64),
			IsNegativeHits: true,
			Limit: &common.RateLimitDescriptor_RateLimitOverride{
				RequestsPerUnit: 7, Unit: typev3.RateLimitUnit_HOUR, UnitMultiplier: wrapperspb.UInt32(2),
			},
		}}},
	} {
		f.Add(marshal(f, m))
	}
	f.Add([]byte("\x12\x06\x22\x00\x12\x00\x0a\x00"))                                         // an entry where a number belongs
	f.Add([]byte("\x12\x02\x20\x00"))                                                         // false, and said so
	f.Add([]byte("\x12\x0a\x12\x08\x1a\x02\x08\x05\x1a\x00\x08\x01"))                         // a multiplier twice, the second time without a number
	f.Add([]byte("\x12\x10\x12\x04\x08\x01\x10\x02\x12\x00\x1a\x02\x08\x07\x1a\x02\x10\x09")) // a limit and hits twice, which merge
	f.Add([]byte("\x0a\x02\xff\xfe"))                                                         // a domain that is no text
	f.Add([]byte("\x7b\x08\x01\x7c\x18\x05"))                                                 // a group of somebody else's
	f.Fuzz(func(t *testing.T, data []byte) {
		var m pb.RateLimitRequest
		var got, want Request
		wantErr := proto.Unmarshal(data, &m)
		gotErr := got.Unmarshal(data, 64)
		if wantErr != nil && strings.Contains(wantErr.Error(), "UTF-8") {
			return // which is as good as any other bytes here
		}
		if wantErr == nil {
			wantErr = want.fromProto(&m, 64)
		}
		if (gotErr == nil) != (wantErr == nil) {
			t.Fatalf("reading %x: got %v, want %v", data, gotErr, wantErr)
		}
		if gotErr == nil && !sameRequest(&got, &want) {
			t.Fatalf("reading %x: got %+v, want %+v", data, got, want)
		}
	})
}

func TestRequestUnmarshalAnyBytes(t *testing.T) {
	entry := append([]byte("\x0a\x04user"), "\x12\x03\xff\x00\xfe"...)
	data := append([]byte("\x0a\x05house\x12"), byte(len(entry)+2), 0x0a, byte(len(entry)))
	data = append(data, entry...)
	var q Request
	if err := q.Unmarshal(data, 64); err != nil {
		t.Fatal(err)
	}
	if got := q.Descriptors[0].Entries[0]; got != (rules.Entry{Key: "user", Value: "\xff\x00\xfe"}) {
		t.Errorf("got %+q", got)
	}
}

func TestRequestUnmarshalMalformed(t *testing.T) {
	whole := marshal(t, &pb.RateLimitRequest{Domain: "house", HitsAddend: 300, Descriptors: []*common.RateLimitDescriptor{
		{Entries: []*common.RateLimitDescriptor_Entry{{Key: "user", Value: "ada"}}, HitsAddend: wrapperspb.UInt64(300)},
	}})
	var q Request
	for _, data := range []string{
		string(whole[:len(whole)-1]),
		"\x0a\xff\xff\xff\xff\x0f",                     // a text of 4 GiB
		"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", // a descriptor of more than there is
		"\x12\x03\x0a\x05\x0a",                         // an entry longer than its descriptor
		"\x12\x04\x1a\x02\x08\xff",                     // hits without an end
		"\x12\x06\x12\x04\x1a\x02\x08\xff",             // a multiplier without an end
		"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", // a number without an end
		"\x00\x01",                 // field 0
		"\x80\xff\xff\xff\x30\x00", // a field beyond the last
		"\x0c",                     // the end of a group that never began
		"\x0b",                     // a group that never ends
		"\x0f",                     // a type that there is not
	} {
		if err := q.Unmarshal([]byte(data), 64); !errors.Is(err, ErrMalformed) {
			t.Errorf("reading %x: got %v, want ErrMalformed", data, err)
		}
	}
}

func TestRequestUnmarshalLimitsAllocation(t *testing.T) {
	var q Request
	many := []byte(strings.Repeat("\x12\x00", 100_000))
	if err := q.Unmarshal(many, 64); !errors.Is(err, engine.ErrTooManyDescriptors) || cap(q.Descriptors) > 128 {
		t.Errorf("100,000 descriptors: got %v and room for %d", err, cap(q.Descriptors))
	}
	if err := q.Unmarshal(many[:2*64], 64); err != nil || len(q.Descriptors) != 64 {
		t.Errorf("64 descriptors: got %d, %v", len(q.Descriptors), err)
	}
	long := protowire.AppendBytes([]byte("\x12"), []byte(strings.Repeat("\x0a\x00", 100_000)))
	if err := q.Unmarshal(long, 64); !errors.Is(err, ErrMalformed) || cap(q.Descriptors[0].Entries) > 32 {
		t.Errorf("100,000 entries: got %v and room for %d", err, cap(q.Descriptors[0].Entries))
	}
	just := protowire.AppendBytes([]byte("\x12"), []byte(strings.Repeat("\x0a\x00", 16)))
	if err := q.Unmarshal(just, 64); err != nil || len(q.Descriptors[0].Entries) != 16 {
		t.Errorf("16 entries: got %d, %v", len(q.Descriptors[0].Entries), err)
	}
}

func drawResponse(t *rapid.T) *Response {
	r := &Response{Over: rapid.Bool().Draw(t, "over")}
	for range rapid.IntRange(0, 4).Draw(t, "statuses") {
		st := Status{Over: rapid.Bool().Draw(t, "status over"), Remaining: rapid.Uint32().Draw(t, "remaining")}
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
			t.Fatalf("reading what was written of %+v: %v", r, err)
		}
		if want := r.toProto(); !proto.Equal(&got, want) {
			t.Fatalf("got %v, want %v", &got, want)
		}
		if unknown := got.ProtoReflect().GetUnknown(); len(unknown) > 0 {
			t.Fatalf("wrote fields that nobody knows: %x", unknown)
		}
	})
}
