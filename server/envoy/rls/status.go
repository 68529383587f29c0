package rls

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// statusOf converts an error to a gRPC status. The default is UNKNOWN, the code of all
// errors in envoyproxy/ratelimit.
func statusOf(ctx context.Context, err error) error {
	var refused *requestlimits.Refusal
	switch {
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	case errors.Is(err, engine.ErrTooManyDescriptors):
		return status.Error(codes.ResourceExhausted, err.Error())
	case errors.Is(err, ErrRefundForbidden), errors.As(err, &refused):
		return status.Error(codes.PermissionDenied, err.Error())
	case errors.Is(err, audit.ErrUnwritable):
		return status.Error(codes.Unavailable, audit.ErrUnwritable.Error())
	case isInvalidRequest(err), errors.Is(err, engine.ErrNoPermitID):
		return status.Error(codes.InvalidArgument, err.Error())
	}
	return status.Error(codes.Unknown, err.Error())
}

// isInvalidRequest reports whether the request caused the error.
func isInvalidRequest(err error) bool {
	return slices.ContainsFunc([]error{
		ErrMalformed, ErrBadOverride, penstock.ErrBadLimit, penstock.ErrBadCost, penstock.ErrBadKey,
	}, func(invalid error) bool { return errors.Is(err, invalid) })
}
