package grpclimit

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

// errPermitBesideOthers means that a call has a concurrent limit among others, or messages
// have one.
var errPermitBesideOthers = &codedError{codes.Internal, fmt.Errorf(
	"%w: a concurrent limit cannot have Additional, or limit messages: use two interceptors", penstock.ErrBadLimit)}

// enter returns the context in which a call may go on. If the call holds a permit, release is
// not nil and must be called.
func (p *protection) enter(ctx context.Context, call Call, setTrailer func(metadata.MD)) (within context.Context, release func(), err error) {
	if p.Skip != nil && p.Skip(ctx, call) {
		return ctx, nil, nil
	}
	l := p.plan.For(arrival{ctx, call})
	if !l.Permits {
		return ctx, nil, p.admitTo(ctx, call, l, setTrailer)
	}
	return p.acquire(ctx, call, l, setTrailer)
}

// acquire acquires the permit of a call.
func (p *protection) acquire(ctx context.Context, call Call, l *chargeList, setTrailer func(metadata.MD)) (within context.Context, release func(), err error) {
	within, release, part, err := l.AcquirePermit(ctx, arrival{ctx, call})
	switch {
	case errors.Is(err, errPermitBesideOthers):
		p.report(ctx, call, err)
		return ctx, nil, err
	case err != nil:
		return ctx, nil, p.fail(ctx, call, l, []charge.Part{part}, 0, l.Now(), err)
	case release != nil && p.Shadow == nil:
		return within, release, nil
	case release != nil, part.Decision.Allowed: // Shadow enforces nothing, also if the permit is lost
		return ctx, release, nil
	case p.Shadow != nil:
		p.Shadow(ctx, call, answers(l, []charge.Part{part}))
		return ctx, nil, nil
	}
	return ctx, nil, p.deny(ctx, call, answers(l, []charge.Part{part}), setTrailer)
}

// A heldStream has the context of a permit.
type heldStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the context of the permit.
func (s *heldStream) Context() context.Context { return s.ctx }
