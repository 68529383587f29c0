package overload

import (
	"context"
	"errors"
)

// Instead calls f through do, which is the Do of a [Breaker], or a function around
// that of a [Gate] or a [BreakerGroup]. If the call is refused or fails, it returns
// the answer of instead, which gets the error: an [OpenError] or a [FullError] says
// what refused the call. If the caller has canceled the context, no answer is of
// use, and the error is returned.
func Instead[T any](
	ctx context.Context,
	do func(context.Context, func(context.Context) error) error,
	f func(context.Context) (T, error),
	instead func(context.Context, error) (T, error),
) (T, error) {
	var answer T
	err := do(ctx, func(ctx context.Context) (err error) {
		answer, err = f(ctx)
		return err
	})
	if err == nil || errors.Is(ctx.Err(), context.Canceled) {
		return answer, err
	}
	return instead(ctx, err)
}
