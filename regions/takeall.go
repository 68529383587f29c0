package regions

import (
	"context"
	"errors"
	"slices"

	"github.com/penstock-io/penstock"
)

// A batch is requests, their decisions, and where each is decided.
type batch struct {
	rs      []penstock.Request
	ds      []penstock.Decision
	targets []target
}

// A group is those requests of a batch that certain places decide.
type group struct {
	batch
	of    *batch
	index []int // in the batch
}

func (b *batch) group(places ...place) *group {
	g := &group{of: b}
	for i := range b.rs {
		if slices.Contains(places, b.targets[i].place) {
			g.index, g.rs = append(g.index, i), append(g.rs, b.rs[i])
			g.ds, g.targets = append(g.ds, b.ds[i]), append(g.targets, b.targets[i])
		}
	}
	return g
}

// take decides the requests of the group by a store.
func (g *group) take(ctx context.Context, s penstock.Store, all bool) error {
	if len(g.rs) == 0 {
		return nil
	}
	return g.decided(penstock.TakeBatch(ctx, s, g.rs, g.ds, all))
}

// decided writes the decisions of the group to its batch, and returns an error with an index in the batch.
func (g *group) decided(err error) error {
	for n, i := range g.index {
		g.of.ds[i], g.of.targets[i] = g.ds[n], g.targets[n]
	}
	if of, ok := errors.AsType[*penstock.RequestError](err); ok && of.Index < len(g.index) {
		return &penstock.RequestError{Index: g.index[of.Index], Err: of.Err}
	}
	return err
}

// allowed reports whether all requests of the group were allowed.
func (g *group) allowed() bool {
	return !slices.ContainsFunc(g.ds, func(d penstock.Decision) bool { return !d.Allowed })
}

// refund returns what the group was granted by a store, and leaves decisions as those of peeks.
func (g *group) refund(ctx context.Context, s penstock.Store) {
	var back []penstock.Request
	for n, r := range g.rs {
		if d := &g.ds[n]; d.Granted > 0 && !r.Settle {
			back = append(back, penstock.Request{Key: r.Key, Limit: r.Limit, Cost: -d.Granted, ID: r.ID})
			d.Remaining += d.Granted
		}
		g.ds[n].Granted, g.ds[n].Delay = 0, 0
	}
	_ = g.decided(nil)
	_ = penstock.TakeEach(context.WithoutCancel(ctx), s, back, make([]penstock.Decision, len(back))) // what fails stays charged
}

// takeAll decides requests all or nothing where more than one place decides: first the region's own limits, then what
// home decides, then pools. If a later one denies, the earlier ones are refunded, as over the slots of a Cluster: that
// never admits too much, and others may see units taken for a moment. Only units of a pool are not put back, because
// then pools could hold more than home keeps free. So several pools are asked first whether they have what is needed; what
// some spend is lost if another one has less by then.
func (s *Store) takeAll(ctx context.Context, b *batch) error {
	local := b.group(inStore)
	if err := local.take(ctx, s.local, true); err != nil {
		return err
	}
	if !local.allowed() {
		return s.peek(ctx, b.group(atHome, inPool))
	}
	allowed, err := s.takeGlobal(ctx, b)
	if err != nil || !allowed {
		local.refund(ctx, s.local)
	}
	return err
}

// takeGlobal is takeAll of the global limits.
func (s *Store) takeGlobal(ctx context.Context, b *batch) (allowed bool, err error) {
	pools := b.group(inPool)
	several := len(pools.rs) > 1
	if several {
		if err = pools.decided(s.spendEach(ctx, &pools.batch, true)); err != nil {
			return false, err
		}
		if pools = b.group(inPool); !pools.allowed() {
			return false, s.peek(ctx, b.group(atHome))
		}
	}
	home := b.group(atHome)
	if err = s.takeAtHome(ctx, home, true); err != nil {
		return false, err
	}
	if !home.allowed() {
		if !several {
			err = s.peek(ctx, pools)
		}
		return false, err
	}
	if allowed, err = s.spendAll(ctx, pools); err != nil || !allowed {
		home.refund(ctx, s.fallback)
	}
	return allowed, err
}

// peek writes peeks for the requests of a group.
func (s *Store) peek(ctx context.Context, g *group) error {
	for n, r := range g.rs {
		g.rs[n] = penstock.Request{Key: r.Key, Limit: r.Limit}
	}
	return g.decided(s.takeEach(ctx, &g.batch))
}

// spendAll spends from pools, and reports whether all of them allowed it, or home where a pool could not decide.
func (s *Store) spendAll(ctx context.Context, pools *group) (allowed bool, err error) {
	err = pools.decided(s.takeEach(ctx, &pools.batch))
	if err == nil && pools.allowed() {
		return true, nil
	}
	for n := range pools.ds {
		if pools.targets[n].place == inPool {
			s.stats.lost.Add(pools.ds[n].Granted)
			pools.ds[n].Granted = 0
		}
	}
	pools.refund(ctx, s.fallback)
	return false, err
}
