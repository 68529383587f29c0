package rls

import (
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-io/penstock/rules"
)

// fromProto copies a generated message, to compare the decoder with.
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

// toProto copies a response into a generated message, to compare the encoder with.
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
	for _, h := range r.Request {
		m.RequestHeadersToAdd = append(m.RequestHeadersToAdd, &core.HeaderValue{Key: h.Name, Value: h.Value})
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
