package rls

import (
	"math"
	"strconv"
	"time"

	"google.golang.org/protobuf/types/known/structpb"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
)

// A Response is Envoy's RateLimitResponse.
type Response struct {
	OverLimit bool
	Statuses  []Status // in the order of the descriptors
	Headers   []Header // for Envoy to add to its response
	Metadata  *structpb.Struct
}

// A Status is the outcome for one descriptor, Envoy's DescriptorStatus.
type Status struct {
	OverLimit bool
	Failed    bool // not decided, because the caller may not refund; the rest is zero
	Limit     Limit
	HasLimit  bool
	Remaining uint32
	Reset     int64 // in seconds; 0 without a limit
}

// A Limit is the limit that a descriptor was decided by.
type Limit struct {
	Name            string
	RequestsPerUnit uint32
	Unit            rules.Unit

	// UnitMultiplier is how many units the period has; 0 if the override had none.
	UnitMultiplier uint32
}

// A Header is a response header for Envoy to add.
type Header struct{ Name, Value string }

// buildResponse fills in the response from the engine's result.
func (s *Service) buildResponse(c *Call) {
	r := &c.Response
	r.OverLimit, r.Statuses, r.Headers, r.Metadata = c.result.OverLimit, r.Statuses[:0], r.Headers[:0], nil
	for i := range c.result.Statuses {
		st := s.statusOf(&c.result.Statuses[i])
		if c.Request.Descriptors[i].forbidden {
			st = Status{Failed: true}
		}
		if d := &c.Request.Descriptors[i]; st.HasLimit && d.Limit.HasUnitMultiplier {
			st.Limit.UnitMultiplier = d.Limit.UnitMultiplier
		}
		r.Statuses = append(r.Statuses, st)
	}
	if s.options.Headers {
		s.addHeaders(c)
	}
	if s.options.DynamicMetadata {
		r.Metadata = newMetadata(&c.Request, &c.result)
	}
}

func (s *Service) statusOf(st *engine.Status) Status {
	switch {
	case st.Rule == nil:
		return Status{OverLimit: st.OverLimit}
	case st.Rule.Unlimited:
		return Status{Remaining: math.MaxUint32}
	}
	out := Status{
		OverLimit: st.OverLimit,
		HasLimit:  true,
		Limit:     Limit{Name: st.Rule.Alias, RequestsPerUnit: st.Rule.RequestsPerUnit, Unit: st.Rule.Unit},
		Reset:     s.resetSeconds(st.Rule, &st.Decision),
	}
	if st.Decision.Allowed { // a denied descriptor of a shadow rule is not over, but has nothing left
		out.Remaining = uint32(min(max(st.Decision.Remaining, 0), math.MaxUint32))
	}
	return out
}

// resetSeconds returns the seconds until the limit is reset, rounded up, at least 1.
// For an idle key the store has nothing to reset; the response then has the end of
// the current window.
func (s *Service) resetSeconds(r *rules.Rule, d *penstock.Decision) int64 {
	after := d.ResetAfter
	if after <= 0 && r.Limit.Algorithm == penstock.FixedWindow && r.Limit.Align != penstock.AlignFirst {
		now := s.options.Now()
		_, end := r.Limit.Window(now)
		after = end.Sub(now)
	}
	return max(int64((after+time.Second-1)/time.Second), 1)
}

// addHeaders adds the headers for the descriptor with the least remaining, or for the
// last one over its limit.
func (s *Service) addHeaders(c *Call) {
	var closest *Status
	for i := range c.Response.Statuses {
		st := &c.Response.Statuses[i]
		switch {
		case !st.HasLimit:
		case st.OverLimit && !c.result.Statuses[i].Quota:
			closest = st
		case closest == nil || st.Remaining < closest.Remaining:
			closest = st
		}
	}
	if closest == nil {
		return
	}
	c.Response.Headers = append(c.Response.Headers,
		Header{s.options.LimitHeader, strconv.FormatUint(uint64(closest.Limit.RequestsPerUnit), 10)},
		Header{s.options.RemainingHeader, strconv.FormatUint(uint64(closest.Remaining), 10)},
		Header{s.options.ResetHeader, strconv.FormatInt(closest.Reset, 10)})
}
