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
	Cache        *penstock.DenyCache
	store        penstock.Store
	hits, misses atomic.Uint64 // see CacheLookups
}

// New returns what remembers so many keys of a store, or nil for none.
func New(store penstock.Store, keys int, age time.Duration) *Store {
	if keys <= 0 {
		return nil
	}
	return &Store{Cache: penstock.WithDenyCache(nil, &penstock.DenyCacheOptions{MaxKeys: keys, MaxAge: age}), store: store}
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

// Take implements [penstock.Store].
func (s *Store) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	d, err := s.store.Take(ctx, r)
	s.ForgetReturned(&r)
	return d, err
}

// TakeEach implements [penstock.BatchStore].
func (s *Store) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	err := penstock.TakeEach(ctx, s.store, rs, ds)
	for i := range rs {
		s.ForgetReturned(&rs[i])
	}
	return err
}

// TakeAll also forgets the counters of a batch that was denied or failed. A store that does
// not decide it at once, such as several slots of a Redis Cluster, takes units of some and returns
// them. Nothing was taken where the store denied.
func (s *Store) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	err := penstock.TakeAll(ctx, s.store, rs, ds)
	rolledBack := err != nil || slices.ContainsFunc(ds[:len(rs)], isDenied)
	for i := range rs {
		if rolledBack && (err != nil || ds[i].Allowed) {
			s.Cache.Forget(rs[i])
		}
		s.ForgetReturned(&rs[i])
	}
	return err
}

func isDenied(d penstock.Decision) bool { return !d.Allowed }
