package rls

import (
	"slices"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
)

// A codec passes the messages of ShouldRateLimit through as bytes, which
// wire_decode.go and wire_encode.go read and write. The messages of health checks and reflection are generated ones, and go
// to gRPC's own codec.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*rateLimitCall)
	if !ok {
		return c.CodecV2.Unmarshal(data, v)
	}
	n := data.Len()
	m.request = slices.Grow(m.request[:0], n)[:n]
	data.CopyTo(m.request)
	return nil
}

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(encodedResponse); ok {
		return mem.BufferSlice{mem.SliceBuffer(r)}, nil
	}
	return c.CodecV2.Marshal(v)
}
