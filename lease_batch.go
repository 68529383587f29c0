package penstock

import (
	"context"
	"slices"
)

// A leaseBatch is several requests that a lease decides.
type leaseBatch struct {
	l        *Lease
	rs       []Request
	ds       []Decision
	needs    []need
	together bool // whether all are granted or none

	rest   []Request // those that the store decides
	places []int     // where they are among all
}

// batch returns the requests as a batch. It is not ok if leases have nothing to do
// with any of them, or if one is malformed, so that the store can say which.
func (l *Lease) batch(rs []Request, ds []Decision) (b *leaseBatch, ok bool) {
	if l.next == nil || len(ds) < len(rs) {
		return nil, false
	}
	needs := make([]need, len(rs))
	leased := false
	for i := range rs {
		if rs[i].Validate() != nil {
			return nil, false
		}
		needs[i], ok = l.need(&rs[i])
		leased = leased || ok
	}
	return &leaseBatch{l: l, rs: rs, ds: ds, needs: needs}, leased
}

// spend meets a request by what is held, or leaves it to the store. After one that
// gives units back, all later ones of the same key go to the store as well. Of
// requests that are taken together the store alone refuses any, because only it
// knows how the others stand.
func (b *leaseBatch) spend(ctx context.Context, i int) error {
	n := &b.needs[i]
	if n.takes && !b.givesBefore(i) {
		done, err := b.l.spend(ctx, n, &b.ds[i])
		if err != nil {
			return err
		}
		if done && (b.ds[i].Allowed || !b.together) {
			return nil
		}
	}
	n.taken = 0
	b.rest, b.places = append(b.rest, b.rs[i]), append(b.places, i)
	return nil
}

func (b *leaseBatch) givesBefore(i int) bool {
	return slices.ContainsFunc(b.needs[:i], func(n need) bool { return n.cost < 0 && n.hash == b.needs[i].hash })
}

// takeRest lets the store decide what is left, and reports whether all of that is
// allowed.
func (b *leaseBatch) takeRest(
	ctx context.Context, take func(context.Context, Store, []Request, []Decision) error,
) (allowed bool, err error) {
	if len(b.rest) == 0 {
		return true, nil
	}
	for _, i := range b.places {
		if b.needs[i].meter != nil {
			b.l.before(&b.needs[i])
		}
	}
	answers := make([]Decision, len(b.rest))
	err = take(ctx, b.l.next, b.rest, answers)
	allowed = err == nil
	for j, i := range b.places {
		allowed = allowed && answers[j].Allowed
		if n := &b.needs[i]; n.meter != nil {
			b.l.after(n, &answers[j], err)
		}
		if err == nil {
			b.ds[i] = answers[j]
		}
	}
	return allowed, reindex(err, b.places)
}

// putBack undoes what was spent of what is held, and makes looks of the decisions.
func (b *leaseBatch) putBack() {
	for i := range b.needs {
		if n := &b.needs[i]; n.taken > 0 {
			b.l.set(n).putBack(b.l, n)
			b.ds[i].Granted = 0
			b.ds[i].Remaining = min(b.ds[i].Remaining+n.cost, b.ds[i].Limit)
			n.taken = 0
		}
	}
	b.l.returnSoon()
}
