// Package penstock is an exact rate limiter.
//
// A [Limit] is a number of units per period. A [Store] holds the state of keys. A
// [Limiter] applies a limit to the keys of a store:
//
//	store := penstock.NewMemory(nil)
//	lim, err := penstock.New(store, penstock.PerMinute(30).WithBurst(15))
//	…
//	d, err := lim.Allow(ctx, "user:42")
//	if !d.Allowed {
//		// deny the request, and have the client retry after d.RetryAfter
//	}
//
// Most callers need no more than that. [Limiter] says which method to call, and
// [Algorithm] which algorithm to choose. Limits can be written as text, as in
// "30/1m burst=15" or "5/day zone=Asia/Shanghai fixed-window": see [ParseLimit].
//
// [TakeAll] applies several limits all or nothing, such as one per address, one per
// user and a global one: if one of them denies, none is charged.
//
// # Wrappers
//
// A remote store, such as that of package redisstore, can be slow or unavailable.
// Wrappers are stores around it. [WithFallback] decides by a second store while
// the first is unavailable, [WithLease] takes units of busy keys in advance, and
// [WithDenyCache] answers from cached denials. [WithObserver] tells a program of each
// decision, for its metrics. To use several, nest them in this order:
//
//	store := penstock.WithDenyCache(penstock.WithLease(penstock.WithFallback(redis, nil, nil), nil), nil)
//
// # Exactness
//
// Each algorithm bounds what any interval of time can admit, under any traffic and
// concurrency. A clock that steps back frees nothing, and a denial costs nothing.
// [Decision.RetryAfter] is exact to the tick of the clock: if no other request comes
// first, the same request passes after that time, and not one tick earlier.
// Each wrapper documents how it changes these guarantees.
//
// # Compatibility
//
// The names and the text form of limits are stable from v1.0.0 on. Until then,
// breaking changes are announced in the changelog.
package penstock
