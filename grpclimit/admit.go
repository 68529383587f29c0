package grpclimit

import (
	"cmp"
	"context"
	"errors"
	"runtime"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock/overload"
)

// AdmitOptions configure [UnaryAdmit] and [StreamAdmit]. The zero AdmitOptions
// treat all calls alike.
type AdmitOptions struct {
	// Priority returns the priority of a call. Do not let clients choose it.
	// Default: [overload.Normal].
	Priority func(context.Context, Call) overload.Priority

	// Skip returns true for calls that are always admitted and never measured,
	// such as health checks, and streams that stay open. Default: none.
	Skip func(context.Context, Call) bool

	// Instead returns the reply or the error of a refused call; of a streaming
	// call only the error counts. The error that it gets is an
	// [overload.FullError], or that of the call's context. Default:
	// UNAVAILABLE with a RetryInfo.
	Instead func(context.Context, Call, error) (any, error)
}

// UnaryAdmit returns an interceptor that admits as many unary calls at once as the
// gate allows, by priority. It refuses the rest with UNAVAILABLE, and with
// metadata that tells clients when to retry. Calls that return an error which
// [IsServerFailure] reports have failed. An admitted call yields the processor once before
// it is served, as in httplimit.Admit.
func UnaryAdmit(g *overload.Gate, o *AdmitOptions) grpc.UnaryServerInterceptor {
	a := newAdmission(g, o)
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		setTrailer := func(md metadata.MD) { _ = grpc.SetTrailer(ctx, md) }
		return a.admit(ctx, Call{Method: info.FullMethod, Message: req}, setTrailer, func() (any, error) { return handler(ctx, req) })
	}
}

// StreamAdmit returns an interceptor that admits streaming calls, each for as long
// as it lasts; otherwise it works like [UnaryAdmit]. Skip streams that stay open.
func StreamAdmit(g *overload.Gate, o *AdmitOptions) grpc.StreamServerInterceptor {
	a := newAdmission(g, o)
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
		_, err := a.admit(ss.Context(), Call{Method: info.FullMethod}, ss.SetTrailer, func() (any, error) { return nil, handler(srv, ss) })
		return err
	}
}

type admission struct {
	AdmitOptions
	gate *overload.Gate
}

func newAdmission(g *overload.Gate, o *AdmitOptions) *admission {
	a := &admission{gate: g, AdmitOptions: *cmp.Or(o, &AdmitOptions{})}
	if a.Instead == nil {
		a.Instead = func(_ context.Context, _ Call, err error) (any, error) { return nil, refusal(err) }
	}
	return a
}

// admit serves a call that the gate admits, and answers others instead.
func (a *admission) admit(ctx context.Context, call Call, setTrailer func(metadata.MD), serve func() (any, error)) (reply any, err error) {
	pass, err := a.enter(ctx, call)
	if err != nil {
		if full, ok := errors.AsType[*overload.FullError](err); ok {
			setTrailer(pushback(full.RetryAfter))
		}
		return a.Instead(ctx, call, err)
	}
	outcome := overload.Failure // of a panic
	defer func() { pass.Leave(outcome) }()
	reply, err = serve()
	outcome = outcomeOf(ctx, err, IsServerFailure)
	return reply, err
}

// enter returns the pass of an admitted call. That of a skipped call is empty. It yields the
// processor, so that calls that wait for it reach the gate.
func (a *admission) enter(ctx context.Context, call Call) (overload.Pass, error) {
	if a.Skip != nil && a.Skip(ctx, call) {
		return overload.Pass{}, nil
	}
	priority := overload.Normal
	if a.Priority != nil {
		priority = a.Priority(ctx, call)
	}
	pass, err := a.gate.Enter(ctx, priority)
	if err == nil {
		runtime.Gosched()
	}
	return pass, err
}

// refusal gives the error of a gate a gRPC code.
func refusal(err error) error {
	full, ok := errors.AsType[*overload.FullError](err)
	if !ok {
		return asStatus(err)
	}
	return withDetails(codes.Unavailable, "too many calls in flight", retryInfo(full.RetryAfter))
}

func outcomeOf(ctx context.Context, err error, isFailure func(error) bool) overload.Outcome {
	switch {
	case err == nil:
		return overload.Success
	case errors.Is(ctx.Err(), context.Canceled):
		return overload.Canceled
	case isFailure(err):
		return overload.Failure
	}
	return overload.Success
}

// IsServerFailure reports whether an error means that the server fails, and not
// that the call was wrong or over a limit: UNAVAILABLE, DEADLINE_EXCEEDED, INTERNAL,
// UNKNOWN and DATA_LOSS.
func IsServerFailure(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Internal, codes.Unknown, codes.DataLoss:
		return true
	}
	return false
}
