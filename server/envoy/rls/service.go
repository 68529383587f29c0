package rls

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/penstock-io/penstock/server/internal/tracing"
)

// Errors for requests that are not decided. The engine has more.
var (
	ErrMalformed       = errors.New("malformed rate limit request")
	ErrBadOverride     = errors.New("bad rate limit override")
	ErrRefundForbidden = errors.New("refunding hits needs the token, or if the server has none, a direct caller on its machine")
)

// ReasonOf is [requestlog.ReasonOf] for the errors of this package too.
func ReasonOf(err error) requestlog.Reason {
	switch {
	case errors.Is(err, ErrMalformed):
		return requestlog.Malformed
	case errors.Is(err, ErrBadOverride):
		return requestlog.BadLimit
	case errors.Is(err, ErrRefundForbidden):
		return requestlog.Forbidden
	}
	return requestlog.ReasonOf(err)
}

// ServiceOptions configure a [Service]. The zero value has all defaults.
type ServiceOptions struct {
	// Headers adds three headers for Envoy to add to its own response: the limit,
	// what remains of it, and the seconds until it is reset. Default: none.
	Headers bool

	// The names of those headers. Default: RateLimit-Limit, RateLimit-Remaining and
	// RateLimit-Reset.
	LimitHeader, RemainingHeader, ResetHeader string

	// The names of the same headers for Envoy to add to the request. Default: none.
	RequestHeaders [3]string

	// DynamicMetadata adds the request and the metadata of the rules that allowed
	// it. Default: none.
	DynamicMetadata bool

	// AsRatelimit makes it that of envoyproxy/ratelimit, which does not tell where decisions come
	// from, and loses the metadata of rules whose metrics tell values.
	AsRatelimit bool

	// CalendarMonth is for overrides: [rules.CalendarMonth].
	CalendarMonth bool

	// ObserveLatency is called with the context and the duration of each call. It is called
	// concurrently, and must not block. Default: none.
	ObserveLatency func(context.Context, time.Duration)

	// Tracer traces calls over gRPC. Default: none are.
	Tracer *tracing.Tracer

	// Requests logs invalid calls and denials. Default: none are.
	Requests *requestlog.Log

	// Audit records refunds, done or refused. Default: none are.
	Audit *audit.Log

	// Now is the clock from which the end of an unused window is computed, for
	// tests. Default: time.Now.
	Now func() time.Time
}

// A Service answers rate limit requests with an engine's results: over gRPC as part of a [Server],
// and as the handler of /json. It is safe for concurrent use.
type Service struct {
	engine  *engine.Engine
	options ServiceOptions
}

// NewService returns a service. Nil options are all defaults.
func NewService(e *engine.Engine, o *ServiceOptions) *Service {
	s := &Service{engine: e, options: *cmp.Or(o, &ServiceOptions{})}
	s.options.LimitHeader = cmp.Or(s.options.LimitHeader, "RateLimit-Limit")
	s.options.RemainingHeader = cmp.Or(s.options.RemainingHeader, "RateLimit-Remaining")
	s.options.ResetHeader = cmp.Or(s.options.ResetHeader, "RateLimit-Reset")
	if s.options.Now == nil {
		s.options.Now = time.Now
	}
	return s
}

// A Call is a request and its response. Reusing one saves allocations.
type Call struct {
	Request  Request
	Response Response

	// ForbiddenRefunds is how many descriptors refund hits though the caller may not.
	ForbiddenRefunds int

	request     []byte // in binary form; the strings of Request share its memory
	response    []byte
	descriptors []engine.Descriptor
	result      engine.Result
}

// A Caller is what the transport knows about the caller of a request. The functions are
// called only if it matters: for a request with an override, or for one that refunds hits.
type Caller struct {
	MayRefund func() bool        // see [engine.Engine.MayRefund]
	Entry     func() audit.Entry // with all but the action and the target
}

// observe records the time of a call that began at start.
func (s *Service) observe(ctx context.Context, start time.Time) {
	if s.options.ObserveLatency != nil {
		s.options.ObserveLatency(ctx, time.Since(start))
	}
}

