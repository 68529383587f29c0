// Package overload protects a process and the services that it calls from
// overload. It needs only the standard library, and has nothing to close: only an
// adaptive [Gate] starts a goroutine, while calls come, every 20 ms at most, which
// ends when it has had its turn on a processor.
//
// A [Breaker] stops calls to a service that fails or hangs, and lets them through
// again when it has recovered:
//
//	b := overload.NewBreaker(nil)
//	err := b.Do(ctx, func(ctx context.Context) error { return client.Charge(ctx, order) })
//
// A [BreakerGroup] has a breaker for each key, such as the host that is called.
//
// A [Gate] bounds how many calls are in flight. It finds out the limit by itself,
// or has a fixed one, and admits calls by priority:
//
//	g := overload.NewGate(nil)
//	err := g.Do(ctx, overload.Normal, func(ctx context.Context) error { return render(ctx, page) })
//
// A [RetryBudget] bounds retries to a share of the calls that succeed.
//
// Rate limits say how much a caller may use, and are shared by processes: see
// package penstock.
package overload
