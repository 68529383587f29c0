package penstock

import "context"

// This file decides refunds while the ledger has debts: units that the secondary store granted are
// refunded there, and not charged to the primary.

// postponeRefund refunds nothing, because the ledger has still to tell the primary store of
// the ID, which would charge it again. The caller can repeat the refund until the source is the
// store.
func (f *Fallback) postponeRefund(ctx context.Context, s *fallbackShard, r *Request) (Decision, error) {
	f.chargeAsync(s)
	d, err := f.takeLocal(ctx, s, &Request{Key: r.Key, Limit: r.Limit})
	d.Allowed = err == nil
	return d, err
}

// refundsDebt reports whether one of the requests is a refund to a shard with
// debts, or of an ID that the primary store is being told of.
func (f *Fallback) refundsDebt(rs []Request) bool {
	for i := range rs {
		l := &f.shardFor(rs[i].Key).ledger
		if rs[i].Cost < 0 && !rs[i].leased && (l.hasDebts() || rs[i].ID != "" && l.isPending(&rs[i])) {
			return true
		}
	}
	return false
}

// refundDebt refunds units that the secondary store granted and that are not yet
// charged to the primary, and subtracts them from the request. The rest is for
// the primary. It returns the secondary's decision, or the zero Decision if there
// was nothing to refund.
func (f *Fallback) refundDebt(ctx context.Context, s *fallbackShard, r *Request) (d Decision) {
	if r.ID != "" || r.leased {
		return d
	}
	units := s.ledger.refund(r)
	if units == 0 && r.Cost != Reset {
		return d
	}
	local := Request{Key: r.Key, Limit: r.Limit, Cost: -units}
	_, local.Limit = f.modeFor(r.Limit)
	if r.Cost == Reset {
		local.Cost = Reset // this also cancels the debts under IDs
	} else {
		r.Cost += units
	}
	d, _ = f.secondary.Take(ctx, local) // on an error the secondary counts too much
	d.Allowed, d.Granted, d.Source = true, -units, SourceFallback
	return d
}
