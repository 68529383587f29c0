// Package regions lets one limit hold over several regions, each of which decides on its own Redis.
//
//	store, err := regions.New(local, regions.RedisPools(local, 0), home, &regions.Options{Regions: 3})
//	…
//	lim, err := penstock.New(store, penstock.PerMinute(6000))
//
// One store, home, owns a limit. A region takes units there in lots, and spends them from a pool in its own
// Redis, so a request waits for another region only if it is the first of its key, or costs more than a pool
// holds. Home keeps free what all pools may hold together. So all regions together never grant more than the limit
// would grant on one Redis: B + r·T of a bucket in any time T, Count in each fixed window, in any period of a rolling
// window or a log, and less than twice Count in any period of a sliding window.
//
// Nothing that was granted is ever returned, repeated or taken back: whatever is lost with a region, its Redis or
// the network stays charged, and is not spent. The proof is in docs/design/regions.md, and docs/regions.md
// helps to choose Settings.
package regions
