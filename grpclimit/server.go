package grpclimit

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/internal/address"
	"github.com/penstock-io/penstock/internal/charge"
	"github.com/penstock-io/penstock/internal/lograte"
)

// UnaryServer returns an interceptor that charges each unary call to its client
// and denies those over the limit. A call that a leaky bucket delays is held for
// that long. The limiter must not be nil, unless Options.LimiterFor chooses one
// for each call.
//
// Under a [penstock.Concurrent] limit, a call holds a permit until its handler has returned
// or panicked, and its context ends if the permit is lost. Such a limiter, also
// one that LimiterFor returns, cannot have Additional.
func UnaryServer(lim *penstock.Limiter, o *Options) grpc.UnaryServerInterceptor {
	p := newProtection(lim, o)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		call := Call{Method: info.FullMethod, Message: req}
		within, release, err := p.enter(ctx, call, func(md metadata.MD) { _ = grpc.SetTrailer(ctx, md) })
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
	err := s.protection.admit(s.Context(), Call{Method: s.method, Message: m}, s.SetTrailer)
	if err != nil {
		s.denied.Store(&err)
	}
	return err
}

// A protection is the compiled options.
type protection struct {
	Options
	plan     *charge.Plan[arrival, struct{}]
	errorLog *lograte.Sampler
}

// An arrival is a call with its context, as limiters, keys and costs are chosen by.
type arrival struct {
	ctx  context.Context
	call Call
}

// A chargeList is the charges of a call.
type chargeList = charge.List[arrival, struct{}]

func newProtection(lim *penstock.Limiter, o *Options) *protection {
	if o == nil {
		o = &Options{}
	}
	resolver := address.NewResolver(o.Proxies, o.IPv6Prefix)
	plan := &charge.Plan[arrival, struct{}]{
		Package: "grpclimit", PermitsAlone: errPermitBesideOthers,
		Address: func(a arrival) string { return addressOf(a.ctx, resolver, len(o.Proxies) > 0) },
		Extra:   func(int, string) (none struct{}) { return none },
	}
	first := Charge{Limiter: lim, LimiterFor: o.LimiterFor, Key: o.Key, Cost: o.Cost}
	for _, c := range append([]Charge{first}, o.Additional...) {
		plan.Charges = append(plan.Charges, charge.Charge[arrival]{
			Limiter: c.Limiter, LimiterFor: ofArrival(c.LimiterFor), Key: ofArrival(c.Key), Cost: ofArrival(c.Cost),
		})
	}
	return &protection{Options: *o, plan: plan.Prepare(), errorLog: lograte.PerSecond()}
}

func ofArrival[T any](f func(context.Context, Call) T) func(arrival) T {
	if f == nil {
		return nil
	}
	return func(a arrival) T { return f(a.ctx, a.call) }
}

// inlineParts is how many charges fit on the stack.
const inlineParts = 4

// admit returns nil when the call may go on, after its delay.
func (p *protection) admit(ctx context.Context, call Call, setTrailer func(metadata.MD)) error {
	if p.Skip != nil && p.Skip(ctx, call) {
		return nil
	}
	l := p.plan.For(arrival{ctx, call})
	if l.Permits {
		p.report(ctx, call, errPermitBesideOthers)
		return errPermitBesideOthers
	}
	return p.admitTo(ctx, call, l, setTrailer)
}

// admitTo is admit with the charges of the call.
func (p *protection) admitTo(ctx context.Context, call Call, l *chargeList, setTrailer func(metadata.MD)) error {
	var room [inlineParts]charge.Part
	parts := append(room[:0], make([]charge.Part, len(l.Items))...)
	began := l.Now()
	decided, allowed, err := l.Take(ctx, arrival{ctx, call}, parts)
	if allowed && err != nil {
		return p.fail(ctx, call, l, parts, decided, began, err)
	}
	p.report(ctx, call, err) // a denial whose refund failed
	switch {
	case p.Shadow != nil:
		if !allowed {
			p.Shadow(ctx, call, answers(l, parts[:decided]))
		}
		return nil
	case !allowed:
		return p.deny(ctx, call, answers(l, parts[:decided]), setTrailer)
	}
	return p.awaitDelay(ctx, call, l, parts)
}

// awaitDelay waits for the call's delay.
func (p *protection) awaitDelay(ctx context.Context, call Call, l *chargeList, parts []charge.Part) error {
	passed, err := l.AwaitDelay(ctx, parts)
	if p.report(ctx, call, err); !passed {
		return asStatus(ctx.Err())
	}
	return nil
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

// fail handles a call that not all limiters could decide. If it passes, it stays
// charged to those that could: a limit in memory must not fail with a remote
// store. One that costs nothing passes. A call that its client has cancelled does not pass; otherwise
// cancelling calls would bypass the limits of a slow store.
func (p *protection) fail(ctx context.Context, call Call, l *chargeList, parts []charge.Part, decided int, since time.Time, err error) error {
	p.report(ctx, call, err)
	if p.Shadow != nil {
		return nil
	}
	refusal := p.refusal(ctx, call, parts[decided:], err)
	if refusal == nil {
		return p.awaitDelay(ctx, call, l, parts[:decided])
	}
	p.report(ctx, call, l.Refund(ctx, parts[:decided], since))
	return refusal
}

// refusal returns the error of an undecided call, or nil if it passes.
func (p *protection) refusal(ctx context.Context, call Call, undecided []charge.Part, err error) error {
	switch {
	case errors.Is(err, penstock.ErrBadCost):
		return asStatus(err)
	case ctx.Err() != nil:
		return asStatus(ctx.Err())
	case p.Unavailable != nil && charge.Undecided(undecided):
		return p.Unavailable(ctx, call, err)
	}
	return nil
}

func (p *protection) report(ctx context.Context, call Call, err error) {
	switch {
	case err == nil:
	case p.OnError != nil:
		p.OnError(ctx, call, err)
	default:
		p.errorLog.LogError(ctx, err)
	}
}

func (p *protection) deny(ctx context.Context, call Call, answers []httplimit.Answer, setTrailer func(metadata.MD)) error {
	setTrailer(pushback(answers))
	if p.Instead != nil {
		if err := p.Instead(ctx, call, answers); err != nil {
			return err
		}
	}
	return Denial(answers)
}

func answers(l *chargeList, parts []charge.Part) []httplimit.Answer {
	answers := make([]httplimit.Answer, len(parts))
	for i := range parts {
		answers[i] = httplimit.Answer{
			Policy: l.Items[i].Name, Limit: l.Items[i].Limiter.Limit(), Decision: parts[i].Decision, Cost: parts[i].Cost,
		}
	}
	return answers
}
