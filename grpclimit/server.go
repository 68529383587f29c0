package grpclimit

import (
	"context"
	"errors"
	"fmt"
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
	given    []Charge
	fixed    *chargeList // nil if a limiter depends on the call
	chosen   charge.Cache[chargeList]
	errorLog *lograte.Sampler
	resolver *address.Resolver
}

func newProtection(lim *penstock.Limiter, o *Options) *protection {
	if o == nil {
		o = &Options{}
	}
	first := Charge{Limiter: lim, LimiterFor: o.LimiterFor, Key: o.Key, Cost: o.Cost}
	p := &protection{
		Options: *o, given: append([]Charge{first}, o.Additional...), errorLog: lograte.PerSecond(),
		resolver: address.NewResolver(o.Proxies, o.IPv6Prefix),
	}
	checkPermits(p.given)
	limiters, fixed := make([]*penstock.Limiter, len(p.given)), true
	for i, c := range p.given {
		if c.Limiter == nil && c.LimiterFor == nil {
			panic("grpclimit: no limiter: want one, or LimiterFor") //nolint:forbidigo // no error to return, and no limit would be worse
		}
		limiters[i], fixed = c.Limiter, fixed && c.LimiterFor == nil
	}
	if fixed {
		p.fixed = newChargeList(p.given, limiters)
	}
	return p
}

// chargesFor returns the charges of a call.
func (p *protection) chargesFor(ctx context.Context, call Call) *chargeList {
	if p.fixed != nil {
		return p.fixed
	}
	var room [inlineParts]*penstock.Limiter
	limiters := room[:0]
	for i := range p.given {
		limiters = append(limiters, p.given[i].limiterOf(ctx, call))
	}
	list := p.chosen.Get(limiters)
	if list == nil {
		list = newChargeList(p.given, limiters)
		p.chosen.Put(limiters, list)
	}
	return list
}

// limiterOf returns the limiter that a call is charged to, or nil.
func (c *Charge) limiterOf(ctx context.Context, call Call) *penstock.Limiter {
	if c.LimiterFor != nil {
		if lim := c.LimiterFor(ctx, call); lim != nil {
			return lim
		}
	}
	return c.Limiter
}

// A chargeList is the charges of a call, in the order in which they are taken.
type chargeList struct {
	charges []Charge
	names   []string // of the limits
	set     *charge.Set
	permits bool // calls hold permits of one of the limiters
}

// newChargeList prepares charges to the limiters, without those whose limiter is
// nil.
func newChargeList(given []Charge, limiters []*penstock.Limiter) *chargeList {
	set, order := charge.NewSet(limiters)
	l := &chargeList{set: set}
	for _, i := range order {
		c := given[i]
		c.Limiter = limiters[i]
		limit := c.Limiter.Limit()
		name := limit.Name
		if name == "" {
			name = limit.String()
		}
		l.charges, l.names = append(l.charges, c), append(l.names, name)
	}
	l.permits = set.HasPermits()
	return l
}

// inlineParts is how many charges fit on the stack.
const inlineParts = 4

// admit returns nil when the call may go on, after its delay.
func (p *protection) admit(ctx context.Context, call Call, setTrailer func(metadata.MD)) error {
	if p.Skip != nil && p.Skip(ctx, call) {
		return nil
	}
	l := p.chargesFor(ctx, call)
	if l.permits {
		return p.misused(ctx, call)
	}
	return p.admitTo(ctx, call, l, setTrailer)
}

// admitTo is admit with the charges of the call.
func (p *protection) admitTo(ctx context.Context, call Call, l *chargeList, setTrailer func(metadata.MD)) error {
	var room [inlineParts]charge.Part
	parts := append(room[:0], make([]charge.Part, len(l.charges))...)
	began := l.now()
	decided, allowed, err := p.take(ctx, call, l, parts)
	if allowed && err != nil {
		return p.fail(ctx, call, l, parts[:decided], began, err)
	}
	p.report(ctx, call, err) // a denial whose refund failed
	switch {
	case p.Shadow != nil:
		if !allowed {
			p.Shadow(ctx, call, l.answers(parts[:decided]))
		}
		return nil
	case !allowed:
		return p.deny(ctx, call, l.answers(parts[:decided]), setTrailer)
	}
	return l.hold(ctx, parts)
}

// hold waits for the call's delay.
func (l *chargeList) hold(ctx context.Context, parts []charge.Part) error {
	if err := l.set.Hold(ctx, parts); err != nil {
		return asStatus(err)
	}
	return nil
}

// now returns the time if a later refund needs it.
func (l *chargeList) now() (t time.Time) {
	if len(l.charges) > 1 {
		t = time.Now()
	}
	return t
}

// take determines key and cost for each limiter, and takes.
func (p *protection) take(ctx context.Context, call Call, l *chargeList, parts []charge.Part) (decided int, allowed bool, err error) {
	for i := range l.charges {
		c := &l.charges[i]
		if parts[i].Key = p.keyOf(ctx, call, c); parts[i].Key == "" {
			return 0, true, errUnknownClient
		}
		parts[i].Cost = 1
		if c.Cost != nil {
			parts[i].Cost = c.Cost(ctx, call)
		}
	}
	return l.set.Take(ctx, parts)
}

// errUnknownClient means that a call has neither a key nor a client address.
// Charging all such calls to one key would let one client block the others.
var errUnknownClient = fmt.Errorf("grpclimit: %w: neither a key nor the client's address is known", penstock.ErrBadKey)

// keyOf returns the key to charge, or "" if neither a key nor the client's address is known.
func (p *protection) keyOf(ctx context.Context, call Call, c *Charge) string {
	if c.Key == nil {
		return p.addressOf(ctx)
	}
	if key := c.Key(ctx, call); charge.IsKey(key) {
		return key
	}
	return charge.AddressKey(p.addressOf(ctx))
}

func (p *protection) addressOf(ctx context.Context) string {
	from, ok := peer.FromContext(ctx)
	if !ok || from.Addr == nil {
		return ""
	}
	var forwarded []string
	if len(p.Proxies) > 0 {
		forwarded = metadata.ValueFromIncomingContext(ctx, "x-forwarded-for")
	}
	return p.resolver.Key(from.Addr.String(), forwarded)
}

// fail handles a call that not all limiters could decide. If it passes, it stays
// charged to those that could: a limit in memory must not fail with a remote
// store. A call that its client has cancelled does not pass; otherwise cancelling
// calls would bypass the limits of a slow store.
func (p *protection) fail(ctx context.Context, call Call, l *chargeList, granted []charge.Part, since time.Time, err error) error {
	p.report(ctx, call, err)
	if p.Shadow != nil {
		return nil
	}
	refusal := p.refusal(ctx, call, err)
	if refusal == nil {
		return l.hold(ctx, granted)
	}
	p.report(ctx, call, l.set.Refund(ctx, granted, since))
	return refusal
}

// refusal returns the error of an undecided call, or nil if it passes.
func (p *protection) refusal(ctx context.Context, call Call, err error) error {
	switch {
	case errors.Is(err, penstock.ErrBadCost):
		return asStatus(err)
	case ctx.Err() != nil:
		return asStatus(ctx.Err())
	case p.Unavailable != nil:
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

func (l *chargeList) answers(parts []charge.Part) []httplimit.Answer {
	answers := make([]httplimit.Answer, len(parts))
	for i := range parts {
		answers[i] = httplimit.Answer{
			Policy: l.names[i], Limit: l.charges[i].Limiter.Limit(), Decision: parts[i].Decision, Cost: parts[i].Cost,
		}
	}
	return answers
}
