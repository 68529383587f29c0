package rls

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// ServeHTTP answers /json as envoyproxy/ratelimit does: any method and any
// content type are accepted, and every failure to decide is a plain 400.
//
// Only requests of pages in browsers must have the content type JSON. A browser sends a
// CORS preflight before such a request, which fails here.
func (s *Service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	response, over, err := s.decideHTTP(r)
	if err != nil {
		s.writeError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if over {
		w.WriteHeader(http.StatusTooManyRequests)
	}
	_, _ = w.Write(response)
}

func (s *Service) decideHTTP(r *http.Request) (response []byte, over bool, err error) {
	if auth.IsCrossOrigin(r) && !httpserver.IsJSON(r.Header.Get("Content-Type")) {
		return nil, false, errNotJSON
	}
	body, err := httpserver.ReadBody(r, nil)
	if err != nil {
		return nil, false, err
	}
	defer s.observe(r.Context(), time.Now())
	return s.HandleJSON(r.Context(), body, Caller{
		MayRefund: func() bool { return s.engine.MayRefund(auth.HTTPCaller(r)) },
		Entry:     func() audit.Entry { return auth.HTTPEntry(r, s.engine.Identify(auth.HTTPCaller(r))) },
	})
}

// HandleJSON decides a request in protobuf's JSON form and returns the response in the
// same form. An unknown field is an error. over reports whether the response is
// OVER_LIMIT.
func (s *Service) HandleJSON(ctx context.Context, body []byte, caller Caller) (response []byte, over bool, err error) {
	var c Call
	if c.request, err = transcode(&pb.RateLimitRequest{}, body, protojson.Unmarshal, proto.Marshal); err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	if err := s.handleEncoded(ctx, &c, caller); err != nil {
		return nil, false, err
	}
	response, err = transcode(&pb.RateLimitResponse{}, c.Response.Append(nil), proto.Unmarshal, protojson.Marshal)
	return response, c.Response.OverLimit, err
}

// transcode converts a message from one form to another, binary and JSON.
func transcode(
	m proto.Message, data []byte, unmarshal func([]byte, proto.Message) error, marshal func(proto.Message) ([]byte, error),
) ([]byte, error) {
	if err := unmarshal(data, m); err != nil {
		return nil, err
	}
	return marshal(m)
}

var errNotJSON = errors.New("content type is not JSON")

func (s *Service) writeError(w http.ResponseWriter, r *http.Request, err error) {
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
	s.options.Requests.Invalid(reason, err.Error(), r.RemoteAddr)
	http.Error(w, http.StatusText(status), status)
}
