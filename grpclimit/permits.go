package grpclimit

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

// isConcurrent reports whether a limiter has permits. They are held by one interceptor
// each.
func isConcurrent(lim *penstock.Limiter, o *Options) bool {
	if lim == nil || lim.Limit().Algorithm != penstock.Concurrent {
		return false
	}
	if o != nil && (o.LimiterFor != nil || len(o.Additional) > 0) {
		panic("grpclimit: a concurrent limit cannot have LimiterFor or Additional: use two interceptors") //nolint:forbidigo // no error to return, and no limit would be worse
	}
	return true
}

// acquire returns the context in which a call may go on, and releases its permit with
// release. Without a permit the context is the caller's.
func (p *protection) acquire(ctx context.Context, call Call, setTrailer func(metadata.MD)) (_ context.Context, release func(), err error) {
	free := func() {}
	if p.Skip != nil && p.Skip(ctx, call) {
		return ctx, free, nil
	}
	c := &p.fixed.charges[0]
	part := charge.Part{Key: p.keyOf(ctx, call, c), Cost: 1}
	if c.Cost != nil {
		part.Cost = c.Cost(ctx, call)
	}
	var permit *penstock.Permit
	err = errUnknownClient
	if part.Key != "" {
		permit, part.Decision, err = c.Limiter.AcquireN(ctx, part.Key, part.Cost)
	}
	switch {
	case err != nil:
		return ctx, free, p.fail(ctx, call, p.fixed, nil, p.fixed.now(), err)
	case permit != nil:
		return permit.Context(), permit.Release, nil
	case p.Shadow != nil:
		p.Shadow(ctx, call, p.fixed.answers([]charge.Part{part}))
		return ctx, free, nil
	}
	return ctx, free, p.deny(ctx, call, p.fixed.answers([]charge.Part{part}), setTrailer)
}

// A heldStream has the context of a permit.
type heldStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the context of the permit.
func (s *heldStream) Context() context.Context { return s.ctx }

func holdUnary(p *protection) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		call := Call{Method: info.FullMethod, Message: req}
		ctx, release, err := p.acquire(ctx, call, func(md metadata.MD) { _ = grpc.SetTrailer(ctx, md) })
		if err != nil {
			return nil, err
		}
		defer release()
		return handler(ctx, req)
	}
}

func holdStream(p *protection) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, release, err := p.acquire(ss.Context(), Call{Method: info.FullMethod}, ss.SetTrailer)
		if err != nil {
			return err
		}
		defer release()
		return handler(srv, &heldStream{ss, ctx})
	}
}
