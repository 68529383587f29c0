package grpclimit

import (
	"cmp"
	"context"

	"google.golang.org/grpc"

	"github.com/penstock-io/penstock/overload"
)

// BreakOptions configure [UnaryBreak] and [StreamBreak]. The zero BreakOptions have
// a breaker for each target.
type BreakOptions struct {
	// Skip returns true for calls that are always sent and never counted, such
	// as streams whose server is silent until there is news. Default: none.
	Skip func(context.Context, Call) bool

	// Key returns the key of the call's breaker, such as its method. Default:
	// the target of the connection.
	Key func(context.Context, Call) string

	// IsFailure reports whether an error means that the service has failed.
	// Default: [IsServerFailure].
	IsFailure func(error) bool

	// Instead fills in the reply of a unary call that failed, or was not sent,
	// and returns nil; or it returns the error of the call. The error that it
	// gets wraps an [overload.OpenError] if the call was not sent. After
	// [UnaryRetry], set that of [RetryOptions]: a call that was answered instead is
	// not made again. Default: that error is returned.
	Instead func(ctx context.Context, call Call, reply any, err error) error

	// InsteadStream returns a stream in place of one that could not be opened,
	// such as one to another service, or the error. Default: the error is
	// returned.
	InsteadStream func(ctx context.Context, desc *grpc.StreamDesc, call Call, err error) (grpc.ClientStream, error)
}

// UnaryBreak returns an interceptor that does not send unary calls to a service
// that fails or hangs: a [overload.BreakerGroup] decides, by target. A call that is
// not sent fails with UNAVAILABLE, and the error wraps an [overload.OpenError]. A
// call that its caller canceled counts as neither success nor failure. A nil group
// means one with all defaults.
func UnaryBreak(g *overload.BreakerGroup, o *BreakOptions) grpc.UnaryClientInterceptor {
	return newBreaking(g, o).unary
}

func newBreaking(g *overload.BreakerGroup, o *BreakOptions) *breaking {
	b := &breaking{group: cmp.Or(g, overload.NewBreakerGroup(nil)), BreakOptions: *cmp.Or(o, &BreakOptions{})}
	if b.IsFailure == nil {
		b.IsFailure = IsServerFailure
	}
	if b.Instead == nil {
		b.Instead = func(_ context.Context, _ Call, _ any, err error) error { return err }
	}
	if b.InsteadStream == nil {
		b.InsteadStream = func(_ context.Context, _ *grpc.StreamDesc, _ Call, err error) (grpc.ClientStream, error) {
			return nil, err
		}
	}
	return b
}

type breaking struct {
	BreakOptions
	group *overload.BreakerGroup
}

func (b *breaking) skips(ctx context.Context, call Call) bool {
	return b.Skip != nil && b.Skip(ctx, call)
}

func (b *breaking) keyOf(ctx context.Context, call Call, cc *grpc.ClientConn) string {
	if b.Key != nil {
		return b.Key(ctx, call)
	}
	return cc.Target()
}

func (b *breaking) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	call := Call{Method: method, Message: req}
	if b.skips(ctx, call) {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	admitted, err := b.group.Allow(b.keyOf(ctx, call, cc))
	if err != nil {
		return b.Instead(ctx, call, reply, asStatus(err))
	}
	outcome, err := b.send(ctx, admitted, func() error { return invoke(ctx, method, req, reply, cc, opts...) })
	if outcome == overload.Failure {
		return b.Instead(ctx, call, reply, err)
	}
	return err
}

func (b *breaking) send(ctx context.Context, call overload.GroupCall, invoke func() error) (outcome overload.Outcome, err error) {
	outcome = overload.Failure // of a panic
	defer func() { call.Done(outcome) }()
	err = invoke()
	outcome = outcomeOf(ctx, err, b.IsFailure)
	return outcome, err
}
