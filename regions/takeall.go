package regions

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/penstock-io/penstock"
)

// A group is those requests of a batch that one place decides together.
type group struct {
	index []int
	rs    []penstock.Request
	own   []penstock.Decision
	ds    []penstock.Decision // of the whole batch
}

func newGroup(rs []penstock.Request, ds []penstock.Decision, targets []target, p place) *group {
	g := &group{ds: ds}
	for i := range rs {
		if targets[i].place == p {
			g.index, g.rs = append(g.index, i), append(g.rs, rs[i])
		}
	}
	g.own = make([]penstock.Decision, len(g.rs))
	return g
}

// take decides the requests of the group.
func (g *group) take(ctx context.Context, s penstock.Store, all bool) error {
	if len(g.rs) == 0 {
		return nil
	}
	err := penstock.TakeBatch(ctx, s, g.rs, g.own, all)
	for n, i := range g.index {
		g.ds[i] = g.own[n]
	}
	var of *penstock.RequestError
	if errors.As(err, &of) && of.Index < len(g.index) {
		return &penstock.RequestError{Index: g.index[of.Index], Err: of.Err}
	}
	return err
}

// allowed reports whether all requests of the group were allowed.
func (g *group) allowed() bool {
	for i := range g.own {
		if !g.own[i].Allowed {
			return false
		}
	}
	return true
}

// refund returns what the group was granted, and leaves decisions as those of peeks.
func (g *group) refund(ctx context.Context, s penstock.Store) {
	ctx = context.WithoutCancel(ctx)
	for n, i := range g.index {
		r, granted := g.rs[n], g.own[n].Granted
		if granted > 0 && !r.Settle {
			back := penstock.Request{Key: r.Key, Limit: r.Limit, Cost: -granted, ID: r.ID}
			if _, err := s.Take(ctx, back); err == nil {
				g.ds[i].Remaining += granted
			}
		}
		g.ds[i].Granted, g.ds[i].Delay = 0, 0
	}
}

// takeAll decides requests all or nothing where more than one place decides: first the region's own limits, then what
// home decides, then pools. If a later one denies, the earlier ones are refunded, as over the slots of a Cluster: that
// never admits too much, and others may see units taken for a moment. Only units of a pool are not put back, because
// then pools could hold more than home keeps free: they are lost, if one of several pools denies.
func (s *Store) takeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision, targets []target) error {
	kept := make([]penstock.Request, len(rs))
	for i := range rs {
		if kept[i] = rs[i]; targets[i].place == atHome {
			kept[i] = targets[i].keptFree(rs[i])
		}
	}
	local, home := newGroup(kept, ds, targets, inStore), newGroup(kept, ds, targets, atHome)
	pools := newGroup(kept, ds, targets, inPool)
	if err := local.take(ctx, s.local, true); err != nil {
		return err
	}
	if !local.allowed() {
		return errors.Join(s.peek(ctx, home, targets), s.peek(ctx, pools, targets))
	}
	s.stats.atHome.Add(int64(len(home.rs)))
	err := home.take(ctx, s.fallback, true)
	if err != nil || !home.allowed() {
		local.refund(ctx, s.local)
		return errors.Join(err, s.peek(ctx, pools, targets))
	}
	allowed, err := s.spendAll(ctx, pools, targets)
	if err != nil || !allowed {
		home.refund(ctx, s.fallback)
		local.refund(ctx, s.local)
	}
	return err
}

// peek writes peeks for the requests of a group.
func (s *Store) peek(ctx context.Context, g *group, targets []target) error {
	for n, i := range g.index {
		peek := penstock.Request{Key: g.rs[n].Key, Limit: g.rs[n].Limit}
		if err := s.takeOne(ctx, &peek, &g.ds[i], targets[i]); err != nil {
			return &penstock.RequestError{Index: i, Err: err}
		}
	}
	return nil
}

// spendAll spends from pools, and reports whether all of them allowed it. Of several, the one that has least is first: if it
// denies, it should not cost units of the others.
func (s *Store) spendAll(ctx context.Context, g *group, targets []target) (allowed bool, err error) {
	order := make([]int, len(g.rs))
	for n := range order {
		order[n] = n
	}
	if len(order) > 1 {
		if err := s.peek(ctx, g, targets); err != nil {
			return false, err
		}
		spare := func(n int) int64 { return g.ds[g.index[n]].Remaining - g.rs[n].Cost }
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(spare(a), spare(b)) })
	}
	for at, n := range order {
		i := g.index[n]
		if g.ds[i], err = s.spend(ctx, &g.rs[n], targets[i].globalLimit); err != nil {
			return false, &penstock.RequestError{Index: i, Err: err}
		}
		if !g.ds[i].Allowed {
			s.lose(g, order[:at])
			return false, nil
		}
	}
	return true, nil
}

// lose counts what requests of a group spent in vain.
func (s *Store) lose(g *group, spent []int) {
	for _, n := range spent {
		d := &g.ds[g.index[n]]
		s.stats.lost.Add(d.Granted)
		d.Granted = 0
	}
}
