package charge

import (
	"context"

	"github.com/penstock-io/penstock"
)

// Acquire acquires permits for a handler, until release is called, which is nil if there are
// none. The handler's context is ctx, and ends also if the permits are lost.
//
// A [penstock.Permit] is not renewed after the context that it was acquired with has ended. A
// handler may go on after that: clients that disconnect must not free permits that are in use.
// So ctx only bounds the wait for the store.
func Acquire(ctx context.Context, l *penstock.Limiter, key string, n int64) (handler context.Context, release func(), d penstock.Decision, err error) {
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	detach := context.AfterFunc(ctx, end)
	permit, d, err := l.AcquireN(lasting, key, n)
	attached := detach()
	switch {
	case permit == nil:
		end()
		return nil, nil, d, err
	case !attached:
		permit.Release()
		return nil, nil, penstock.Decision{}, ctx.Err()
	}
	handler, cancel := context.WithCancelCause(ctx)
	unwatch := context.AfterFunc(permit.Context(), func() { cancel(context.Cause(permit.Context())) })
	release = func() {
		unwatch()
		permit.Release()
		cancel(nil)
		end()
	}
	return handler, release, d, nil
}
