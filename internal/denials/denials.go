// Package denials remembers which counters are over their limit, for the engine.
package denials

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

// A Store remembers which counters are over their limit, under compat: such a counter stays over
// it until its window ends, so it need not be asked for. The deny cache of the store cannot know
// that, because the store denies nothing under a hits limit; so the engine tells a deny cache of
// its own. With engine.Options.CacheDenials that also knows which windows have nothing left, after the
// first denial, as in envoyproxy/ratelimit.
//
// A denial may be remembered for a day, so it must not outlive a refund: as a store, it calls
// the engine's, and forgets the counters of which units may have been returned.
type Store struct {
	penstock.BatchFunc
	Cache        *penstock.DenyCache
	store        penstock.Store
	hits, misses atomic.Uint64 // see CacheLookups
}

// New returns what remembers so many keys of a store, or nil for none.
func New(store penstock.Store, keys int, age time.Duration) *Store {
	if keys <= 0 {
		return nil
	}
	s := &Store{Cache: penstock.WithDenyCache(nil, &penstock.DenyCacheOptions{MaxKeys: keys, MaxAge: age}), store: store}
	s.BatchFunc = s.take
	return s
}

// ForgetReturned ends the denials that are remembered of a counter, if the request may have
// returned units of it. APIs call it after engine.Engine.Store has answered: a limit of the name
// override is a counter of Envoy's overrides.
func (s *Store) ForgetReturned(r *penstock.Request) {
	if s != nil && (r.Cost < 0 || r.Settle) {
		s.Cache.Forget(*r)
	}
}

// CacheLookups returns how many descriptors were denied without asking the store, and for how many
// it was asked. They are counted if there is a cache, and engine.Options.CountHits is set.
func (s *Store) CacheLookups() (hits, misses uint64) {
	if s == nil {
		return 0, 0
	}
	return s.hits.Load(), s.misses.Load()
}

// CountLookup counts a descriptor that was decided by a denial that is remembered, or by the store.
func (s *Store) CountLookup(remembered bool) {
	switch {
	case s == nil:
	case remembered:
		s.hits.Add(1)
	default:
		s.misses.Add(1)
	}
}

// take calls the store, and forgets the counters of which units may have been returned. Those are also the allowed ones of an
// all-or-nothing batch that was denied, and all of one that failed: a store that does not decide it at once, such as several slots
// of a Redis Cluster, takes units of some and returns them. Nothing was taken where the store denied.
func (s *Store) take(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, all bool) error {
	err := penstock.TakeBatch(ctx, s.store, rs, ds, all)
	denied := slices.ContainsFunc(ds, func(d penstock.Decision) bool { return !d.Allowed })
	for i := range rs {
		if all && (err != nil || denied && ds[i].Allowed) {
			s.Cache.Forget(rs[i])
		}
		s.ForgetReturned(&rs[i])
	}
	return err
}
