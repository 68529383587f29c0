// Package rlsproto is Envoy's rate limit protocol, version 3, without anything that
// carries it: what a request asks of the judge, and how the verdict is told, in
// the binary form that gRPC carries and in JSON.
//
// A door keeps a [Service] and calls [Service.HandleJSON] with the body of a
// request. The gRPC door, which is to be fast, does the steps of that by itself:
// [Request.Unmarshal] into a [Call] that it uses again, [Service.Answer], and
// [Response.Append].
package rlsproto

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/server/engine"
)

// The reasons for which a request goes undecided, besides the judge's.
var (
	ErrMalformed       = errors.New("malformed rate limit request")
	ErrBadOverride     = errors.New("bad rate limit override")
	ErrRefundForbidden = errors.New("giving hits back needs the token, or a caller on this machine")
)

// Options configure how verdicts are told.
type Options struct {
	// Headers has answers carry three headers for Envoy to add to its response:
	// the limit, what remains of it, and the seconds until it is reset.
	Headers bool

	// The names of those headers. Default: RateLimit-Limit, RateLimit-Remaining and
	// RateLimit-Reset.
	LimitHeader, RemainingHeader, ResetHeader string

	// DynamicMetadata has answers carry the request and the metadata of the rules
	// that let it pass.
	DynamicMetadata bool

	// Now is the clock, for tests, which tells when a window ends that nobody has
	// taken anything from yet. Default: the machine's.
	Now func() time.Time
}

// A Service answers requests by a judge's verdict. It is safe for concurrent use.
type Service struct {
	engine   *engine.Engine
	options Options
}

// New returns a service. Nil options are all defaults.
func New(j *engine.Engine, o *Options) *Service {
	s := &Service{engine: j}
	if o != nil {
		s.options = *o
	}
	setDefault(&s.options.LimitHeader, "RateLimit-Limit")
	setDefault(&s.options.RemainingHeader, "RateLimit-Remaining")
	setDefault(&s.options.ResetHeader, "RateLimit-Reset")
	if s.options.Now == nil {
		s.options.Now = time.Now
	}
	return s
}

func setDefault(name *string, value string) {
	if *name == "" {
		*name = value
	}
}

// A Call is a request and the answer to it. It can be used again, which saves
// allocations.
type Call struct {
	Request  Request
	Response Response

	descriptors   []engine.Descriptor
	result engine.Result
}

// Handle decides the request of a call, and writes the response. Only a caller
// who may undo, which [engine.Judge.MayUndo] tells, may give hits back.
func (s *Service) Handle(ctx context.Context, c *Call, mayUndo bool) error {
	if !mayUndo && c.Request.HasRefund() {
		return ErrRefundForbidden
	}
	if err := c.buildDescriptors(); err != nil {
		return err
	}
	if err := s.engine.Decide(ctx, c.Request.Domain, c.descriptors, &c.result); err != nil {
		return err
	}
	s.buildResponse(c)
	return nil
}

// buildDescriptors turns the request into descriptors for the judge.
func (c *Call) buildDescriptors() error {
	c.descriptors = c.descriptors[:0]
	for i := range c.Request.Descriptors {
		d := &c.Request.Descriptors[i]
		asked := engine.Descriptor{Entries: d.Entries, Cost: c.Request.cost(d)}
		if d.HasLimit {
			if err := d.Limit.apply(&asked); err != nil {
				return fmt.Errorf("%w: descriptor %d: %w", ErrBadOverride, i, err)
			}
		}
		c.descriptors = append(c.descriptors, asked)
	}
	return nil
}
