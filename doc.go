// Package penstock is exact rate limiting.
//
// A [Limit] says how much, over how long, and how it is counted. A [Store] holds
// the state of keys. A [Limiter] puts the two together and has the verbs:
//
//	store := penstock.NewMemory(nil)
//	lim, err := penstock.New(store, penstock.PerMinute(30).WithBurst(15))
//	…
//	d, err := lim.Allow(ctx, "user:42")
//	if !d.Allowed {
//		// tell the caller to come back after d.RetryAfter
//	}
//
// Most callers need no more than that. Which verb to call is said at [Limiter];
// which algorithm to choose, at [Algorithm]. Limits can be written as text, as in
// "30/1m burst=15" or "5/day zone=Asia/Shanghai fixed-window": see [ParseLimit].
//
// [TakeAll] decides several limits as one: per address, per user and for
// everybody, say, where a refusal by one costs nothing in the others.
//
// # Around a store
//
// A store may be elsewhere, as that of package redisstore is, and then be away, or
// far. [WithFallback] decides by a second store meanwhile, [WithLease] takes units of
// busy keys ahead, and [WithDenyCache] answers those who were just denied. Each is a
// store around a store. Where there are several, this is their order:
//
//	store := penstock.WithDenyCache(penstock.WithLease(penstock.WithFallback(redis, nil, nil), nil), nil)
//
// # Exactness
//
// Each algorithm promises a bound on what any interval of time can admit, and
// keeps it whatever the traffic and the concurrency; a clock that steps back
// frees nothing. A denial costs nothing. [Decision.RetryAfter] is true to the tick
// of the clock: after it, the same request asked alone passes, and one tick earlier
// it does not. What a store around a store adds to that is said at each of them.
//
// # Compatibility
//
// The names and the text form of limits are stable from v1.0.0 on. Until then
// a change that breaks callers is announced in the changelog.
package penstock
