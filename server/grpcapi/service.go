package grpcapi

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/rlsproto"
)

// serviceDesc is Envoy's service, as it is in the generated code, but for a
// handler that reads and writes messages by itself.
var serviceDesc = grpc.ServiceDesc{
	ServiceName: "envoy.service.ratelimit.v3.RateLimitService",
	HandlerType: (*any)(nil), // the handler knows what it is called with
	Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: shouldRateLimit}},
	Metadata:    "envoy/service/ratelimit/v3/rls.proto",
}

// A rateLimitCall is one of ShouldRateLimit, while it lasts.
type rateLimitCall struct {
	rlsproto.Call
	request  []byte // in binary form; the texts of the call are in here
	response []byte
}

var callPool = sync.Pool{New: func() any { return &rateLimitCall{} }}

// maxPooledBytes is how many bytes of messages a call keeps room for.
const maxPooledBytes = 16 << 10

func (c *rateLimitCall) release() {
	if cap(c.request) <= maxPooledBytes && cap(c.response) <= maxPooledBytes {
		callPool.Put(c)
	}
}

// A encodedResponse is a response in binary form.
type encodedResponse []byte

// shouldRateLimit is the handler of the one method there is.
func shouldRateLimit(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // gRPC has the context second
	d := srv.(*Server)
	if d.observeLatency == nil {
		return d.handle(ctx, decode)
	}
	start := time.Now()
	answer, err := d.handle(ctx, decode)
	d.observeLatency(time.Since(start))
	return answer, err
}

func (d *Server) handle(ctx context.Context, decode func(any) error) (any, error) {
	c := callPool.Get().(*rateLimitCall)
	defer c.release()
	if err := decode(c); err != nil {
		return nil, err
	}
	if err := d.decide(ctx, c); err != nil {
		return nil, statusOf(ctx, err)
	}
	c.response = c.Response.Append(c.response[:0])
	return encodedResponse(slices.Clone(c.response)), nil
}

func (d *Server) decide(ctx context.Context, c *rateLimitCall) error {
	if err := c.Request.Unmarshal(c.request, d.engine.MaxDescriptors()); err != nil {
		return err
	}
	mayUndo := c.Request.HasRefund() && d.mayRefund(ctx)
	return d.service.Handle(ctx, &c.Call, mayUndo)
}

// mayRefund says whether the caller may give hits back.
func (d *Server) mayRefund(ctx context.Context) bool {
	token := ""
	if values := metadata.ValueFromIncomingContext(ctx, "authorization"); len(values) == 1 {
		token = auth.BearerToken(values[0])
	}
	return d.engine.MayRefund(peerAddr(ctx), token)
}

// peerAddr returns the address of the caller, or the zero Addr if gRPC does not know it.
func peerAddr(ctx context.Context) netip.Addr {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	return auth.PeerAddr(p.Addr)
}

// statusOf returns an error as gRPC tells it. What has no code of its own is
// UNKNOWN, which is what Envoy's own service says of everything.
func statusOf(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case errors.Is(err, engine.ErrTooManyDescriptors):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, rlsproto.ErrRefundForbidden):
		return status.Error(codes.PermissionDenied, err.Error())
	case isInvalidRequest(err):
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return status.Error(codes.Unknown, err.Error())
}

// isInvalidRequest reports whether an error is about the request.
func isInvalidRequest(err error) bool {
	return slices.ContainsFunc([]error{
		rlsproto.ErrMalformed, rlsproto.ErrBadOverride, penstock.ErrBadLimit, penstock.ErrBadCost, penstock.ErrBadKey,
	}, func(bad error) bool { return errors.Is(err, bad) })
}

// A codec leaves the messages of a call as they are, for the handler to read and
// write. All others, of health checks and reflection, are generated ones.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if r, ok := v.(encodedResponse); ok {
		return mem.BufferSlice{mem.SliceBuffer(r)}, nil
	}
	return c.CodecV2.Marshal(v)
}

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