// Handle decides the request of a call and fills in the response. A descriptor that refunds
// hits though the caller may not has the code UNKNOWN; if the request has no other, Handle
// returns ErrRefundForbidden.
func (s *Service) Handle(ctx context.Context, c *Call, caller Caller) error {
	if c.ForbiddenRefunds = c.Request.forbidRefunds(s.hasID(c.Request.Domain), caller.MayRefund); c.ForbiddenRefunds > 0 {
		s.options.Audit.RefuseAll(caller.Entry().OfDescriptors(c.Request.Domain, c.Request.forbidden()), ErrRefundForbidden.Error())
	}
	if c.ForbiddenRefunds > 0 && c.ForbiddenRefunds == len(c.Request.Descriptors) {
		return ErrRefundForbidden
	}
	if err := s.buildDescriptors(c, caller.MayRefund); err != nil {
		return err
	}
	if err := s.decide(ctx, c, caller); err != nil {
		return err
	}
	s.options.Requests.DeniedByRules(c.descriptors, &c.result)
	s.buildResponse(c)
	return nil
}

// handleEncoded decodes the request of a call, and handles it.
func (s *Service) handleEncoded(ctx context.Context, c *Call, caller Caller) error {
	if err := c.Request.Unmarshal(c.request, s.engine.MaxDescriptors(), s.engine.MaxEntries()); err != nil {
		return err
	}
	return s.Handle(ctx, c, caller)
}

// hasID returns whether a descriptor has the ID of a permit of the domain.
func (s *Service) hasID(domain string) func([]rules.Entry) bool {
	return func(entries []rules.Entry) bool { return s.engine.HasID(domain, entries) }
}

// refunds reports whether a descriptor refunds hits.
func (c *Call) refunds() bool {
	for i := range c.descriptors {
		if c.descriptors[i].Cost < 0 && !c.descriptors[i].ReleaseOnly {
			return true
		}
	}
	return false
}

// cannotHold are the terms of Envoy, which cannot hold a request.
var cannotHold = engine.Terms{MaxDelay: engine.NoDelay}

// decide decides the request, with a record in the audit log if it refunds hits.
func (s *Service) decide(ctx context.Context, c *Call, caller Caller) error {
	if !c.refunds() {
		return s.engine.DecideOn(ctx, c.Request.Domain, cannotHold, c.descriptors, &c.result)
	}
	ps, err := s.options.Audit.BeginAll(caller.Entry().OfDescriptors(c.Request.Domain, c.descriptors))
	if err != nil {
		return err
	}
	err = s.engine.DecideOn(ctx, c.Request.Domain, cannotHold, c.descriptors, &c.result)
	audit.ReturnAll(ps, c.descriptors, &c.result, err)
	return err
}

// buildDescriptors turns the descriptors of the request into the engine's. One that is
// forbidden has no entries, so that no rule matches it.
func (s *Service) buildDescriptors(c *Call, mayRefund func() bool) error {
	c.descriptors = c.descriptors[:0]
	for i := range c.Request.Descriptors {
		d := &c.Request.Descriptors[i]
		descriptor := engine.Descriptor{Entries: d.Entries, Cost: c.Request.cost(d), DenyInDebt: true, ReleaseOnly: d.releases}
		if d.forbidden {
			descriptor = engine.Descriptor{Void: true}
		} else if d.HasLimit {
			own, err := s.ownLimit(i, d, mayRefund)
			if err != nil {
				return err
			}
			descriptor.Own = own
		}
		c.descriptors = append(c.descriptors, descriptor)
	}
	return nil
}

// ownLimit returns the limit that a descriptor brings, if the caller may bring one.
func (s *Service) ownLimit(i int, d *Descriptor, mayRefund func() bool) (*engine.OwnLimit, error) {
	own, err := d.Limit.ownLimit()
	if err != nil {
		return nil, fmt.Errorf("%w: descriptor %d: %w", ErrBadOverride, i, err)
	}
	if err := s.engine.RequestLimits().Refuse(s.engine.RequestLimits().ModeRefusal(), mayRefund); err != nil {
		return nil, fmt.Errorf("descriptor %d: %w", i, err)
	}
	if s.options.CalendarMonth {
		own.Limit = rules.CalendarMonth(own.Limit)
	}
	own.MayRefund = mayRefund()
	return own, nil
}
