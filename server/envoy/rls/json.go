package rls

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/penstock-io/penstock/server/requestlimits"
	"github.com/penstock-io/penstock/server/rules"
)

// HandleJSON decides a request in protobuf's JSON form and returns the response in the
// same form. An unknown field is an error. over reports whether the response is
// OVER_LIMIT.
func (s *Service) HandleJSON(ctx context.Context, body []byte, caller Caller) (response []byte, over bool, err error) {
	var message pb.RateLimitRequest
	if err := protojson.Unmarshal(body, &message); err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	var c Call
	if err := c.Request.fromProto(&message, s.engine.MaxDescriptors(), s.engine.MaxEntries()); err != nil {
		return nil, false, err
	}
	if err := s.Handle(ctx, &c, caller); err != nil {
		return nil, false, err
	}
	response, err = protojson.Marshal(c.Response.toProto())
	return response, c.Response.OverLimit, err
}

func (q *Request) fromProto(m *pb.RateLimitRequest, maxDescriptors, maxEntries int) error {
	if len(m.GetDescriptors()) > maxDescriptors {
		return tooManyDescriptors(maxDescriptors)
	}
	q.reset()
	q.Domain, q.HitsAddend = m.GetDomain(), m.GetHitsAddend()
	for _, from := range m.GetDescriptors() {
		if len(from.GetEntries()) > maxEntries {
			return tooManyEntries(maxEntries)
		}
		d := q.addDescriptor()
		for _, e := range from.GetEntries() {
			d.Entries = append(d.Entries, rules.Entry{Key: e.GetKey(), Value: e.GetValue()})
		}
		d.IsNegativeHits = from.GetIsNegativeHits()
		d.HasHitsAddend, d.HitsAddend = from.GetHitsAddend() != nil, from.GetHitsAddend().GetValue()
		if limit := from.GetLimit(); limit != nil {
			d.HasLimit = true
			d.Limit = Override{
				RequestsPerUnit:   limit.GetRequestsPerUnit(),
				Unit:              int32(limit.GetUnit()),
				UnitMultiplier:    limit.GetUnitMultiplier().GetValue(),
				HasUnitMultiplier: limit.GetUnitMultiplier() != nil,
			}
		}
	}
	return nil
}

func (r *Response) toProto() *pb.RateLimitResponse {
	m := &pb.RateLimitResponse{
		OverallCode:     pb.RateLimitResponse_Code(code(r.OverLimit)),
		DynamicMetadata: r.Metadata,
	}
	for i := range r.Statuses {
		m.Statuses = append(m.Statuses, r.Statuses[i].toProto())
	}
	for _, h := range r.Headers {
		m.ResponseHeadersToAdd = append(m.ResponseHeadersToAdd, &core.HeaderValue{Key: h.Name, Value: h.Value})
	}
	return m
}

func (st *Status) toProto() *pb.RateLimitResponse_DescriptorStatus {
	m := &pb.RateLimitResponse_DescriptorStatus{
		Code:           pb.RateLimitResponse_Code(st.code()),
		LimitRemaining: st.Remaining,
	}
	if st.HasLimit {
		m.CurrentLimit = &pb.RateLimitResponse_RateLimit{
			Name:            st.Limit.Name,
			RequestsPerUnit: st.Limit.RequestsPerUnit,
			Unit:            pb.RateLimitResponse_RateLimit_Unit(st.Limit.Unit),
		}
		if st.Limit.UnitMultiplier > 0 {
			m.CurrentLimit.UnitMultiplier = wrapperspb.UInt32(st.Limit.UnitMultiplier)
		}
	}
	if st.Reset > 0 {
		m.DurationUntilReset = &durationpb.Duration{Seconds: st.Reset}
	}
	return m
}

// JSONOptions configure the handler of /json. The zero value has all defaults.
type JSONOptions struct {
	Responses      ResponseOptions
	ObserveLatency func(time.Duration) // of each decision; default: none
	Requests       *requestlog.Log     // of invalid requests and denials; default: none
	Audit          *audit.Log          // of refunds; default: none
}

// A JSONHandler answers /json as envoyproxy/ratelimit does: any method and any
// content type are accepted, and every failure to decide is a plain 400.
//
// Only requests of pages in browsers must have the content type JSON. A browser sends a
// CORS preflight before such a request, which fails here.
type JSONHandler struct {
	service *Service
	options JSONOptions
}

// NewJSONHandler returns the handler of /json. Nil options are all defaults.
func NewJSONHandler(e *engine.Engine, o *JSONOptions) *JSONHandler {
	h := &JSONHandler{}
	if o != nil {
		h.options = *o
	}
	responses := h.options.Responses
	responses.OnDenied, responses.Audit = h.options.Requests.DeniedByRules, h.options.Audit
	h.service = NewService(e, &responses)
	return h
}

// ServeHTTP implements [http.Handler].
func (h *JSONHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	response, over, err := h.decide(r)
	if err != nil {
		h.writeError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if over {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(response)
}

func (h *JSONHandler) decide(r *http.Request) (response []byte, over bool, err error) {
	if auth.IsCrossOrigin(r) && !httpserver.IsJSON(r.Header.Get("Content-Type")) {
		return nil, false, errNotJSON
	}
	body, err := httpserver.ReadBody(r, nil)
	if err != nil {
		return nil, false, err
	}
	start := time.Now()
	response, over, err = h.service.HandleJSON(r.Context(), body, Caller{
		MayRefund: func() bool { return h.service.engine.MayRefund(auth.HTTPCaller(r)) },
		Entry:     func() audit.Entry { return auth.HTTPEntry(r, h.service.engine.Identify(auth.HTTPCaller(r))) },
	})
	if h.options.ObserveLatency != nil {
		h.options.ObserveLatency(time.Since(start))
	}
	return response, over, err
}

var errNotJSON = errors.New("content type is not JSON")

func (h *JSONHandler) writeError(w http.ResponseWriter, r *http.Request, err error) {
	status, reason := http.StatusBadRequest, ReasonOf(err)
	var refused *requestlimits.Refusal
	switch {
	case errors.Is(err, httpserver.ErrTooLarge):
		w.Header().Set("Connection", "close")
		status, reason = http.StatusRequestEntityTooLarge, requestlog.TooLarge
	case errors.Is(err, errNotJSON):
		status, reason = http.StatusUnsupportedMediaType, requestlog.ContentType
	case errors.Is(err, ErrRefundForbidden), errors.As(err, &refused):
		status = http.StatusForbidden
	case errors.Is(err, audit.ErrUnwritable):
		status = http.StatusServiceUnavailable
	}
	h.options.Requests.Invalid(reason, err.Error(), r.RemoteAddr)
	http.Error(w, http.StatusText(status), status)
}
