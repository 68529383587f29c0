package rls

import (
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// The tests of the binary form compare the hand-written code with the generated one.

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

// sameRequest reports whether two requests are equal, whatever their capacity.
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
	var got Request // reused
	rapid.Check(t, func(t *rapid.T) {
		m := drawRequest(t)
		data := marshal(t, m)
		if rapid.Bool().Draw(t, "twice") { // two messages in a row merge
			data = append(data, marshal(t, drawRequest(t))...)
			m.Reset()
			if err := proto.Unmarshal(data, m); err != nil {
				t.Fatal(err)
			}
		}
		var want Request
		if err := want.fromProto(m, 64, 16); err != nil {
			t.Fatal(err)
		}
		if err := got.Unmarshal(data, 64, 16); err != nil {
			t.Fatalf("decoding %x: %v", data, err)
		}
		if !sameRequest(&got, &want) {
			t.Fatalf("decoding %x: got %+v, want %+v", data, got, want)
		}
	})
}

// FuzzRequestUnmarshal decodes any bytes with both decoders.
func FuzzRequestUnmarshal(f *testing.F) {
	for _, m := range []*pb.RateLimitRequest{
		{},
		{Domain: "api", HitsAddend: 3, Descriptors: []*common.RateLimitDescriptor{{}}},
		{Domain: "api", Descriptors: []*common.RateLimitDescriptor{{
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
	f.Add([]byte("\x12\x06\x22\x00\x12\x00\x0a\x00"))                                         // bytes where a number is expected
	f.Add([]byte("\x12\x02\x20\x00"))                                                         // an explicit false
	f.Add([]byte("\x12\x0a\x12\x08\x1a\x02\x08\x05\x1a\x00\x08\x01"))                         // a multiplier twice, the second one empty
	f.Add([]byte("\x12\x10\x12\x04\x08\x01\x10\x02\x12\x00\x1a\x02\x08\x07\x1a\x02\x10\x09")) // limit and hits twice, which merge
	f.Add([]byte("\x0a\x02\xff\xfe"))                                                         // a domain that is not UTF-8
	f.Add([]byte("\x7b\x08\x01\x7c\x18\x05"))                                                 // an unknown group
	f.Fuzz(func(t *testing.T, data []byte) {
		var m pb.RateLimitRequest
		var got, want Request
		wantErr := proto.Unmarshal(data, &m)
		gotErr := got.Unmarshal(data, 64, 16)
		if wantErr != nil && strings.Contains(wantErr.Error(), "UTF-8") {
			return // accepted here on purpose
		}
		if wantErr == nil {
			wantErr = want.fromProto(&m, 64, 16)
		}
		if (gotErr == nil) != (wantErr == nil) {
			t.Fatalf("decoding %x: got %v, want %v", data, gotErr, wantErr)
		}
		if gotErr == nil && !sameRequest(&got, &want) {
			t.Fatalf("decoding %x: got %+v, want %+v", data, got, want)
		}
	})
}

func TestRequestUnmarshalAcceptsAnyBytes(t *testing.T) {
	entry := append([]byte("\x0a\x04user"), "\x12\x03\xff\x00\xfe"...)
	data := append([]byte("\x0a\x03api\x12"), byte(len(entry)+2), 0x0a, byte(len(entry)))
	data = append(data, entry...)
	var q Request
	if err := q.Unmarshal(data, 64, 16); err != nil {
		t.Fatal(err)
	}
	if got := q.Descriptors[0].Entries[0]; got != (rules.Entry{Key: "user", Value: "\xff\x00\xfe"}) {
		t.Errorf("got %+q", got)
	}
}

func TestRequestUnmarshalRejectsMalformedData(t *testing.T) {
	whole := marshal(t, &pb.RateLimitRequest{Domain: "api", HitsAddend: 300, Descriptors: []*common.RateLimitDescriptor{
		{Entries: []*common.RateLimitDescriptor_Entry{{Key: "user", Value: "ada"}}, HitsAddend: wrapperspb.UInt64(300)},
	}})
	var q Request
	for _, data := range []string{
		string(whole[:len(whole)-1]),
		"\x0a\xff\xff\xff\xff\x0f",                     // a string of 4 GiB
		"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", // a descriptor longer than the message
		"\x12\x03\x0a\x05\x0a",                         // an entry longer than its descriptor
		"\x12\x04\x1a\x02\x08\xff",                     // unterminated hits
		"\x12\x06\x12\x04\x1a\x02\x08\xff",             // unterminated multiplier
		"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", // unterminated number
		"\x00\x01",                 // field 0
		"\x80\xff\xff\xff\x30\x00", // a field number above the maximum
		"\x0c",                     // the end of a group without a start
		"\x0b",                     // a group without an end
		"\x0f",                     // an unknown wire type
	} {
		if err := q.Unmarshal([]byte(data), 64, 16); !errors.Is(err, ErrMalformed) {
			t.Errorf("decoding %x: got %v, want ErrMalformed", data, err)
		}
	}
}

func TestRequestUnmarshalLimitsAllocation(t *testing.T) {
	var q Request
	many := []byte(strings.Repeat("\x12\x00", 100_000))
	if err := q.Unmarshal(many, 64, 16); !errors.Is(err, engine.ErrTooManyDescriptors) || cap(q.Descriptors) > 128 {
		t.Errorf("100,000 descriptors: got %v and capacity for %d", err, cap(q.Descriptors))
	}
	if err := q.Unmarshal(many[:2*64], 64, 16); err != nil || len(q.Descriptors) != 64 {
		t.Errorf("64 descriptors: got %d, %v", len(q.Descriptors), err)
	}
	long := protowire.AppendBytes([]byte("\x12"), []byte(strings.Repeat("\x0a\x00", 100_000)))
	if err := q.Unmarshal(long, 64, 16); !errors.Is(err, ErrMalformed) || cap(q.Descriptors[0].Entries) > 32 {
		t.Errorf("100,000 entries: got %v and capacity for %d", err, cap(q.Descriptors[0].Entries))
	}
	just := protowire.AppendBytes([]byte("\x12"), []byte(strings.Repeat("\x0a\x00", 16)))
	if err := q.Unmarshal(just, 64, 16); err != nil || len(q.Descriptors[0].Entries) != 16 {
		t.Errorf("16 entries: got %d, %v", len(q.Descriptors[0].Entries), err)
	}
}
