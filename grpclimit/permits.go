package grpclimit

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/charge"
)

// errPermitBesideOthers means that a call has a concurrent limit among others, or messages
// have one.
var errPermitBesideOthers = fmt.Errorf(
	"%w: a concurrent limit cannot have Additional, or limit messages: use two interceptors", penstock.ErrBadLimit)

// checkPermits panics if a concurrent limit is among others, for all calls.
func checkPermits(given []Charge) {
	for _, c := range given {
		if charge.IsConcurrent(c.Limiter) && len(given) > 1 {
			panic("grpclimit: " + errPermitBesideOthers.Error()) //nolint:forbidigo // no error to return, and no limit would be worse
		}
	}
}

// enter returns the context in which a call may go on. If the call holds a permit, release is
// not nil and must be called.
func (p *protection) enter(ctx context.Context, call Call, setTrailer func(metadata.MD)) (within context.Context, release func(), err error) {
	if p.Skip != nil && p.Skip(ctx, call) {
		return ctx, nil, nil
	}
	l := p.chargesFor(ctx, call)
	switch {
	case !l.permits:
		return ctx, nil, p.admitTo(ctx, call, l, setTrailer)
	case len(l.charges) > 1:
		return ctx, nil, p.misused(ctx, call)
	}
	return p.acquire(ctx, call, l, setTrailer)
}

// misused returns the error of a call whose limits cannot be combined.
func (p *protection) misused(ctx context.Context, call Call) error {
	p.report(ctx, call, errPermitBesideOthers)
	return &codedError{codes.Internal, errPermitBesideOthers}
}

// acquire acquires a permit for a call.
func (p *protection) acquire(ctx context.Context, call Call, l *chargeList, setTrailer func(metadata.MD)) (within context.Context, release func(), err error) {
	c := &l.charges[0]
	part := charge.Part{Key: p.keyOf(ctx, call, c), Cost: 1}
	if c.Cost != nil {
		part.Cost = c.Cost(ctx, call)
	}
	err = errUnknownClient
	switch {
	case part.Cost == 0:
		return ctx, nil, nil
	case part.Key != "":
		within, release, part.Decision, err = charge.Acquire(ctx, c.Limiter, part.Key, part.Cost)
	}
	switch {
	case err != nil:
		return ctx, nil, p.fail(ctx, call, l, nil, l.now(), err)
	case release != nil && p.Shadow != nil:
		return ctx, release, nil // which enforces nothing, also if the permit is lost
	case release != nil:
		return within, release, nil
	case p.Shadow != nil:
		p.Shadow(ctx, call, l.answers([]charge.Part{part}))
		return ctx, nil, nil
	}
	return ctx, nil, p.deny(ctx, call, l.answers([]charge.Part{part}), setTrailer)
}

// A heldStream has the context of a permit.
type heldStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the context of the permit.
func (s *heldStream) Context() context.Context { return s.ctx }
