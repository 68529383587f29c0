package grpclimit

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/httplimit"
)

// Denial returns the error of a denied call: RESOURCE_EXHAUSTED with a
// QuotaFailure that names the limits that denied, and a RetryInfo unless the call
// can never pass.
func Denial(answers []httplimit.Answer) error {
	quota := &errdetails.QuotaFailure{}
	for _, a := range answers {
		if !a.Decision.Allowed {
			quota.Violations = append(quota.Violations, &errdetails.QuotaFailure_Violation{
				Subject: a.Policy, Description: a.Limit.WithName("").String(), QuotaId: a.Policy, QuotaValue: a.Limit.Count,
			})
		}
	}
	retry := retryAfter(answers)
	if retry == penstock.Never {
		return withDetails(codes.ResourceExhausted, "rate limit exceeded", quota)
	}
	return withDetails(codes.ResourceExhausted, fmt.Sprintf("rate limit exceeded, retry in %v", retry), quota, retryInfo(retry))
}

// withDetails returns the error of a status with details.
func withDetails(code codes.Code, message string, details ...protoadapt.MessageV1) error {
	s := status.New(code, message)
	if detailed, err := s.WithDetails(details...); err == nil {
		s = detailed
	}
	return s.Err()
}

func retryInfo(after time.Duration) *errdetails.RetryInfo {
	return &errdetails.RetryInfo{RetryDelay: durationpb.New(after)}
}

// ServiceUnavailable, as [Options.Unavailable], returns UNAVAILABLE.
func ServiceUnavailable(context.Context, Call, error) error {
	return status.Error(codes.Unavailable, "rate limits are unavailable")
}

// retryAfter returns the longest RetryAfter of the denials.
func retryAfter(answers []httplimit.Answer) (longest time.Duration) {
	for _, a := range answers {
		if !a.Decision.Allowed {
			longest = max(longest, a.Decision.RetryAfter)
		}
	}
	return longest
}

const pushbackName = "grpc-retry-pushback-ms"

// pushback returns the metadata that clients with automatic retries obey: a delay
// in milliseconds, or -1 for no retry.
func pushback(retry time.Duration) metadata.MD {
	if retry == penstock.Never {
		return metadata.Pairs(pushbackName, "-1")
	}
	ms := int64(retry / time.Millisecond)
	if retry%time.Millisecond > 0 {
		ms++
	}
	return metadata.Pairs(pushbackName, strconv.FormatInt(ms, 10))
}

// asStatus gives an error the gRPC code that matches it.
func asStatus(err error) error {
	code := codes.Unavailable
	switch {
	case errors.Is(err, context.Canceled):
		code = codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		code = codes.DeadlineExceeded
	case errors.Is(err, penstock.ErrNever) || errors.Is(err, ErrTooManyWaiting):
		code = codes.ResourceExhausted
	case errors.Is(err, penstock.ErrBadCost):
		code = codes.InvalidArgument
	}
	return &codedError{code, err}
}

// A codedError is an error with a gRPC code.
type codedError struct {
	code codes.Code
	err  error
}

func (e *codedError) Error() string { return "grpclimit: " + e.err.Error() }

func (e *codedError) Unwrap() error { return e.err }

// GRPCStatus is found by package status.
func (e *codedError) GRPCStatus() *status.Status { return status.New(e.code, e.Error()) }
