package grpclimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/internal/address"
	"github.com/penstock-io/penstock/internal/charge"
)

// UnaryServer returns an interceptor that charges each unary call to its client
// and denies those over the limit. A call that a leaky bucket delays is held for
// that long. The limiter must not be nil, unless Options.LimiterFor chooses one
// for each call, or Options.Rules do.
//
// Under a [penstock.Concurrent] limit, a call holds a permit until its handler has returned
// or panicked, and its context ends if the permit is lost. Such a limiter, also
// one that LimiterFor returns, cannot have Additional.
func UnaryServer(lim *penstock.Limiter, o *Options) grpc.UnaryServerInterceptor {
	p := newProtection(lim, o)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		within, release, err := p.enter(ctx, Call{Method: info.FullMethod, Message: req}, func(md metadata.MD) { _ = grpc.SetTrailer(ctx, md) })
		if err != nil {
			return nil, err
		}
		if release != nil {
			defer release()
		}
		return handler(within, req)
	}
}

// StreamServer returns an interceptor that charges each streaming call once, when
// it begins; otherwise it works like [UnaryServer].
func StreamServer(lim *penstock.Limiter, o *Options) grpc.StreamServerInterceptor {
	p := newProtection(lim, o)
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		ctx, release, err := p.enter(ss.Context(), Call{Method: info.FullMethod}, ss.SetTrailer)
		if err != nil {
			return err
		}
		if release != nil {
			defer release()
			ss = &heldStream{ss, ctx}
		}
		return handler(srv, ss)
	}
}

// MessageServer returns an interceptor that charges each message that a client
// sends in a streaming call. A denied message ends the call. A leaky bucket
// delays the client instead, as long as its queue has room.
func MessageServer(lim *penstock.Limiter, o *Options) grpc.StreamServerInterceptor {
	p := newProtection(lim, o)
	p.guard.NoPermits = true
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		m := &meteredStream{ServerStream: ss, protection: p, method: info.FullMethod}
		err := handler(srv, m)
		if denied := m.denied.Load(); denied != nil {
			return *denied // even if the handler ignored it
		}
		return err
	}
}

// A meteredStream charges for received messages.
type meteredStream struct {
	grpc.ServerStream
	protection *protection
	method     string
	denied     atomic.Pointer[error] // set by another goroutine of the handler
}

// RecvMsg receives a message, and fails if it is over the limit.
func (s *meteredStream) RecvMsg(m any) error {
	if denied := s.denied.Load(); denied != nil {
		return *denied
	}
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	_, _, err := s.protection.enter(s.Context(), Call{Method: s.method, Message: m}, s.SetTrailer)
	if err != nil {
		s.denied.Store(&err)
	}
	return err
}

// A heldStream has the context of a permit.
type heldStream struct {
	grpc.ServerStream
	ctx context.Context
}

// Context returns the context of the permit.
func (s *heldStream) Context() context.Context { return s.ctx }

// A protection is the compiled options.
type protection struct {
	Options
	guard *charge.Guard[arrival, struct{}]
}

// An arrival is a call with its context, as limiters, keys and costs are chosen by.
type arrival struct {
	ctx  context.Context
	call Call
}

// A passage is what was decided about a call.
type passage = charge.Passage[arrival, struct{}]

// errPermitBesideOthers means that a call has a concurrent limit among others, or messages
// have one.
var errPermitBesideOthers = &codedError{codes.Internal, fmt.Errorf(
	"%w: a concurrent limit cannot have Additional, or limit messages: use two interceptors", penstock.ErrBadLimit)}

func newProtection(lim *penstock.Limiter, o *Options) *protection {
	o = cmp.Or(o, &Options{})
	resolver := address.NewResolver(o.Proxies, o.IPv6Prefix)
	g := &charge.Guard[arrival, struct{}]{
		Package: "grpclimit", PermitsAlone: errPermitBesideOthers,
		Address: func(a arrival) string { return addressOf(a.ctx, resolver, len(o.Proxies) > 0) },
		Extra:   func(int, string) (none struct{}) { return none },
		Rules:   o.Rules.compile(o), Skip: ofArrival(o.Skip), Shadow: o.Shadow != nil,
	}
	for _, c := range charges(lim, o) {
		g.Charges = append(g.Charges, charge.Charge[arrival]{
			Limiter: c.Limiter, LimiterFor: ofArrival(c.LimiterFor), Key: ofArrival(c.Key), Cost: ofArrival(c.Cost),
		})
	}
	if o.OnError != nil {
		g.OnError = func(a arrival, err error) { o.OnError(a.ctx, a.call, err) }
	}
	if o.Unavailable != nil {
		g.Unavailable = func(a arrival, err error) error { return o.Unavailable(a.ctx, a.call, err) }
	}
	return &protection{Options: *o, guard: g.Prepare()}
}

// charges returns the charges of the options: none if there are rules.
func charges(lim *penstock.Limiter, o *Options) []Charge {
	if o.Rules == nil {
		return append([]Charge{{Limiter: lim, LimiterFor: o.LimiterFor, Key: o.Key, Cost: o.Cost}}, o.Additional...)
	}
	if lim != nil || o.LimiterFor != nil || o.Key != nil || o.Additional != nil {
		panic("grpclimit: rules and a limiter, or Key: use two interceptors") //nolint:forbidigo // no error to return
	}
	return nil
}

func ofArrival[T any](f func(context.Context, Call) T) func(arrival) T {
	if f == nil {
		return nil
	}
	return func(a arrival) T { return f(a.ctx, a.call) }
}

// enter returns the context in which a call may go on, after its delay. If the call holds a permit,
// release is not nil and must be called.
func (p *protection) enter(ctx context.Context, call Call, setTrailer func(metadata.MD)) (within context.Context, release func(), err error) {
	var decided passage
	err = p.guard.Enter(ctx, arrival{ctx, call}, &decided)
	switch {
	case errors.Is(err, penstock.ErrBadCost), err != nil && errors.Is(err, ctx.Err()):
		err = asStatus(err)
	case err != nil && p.Unavailable == nil && errors.Is(err, penstock.ErrBusy):
		err = ServiceUnavailable(ctx, call, err)
	case err != nil: // has a code, or is the one that Unavailable returned
	case decided.Denied && p.Shadow != nil:
		p.Shadow(ctx, call, answers(&decided))
	case decided.Denied:
		err = p.deny(ctx, call, answers(&decided), setTrailer)
	}
	return decided.Context, decided.Release, err
}

func addressOf(ctx context.Context, resolver *address.Resolver, proxied bool) string {
	from, ok := peer.FromContext(ctx)
	if !ok || from.Addr == nil {
		return ""
	}
	var forwarded []string
	if proxied {
		forwarded = metadata.ValueFromIncomingContext(ctx, "x-forwarded-for")
	}
	return resolver.Key(from.Addr.String(), forwarded)
}

func (p *protection) deny(ctx context.Context, call Call, answers []httplimit.Answer, setTrailer func(metadata.MD)) error {
	setTrailer(pushback(retryAfter(answers)))
	if p.Instead != nil {
		if err := p.Instead(ctx, call, answers); err != nil {
			return err
		}
	}
	return Denial(answers)
}

func answers(decided *passage) []httplimit.Answer {
	return charge.AppendAnswers([]httplimit.Answer(nil), decided)
}
