package rlsproto

import (
	"context"
	"fmt"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-io/penstock/server/rules"
)

// HandleJSON decides a request in JSON, as protobuf maps it, and returns the answer
// likewise. Over says that the answer is OVER_LIMIT. An unknown field is an error.
// Only a caller who may undo, which [judge.Judge.MayUndo] tells, may give hits back.
func (s *Service) HandleJSON(ctx context.Context, body []byte, mayUndo bool) (answer []byte, over bool, err error) {
	var message pb.RateLimitRequest
	if err := protojson.Unmarshal(body, &message); err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	var c Call
	if err := c.Request.fromProto(&message, s.engine.MaxDescriptors()); err != nil {
		return nil, false, err
	}
	if err := s.Handle(ctx, &c, mayUndo); err != nil {
		return nil, false, err
	}
	answer, err = protojson.Marshal(c.Response.toProto())
	return answer, c.Response.Over, err
}

func (q *Request) fromProto(m *pb.RateLimitRequest, maxDescriptors int) error {
	if len(m.GetDescriptors()) > maxDescriptors {
		return tooManyDescriptors(maxDescriptors)
	}
	q.reset()
	q.Domain, q.HitsAddend = m.GetDomain(), m.GetHitsAddend()
	for _, from := range m.GetDescriptors() {
		if len(from.GetEntries()) > maxEntries {
			return tooManyEntries()
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
		OverallCode:     pb.RateLimitResponse_Code(code(r.Over)),
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
		Code:           pb.RateLimitResponse_Code(code(st.Over)),
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
