package rls

import (
	"math"
	"strconv"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// A Response is Envoy's RateLimitResponse.
type Response struct {
	OverLimit bool
	Statuses  []Status // in the order of the descriptors
	Headers   []Header // for Envoy to add to its response
	Request   []Header // for Envoy to add to the request
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
	*r = Response{OverLimit: c.result.OverLimit, Statuses: r.Statuses[:0], Headers: r.Headers[:0], Request: r.Request[:0]}
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
	if closest := c.closest(); closest != nil && s.options.Headers {
		r.Headers = closest.appendHeaders(r.Headers, [3]string{s.options.LimitHeader, s.options.RemainingHeader, s.options.ResetHeader})
	}
	if closest := c.closest(); closest != nil && s.options.RequestHeaders != [3]string{} {
		r.Request = closest.appendHeaders(r.Request, s.options.RequestHeaders)
	}
	if s.options.DynamicMetadata {
		var domain *rules.Domain
		if s.options.AsRatelimit {
			domain = s.engine.Rules().Domain(c.Request.Domain)
		}
		r.Metadata = newMetadata(&c.Request, &c.result, domain)
	}
}

func (s *Service) statusOf(st *engine.Status) Status {
	switch {
	case st.Rule == nil, !engine.HasNumbers(&st.Decision):
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
	if after <= 0 && r.Limit.CanAlign() && r.Limit.Align != penstock.AlignFirst {
		now := s.options.Now()
		_, end := r.Limit.Window(now)
		after = end.Sub(now)
	}
	return max(int64((after+time.Second-1)/time.Second), 1)
}

// closest returns the status that headers are about: the one with the least remaining, or the
// last one over its limit. It is nil if there is no limit.
func (c *Call) closest() (closest *Status) {
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
	return closest
}

// appendHeaders appends headers of those names: the limit, what remains, and the seconds until the reset.
func (st *Status) appendHeaders(to []Header, names [3]string) []Header {
	return append(to,
		Header{names[0], strconv.FormatUint(uint64(st.Limit.RequestsPerUnit), 10)},
		Header{names[1], strconv.FormatUint(uint64(st.Remaining), 10)},
		Header{names[2], strconv.FormatInt(st.Reset, 10)})
}

// Append appends the response in protobuf's binary form.
func (r *Response) Append(buf []byte) []byte {
	buf = appendNumber(buf, 1, code(r.OverLimit))
	for i := range r.Statuses {
		buf = appendMessage(buf, 2, r.Statuses[i].append)
	}
	for i := range r.Headers {
		buf = appendMessage(buf, 3, r.Headers[i].append)
	}
	for i := range r.Request {
		buf = appendMessage(buf, 4, r.Request[i].append)
	}
	if r.Metadata != nil {
		// Marshal fails only for strings that are not UTF-8; newMetadata replaces those.
		data, _ := proto.Marshal(r.Metadata)
		buf = protowire.AppendBytes(protowire.AppendTag(buf, 6, protowire.BytesType), data)
	}
	return buf
}

// Envoy's codes of a response and of its statuses.
const (
	codeOK        = 1
	codeOverLimit = 2
)

func code(over bool) uint64 {
	if over {
		return codeOverLimit
	}
	return codeOK
}

// code is 0, UNKNOWN, for a descriptor that was not decided.
func (st *Status) code() uint64 {
	if st.Failed {
		return 0
	}
	return code(st.OverLimit)
}

func (st *Status) append(buf []byte) []byte {
	buf = appendNumber(buf, 1, st.code())
	if st.HasLimit {
		buf = appendMessage(buf, 2, st.Limit.append)
	}
	buf = appendNumber(buf, 3, uint64(st.Remaining))
	return appendWrapped(buf, 4, uint64(st.Reset))
}

func (l *Limit) append(buf []byte) []byte {
	buf = appendNumber(buf, 1, uint64(l.RequestsPerUnit))
	buf = appendNumber(buf, 2, uint64(l.Unit))
	buf = appendText(buf, 3, l.Name)
	return appendWrapped(buf, 4, uint64(l.UnitMultiplier))
}

func (h *Header) append(buf []byte) []byte {
	return appendText(appendText(buf, 1, h.Name), 2, h.Value)
}

// appendNumber appends a field unless it is zero, which proto3 omits.
func appendNumber(buf []byte, number protowire.Number, n uint64) []byte {
	if n == 0 {
		return buf
	}
	return protowire.AppendVarint(protowire.AppendTag(buf, number, protowire.VarintType), n)
}

func appendText(buf []byte, number protowire.Number, s string) []byte {
	if s == "" {
		return buf
	}
	return protowire.AppendString(protowire.AppendTag(buf, number, protowire.BytesType), s)
}

// appendWrapped appends a number in a wrapper message, unless it is zero: the seconds of a Duration,
// or an optional number.
func appendWrapped(buf []byte, number protowire.Number, n uint64) []byte {
	if n == 0 {
		return buf
	}
	buf = protowire.AppendTag(buf, number, protowire.BytesType)
	buf = append(buf, byte(protowire.SizeTag(1)+protowire.SizeVarint(n)))
	return appendNumber(buf, 1, n)
}

// appendMessage appends a message within a message. Its length is known once it is written, so the
// message moves if the length takes more than a byte.
func appendMessage(buf []byte, number protowire.Number, appendTo func([]byte) []byte) []byte {
	buf = append(protowire.AppendTag(buf, number, protowire.BytesType), 0)
	start := len(buf)
	buf = appendTo(buf)
	length := uint64(len(buf) - start)
	if more := protowire.SizeVarint(length) - 1; more > 0 {
		buf = append(buf, make([]byte, more)...)
		copy(buf[start+more:], buf[start:])
	}
	protowire.AppendVarint(buf[:start-1], length)
	return buf
}
