package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	envoyratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	envoyrls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// sendGRPC calls ShouldRateLimit, as Envoy does.
func (r *takeRequest) sendGRPC(ctx context.Context, at *connection) (*takeResult, error) {
	if r.domain == "" {
		return nil, errors.New("--server grpc: Envoy's protocol has no limits in text form: set --domain")
	}
	secure := insecure.NewCredentials()
	if at.url.Scheme == "grpcs" {
		secure = credentials.NewTLS(at.tls)
	}
	conn, err := grpc.NewClient(at.url.Host, grpc.WithTransportCredentials(secure))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	if at.token != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+at.token)
	}
	response, err := envoyrls.NewRateLimitServiceClient(conn).ShouldRateLimit(ctx, r.envoyRequest())
	if err != nil {
		s := status.Convert(err)
		return nil, fmt.Errorf("the server returned %s: %s", s.Code(), s.Message())
	}
	return grpcResult(response)
}

func (r *takeRequest) envoyRequest() *envoyrls.RateLimitRequest {
	d := &envoyratelimit.RateLimitDescriptor{
		HitsAddend:     wrapperspb.UInt64(magnitude(r.cost)),
		IsNegativeHits: r.cost < 0,
	}
	for _, e := range r.entries {
		d.Entries = append(d.Entries, &envoyratelimit.RateLimitDescriptor_Entry{Key: e.Key, Value: e.Value})
	}
	return &envoyrls.RateLimitRequest{Domain: r.domain, Descriptors: []*envoyratelimit.RateLimitDescriptor{d}}
}

func magnitude(n int64) uint64 {
	if n < 0 {
		return -uint64(n)
	}
	return uint64(n)
}

func grpcResult(response *envoyrls.RateLimitResponse) (*takeResult, error) {
	if len(response.Statuses) != 1 {
		return nil, fmt.Errorf("the server returned %d statuses for one descriptor", len(response.Statuses))
	}
	raw, err := protojson.Marshal(response)
	if err != nil {
		return nil, err
	}
	s, allowed := response.Statuses[0], response.OverallCode == envoyrls.RateLimitResponse_OK
	text := outcome(allowed)
	if l := s.CurrentLimit; l != nil {
		text += fmt.Sprintf(" remaining=%d limit=%d/%s", s.LimitRemaining, l.RequestsPerUnit, strings.ToLower(l.Unit.String()))
	} else {
		text += ": no limit applies" // Envoy's protocol does not tell whether a rule matched
	}
	if s.DurationUntilReset != nil {
		text += " reset=" + s.DurationUntilReset.AsDuration().String()
	}
	return &takeResult{allowed: allowed, text: text, raw: raw}, nil
}
