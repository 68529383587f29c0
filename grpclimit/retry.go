package grpclimit

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/monotime"
	"github.com/penstock-io/penstock/overload"
)

// RetryOptions configure [UnaryRetry]. A number of zero or less means its default.
type RetryOptions struct {
	// Most is how often a call is made again. Default: 2.
	Most int

	// MaxWait is how long a call may wait before it is made again. If the service, or its breaker, asks
	// for more, the error is final. Default: two seconds.
	MaxWait time.Duration

	// IsRetryable reports whether a call that failed may be made again. Default: UNAVAILABLE.
	IsRetryable func(context.Context, Call, error) bool

	// Instead fills in the reply of a call that failed in the end, and returns nil; or it returns the error
	// of the call. A call has failed if IsRetryable or [IsServerFailure] says so. It works as that of
	// [BreakOptions], which would hide failures from UnaryRetry. Default: the error is returned.
	Instead func(ctx context.Context, call Call, reply any, err error) error
}

const (
	defaultRetries   = 2
	defaultRetryWait = 2 * time.Second
	firstRetryWait   = 50 * time.Millisecond
)

// UnaryRetry returns an interceptor that makes unary calls again that failed, within a budget: a share of
// the calls that succeeded. When most of them fail, there are hardly any retries. A nil budget is
// one with all defaults, for this interceptor.
//
// It waits for as long as the server's pushback or RetryInfo says, as [UnaryAdmit] and [UnaryServer] send
// them, or an [overload.OpenError] of a breaker; otherwise at random for up to 50 ms, and twice as long with
// each attempt. A negative pushback means never. Put it before [UnaryBreak] in the chain, and do not
// configure retries in the service config as well.
func UnaryRetry(b *overload.RetryBudget, o *RetryOptions) grpc.UnaryClientInterceptor {
	r := &retrying{budget: cmp.Or(b, overload.NewRetryBudget(nil)), RetryOptions: *cmp.Or(o, &RetryOptions{})}
	r.Most = defaults.Or(r.Most, defaultRetries)
	r.MaxWait = defaults.Duration(r.MaxWait, defaultRetryWait)
	if r.IsRetryable == nil {
		r.IsRetryable = func(_ context.Context, _ Call, err error) bool { return status.Code(err) == codes.Unavailable }
	}
	return r.unary
}

type retrying struct {
	RetryOptions
	budget *overload.RetryBudget
}

func (r *retrying) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	call := Call{Method: method, Message: req}
	err := r.call(ctx, call, reply, cc, invoke, opts)
	isFailure := func(err error) bool { return IsServerFailure(err) || r.IsRetryable(ctx, call, err) }
	if r.Instead == nil || outcomeOf(ctx, err, isFailure) != overload.Failure {
		return err
	}
	return r.Instead(ctx, call, reply, err)
}

func (r *retrying) call(ctx context.Context, call Call, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts []grpc.CallOption) error {
	for attempt := 0; ; attempt++ {
		var trailer metadata.MD
		err := invoke(ctx, call.Method, call.Message, reply, cc, append(opts[:len(opts):len(opts)], grpc.Trailer(&trailer))...)
		if err == nil {
			r.budget.Succeeded()
			return nil
		}
		if attempt == r.Most || !r.IsRetryable(ctx, call, err) || !r.again(ctx, retryWait(trailer, err, attempt)) {
			return err
		}
	}
}

// again waits, and returns false if there is no retry.
func (r *retrying) again(ctx context.Context, wait time.Duration) bool {
	deadline, has := ctx.Deadline()
	if wait < 0 || wait > r.MaxWait || ctx.Err() != nil || has && time.Until(deadline) <= wait || !r.budget.Take() {
		return false
	}
	return monotime.Sleep(ctx, wait) == nil
}

// retryWait is how long to wait before an attempt; it is negative if the server wants none.
func retryWait(trailer metadata.MD, err error, attempt int) time.Duration {
	if open, ok := errors.AsType[*overload.OpenError](err); ok {
		return open.RetryAfter
	}
	if pushback := trailer.Get(pushbackName); len(pushback) > 0 {
		ms, err := strconv.ParseInt(pushback[0], 10, 32)
		if err != nil {
			return -1
		}
		return time.Duration(ms) * time.Millisecond
	}
	for _, detail := range status.Convert(err).Details() {
		if info, ok := detail.(*errdetails.RetryInfo); ok {
			return max(info.GetRetryDelay().AsDuration(), 0)
		}
	}
	return rand.N(firstRetryWait << min(attempt, 10)) //nolint:gosec // only jitter
}
