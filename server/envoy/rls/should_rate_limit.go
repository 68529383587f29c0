package rls

import (
	"context"
	"crypto/tls"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/callers"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/requestlog"
)

// serviceDesc describes Envoy's service like the generated code, but with a handler
// that decodes and encodes messages itself.
var serviceDesc = grpc.ServiceDesc{
	ServiceName: "envoy.service.ratelimit.v3.RateLimitService",
	HandlerType: (*any)(nil), // the handler asserts the type
	Methods:     []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: shouldRateLimit}},
	Metadata:    "envoy/service/ratelimit/v3/rls.proto",
}

const fullMethod = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"

// Calls of ShouldRateLimit are pooled.
var callPool = sync.Pool{New: func() any { return &Call{} }}

// maxPooledBytes is the largest message buffer that is kept for reuse.
const maxPooledBytes = 16 << 10

func (c *Call) release() {
	if cap(c.request) <= maxPooledBytes && cap(c.response) <= maxPooledBytes {
		callPool.Put(c)
	}
}

// An encodedResponse is a response in binary form.
type encodedResponse []byte

// shouldRateLimit is gRPC's handler of ShouldRateLimit.
func shouldRateLimit(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) { //nolint:revive // gRPC has the context second
	s := srv.(*Server)
	start := time.Now()
	if s.options.Tracer != nil {
		defer s.options.Tracer.SpanOf(ctx).End()
	}
	defer s.observe(ctx, start)
	return s.handle(ctx, decode)
}

// handle decodes, decides and encodes a call.
func (s *Server) handle(ctx context.Context, decode func(any) error) (response any, err error) {
	c := callPool.Get().(*Call)
	defer func() {
		if p := recover(); p != nil {
			s.options.Requests.Panicked(p, peerOf(ctx))
			response, err = nil, errPanicked
			return // what panicked may still use the call
		}
		c.release()
	}()
	if err := decode(c); err != nil {
		if status.Code(err) == codes.ResourceExhausted { // longer than MaxMessageBytes
			s.logInvalid(ctx, requestlog.TooLarge, err)
		}
		return nil, err
	}
	if err := s.decide(ctx, c); err != nil {
		s.logInvalid(ctx, ReasonOf(err), err)
		return nil, statusOf(ctx, err)
	}
	c.response = c.Response.Append(c.response[:0])
	return encodedResponse(slices.Clone(c.response)), nil
}

// errPanicked is the result of a call whose store or handler panicked, which would otherwise end the
// process.
var errPanicked = status.Error(codes.Internal, "internal error")

// logInvalid logs a call that makes no sense. Without a reason, the call is not at fault.
func (s *Server) logInvalid(ctx context.Context, reason requestlog.Reason, err error) {
	s.options.Requests.Invalid(reason, err.Error(), peerOf(ctx))
}

// peerOf returns the address of the caller, or "".
func peerOf(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

func (s *Server) decide(ctx context.Context, c *Call) error {
	err := s.handleEncoded(ctx, c, Caller{
		MayRefund: func() bool { return s.mayRefund(ctx) },
		Entry:     func() audit.Entry { return s.entry(ctx) },
	})
	if err == nil && c.ForbiddenRefunds > 0 { // the others were decided
		s.logInvalid(ctx, requestlog.Forbidden, ErrRefundForbidden)
	}
	return err
}

// mayRefund reports whether the caller may refund hits.
func (s *Server) mayRefund(ctx context.Context) bool {
	return s.engine.MayRefund(callerOf(ctx))
}

// reasonField is the metadata field with the reason for a refund.
const reasonField = "penstock-reason"

// entry returns an entry of the audit log for a call.
func (s *Server) entry(ctx context.Context) audit.Entry {
	fields, _ := metadata.FromIncomingContext(ctx)
	e := audit.Entry{API: "grpc", Verb: "ShouldRateLimit", Reason: only(fields[reasonField])}
	var state *tls.ConnectionState
	p, ok := peer.FromContext(ctx)
	if !ok {
		return e
	}
	if secure, ok := p.AuthInfo.(credentials.TLSInfo); ok {
		state = &secure.State
	}
	e.Actor = auth.NewActor(s.engine.Identify(callerOf(ctx)), state)
	e.Actor.Address = p.Addr.String()
	return e
}

// callerOf returns the caller of a call.
func callerOf(ctx context.Context) callers.Caller {
	fields, _ := metadata.FromIncomingContext(ctx)
	c := callers.Caller{Token: auth.BearerToken(only(fields["authorization"]))}
	if p, ok := peer.FromContext(ctx); ok {
		c.Local, c.Address = auth.IsLocal(p.Addr, only(fields[":authority"]), fields), auth.PeerAddr(p.Addr)
	}
	return c
}

// only returns the value of a field that has exactly one, or "".
func only(values []string) string {
	if len(values) != 1 {
		return ""
	}
	return values[0]
}

// A codec passes the messages of ShouldRateLimit through as bytes, which
// request.go and response.go decode and encode. The messages of health checks and reflection are generated ones, and go
// to gRPC's own codec.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2(proto.Name)} }

func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*Call)
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
