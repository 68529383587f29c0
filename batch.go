package penstock

import (
	"context"
	"fmt"
	"math"
	"time"
)

// TakeEach decides the requests independently, and writes the decisions to ds, in
// the same order. A [BatchStore] decides them in one call, any other store one by
// one. If a request is malformed, nothing is charged. After an error, the decisions
// that were not made are zero, which denies.
func TakeEach(ctx context.Context, s Store, rs []Request, ds []Decision) error {
	clearDecisions(rs, ds)
	if s, ok := s.(BatchStore); ok {
		return s.TakeEach(ctx, rs, ds)
	}
	if s == nil {
		return errNoStore
	}
	if err := ValidateBatch(rs, ds, false); err != nil {
		return err
	}
	return takeEach(ctx, s, rs, ds)
}

// takeEach is [TakeEach] on a store that is not a [BatchStore]. An error about one key leaves
// the others to be decided.
func takeEach(ctx context.Context, s Store, rs []Request, ds []Decision) (first error) {
	for i, r := range rs {
		d, err := s.Take(ctx, r)
		switch {
		case err == nil:
			ds[i] = d
		case !isKeyError(err):
			return requestError(i, err)
		case first == nil:
			first = requestError(i, err)
		}
	}
	return first
}

// TakeBatch decides the requests all or nothing, as [TakeAll] does, or else independently, as
// [TakeEach] does. One request that is independent is a Take. It is for the wrappers of stores;
// see [BatchFunc].
func TakeBatch(ctx context.Context, s Store, rs []Request, ds []Decision, all bool) (err error) {
	switch {
	case all:
		return TakeAll(ctx, s, rs, ds)
	case len(rs) != 1 || len(ds) == 0 || s == nil:
		return TakeEach(ctx, s, rs, ds)
	}
	if ds[0], err = s.Take(ctx, rs[0]); err != nil {
		ds[0], err = Decision{}, requestError(0, err)
	}
	return err
}

// takeOpen is [TakeBatch] for those requests that a wrapper has left open, which are at the
// indexes. It writes their decisions in place.
func takeOpen(ctx context.Context, s Store, rs []Request, ds []Decision, all bool, open []int) error {
	switch len(open) {
	case 0:
		return nil
	case len(rs):
		return TakeBatch(ctx, s, rs, ds, all)
	}
	requests, decisions := make([]Request, len(open)), make([]Decision, len(open))
	for n, i := range open {
		requests[n] = rs[i]
	}
	err := TakeBatch(ctx, s, requests, decisions, all)
	for n, i := range open {
		ds[i] = decisions[n]
	}
	if err != nil {
		err = reindex(err, open)
	}
	return err
}

// batchBuffer is the largest batch whose state in a wrapper stays on the stack.
const batchBuffer = 8

// TakeAll decides the requests all or nothing, and writes the decisions to ds, in
// the same order. If all are Allowed, which [Tightest] reports, all were charged.
// Otherwise none was: the requests that did not fit are denied with a RetryAfter,
// and the other decisions are peeks. Costs of the same key and limit add up. A
// request with AtMost or a negative cost is an error. A request with Overdraw
// is charged if the others are, and denies nothing; together with a take of the same
// key and limit it is an error. After an error, all decisions are zero, which denies.
//
// With a [Request.ID], which must be the same on all requests, a call is safe to
// retry. The ID is remembered only if all were granted, and for as long as the longest
// of their limits remembers it. A retry then returns the same grants and charges
// nothing. If only some of the grants are still remembered, it charges nothing and
// returns [ErrUnknownID]. Two requests under one ID must not be for the same key and
// limit. A request with a cost of 0 is not remembered.
//
// Permits of a [Concurrent] limit are remembered while they are held, and a retry
// renews them. Other grants of the call may be forgotten before, so renew and release
// permits by a Take of their own. Requests for permits may also have IDs where the
// others have none; then the call is not safe to retry.
//
// An [AtomicStore] decides atomically. On any other store the requests are taken
// one by one, and refunded if one is denied. That never admits too much, but
// concurrent requests may briefly see units taken, and a grant that is no longer
// remembered is taken again. Only the first request that does not fit is denied, and
// its RetryAfter leaves out those behind it, also those for the same key: after it the
// call may be denied again, with the RetryAfter of another.
func TakeAll(ctx context.Context, s Store, rs []Request, ds []Decision) error {
	if s, ok := s.(AtomicStore); ok {
		return undecided(s.TakeAll(ctx, rs, ds), rs, ds)
	}
	return undecided(takeInTurn(ctx, s, rs, ds), rs, ds)
}

// takeInTurn is [TakeAll] on a store that is not an [AtomicStore].
func takeInTurn(ctx context.Context, s Store, rs []Request, ds []Decision) error {
	if s == nil {
		return errNoStore
	}
	if err := ValidateBatch(rs, ds, true); err != nil {
		return err
	}
	clearDecisions(rs, ds)
	totals, later := totalsOf(rs), totalsOf(rs)
	taken := make([]Request, len(rs)) // as they were granted, to refund after a denial
	for n, i := range permitsLast(rs) {
		r := rs[i]
		k := stateKeyOf(r)
		later[k] -= r.Cost
		if total := totals[k]; r.canBeDenied() && total > r.mostGranted() {
			r.Cost = total // denied with a RetryAfter of Never
		}
		if r.KeepFree > 0 {
			r.KeepFree += min(later[k], math.MaxInt64-r.KeepFree) // so many remain after all takes of the key
		}
		d, renewed, err := takeTurn(ctx, s, r, n == len(rs)-1)
		if err != nil && !r.Settle { // a settlement can be repeated
			_ = refundAll(ctx, s, taken) // err is the one to report
		}
		if err != nil {
			return requestError(i, err)
		}
		if ds[i] = d; !d.Allowed {
			return denyAll(ctx, s, rs, ds, taken, i)
		}
		if !renewed {
			taken[i], taken[i].Cost = r, d.Granted
		}
	}
	return nil
}

// permitsLast returns the indexes of the requests in the order in which they are taken: those
// for permits last, so that most are taken when no other can be denied.
func permitsLast(rs []Request) []int {
	order := make([]int, 0, len(rs))
	for _, permits := range [...]bool{false, true} {
		for i := range rs {
			if rs[i].Limit.hasPermits() == permits {
				order = append(order, i)
			}
		}
	}
	return order
}

// takeTurn takes one request of several. It reports whether that only renewed permits, which
// a denial of the requests after it must not release.
func takeTurn(ctx context.Context, s Store, r Request, last bool) (d Decision, renewed bool, err error) {
	if r.canRenew() && !last {
		renewal := r
		renewal.KeepFree = r.Limit.Capacity() // grants permits only to an ID that holds them
		if d, err = s.Take(ctx, renewal); err != nil || d.Allowed {
			return d, true, err
		}
	}
	d, err = s.Take(ctx, r)
	return d, false, err
}

// undecided returns the error of a TakeAll. Decisions beside an error are zero, so
// that a caller that reads them in spite of it denies.
func undecided(err error, rs []Request, ds []Decision) error {
	if err != nil {
		clearDecisions(rs, ds)
	}
	return err
}

func clearDecisions(rs []Request, ds []Decision) { clear(ds[:min(len(rs), len(ds))]) }

// Tightest combines several decisions into one: the tightest by
// [Decision.TighterThan], and if all are allowed, with the longest Delay of all.
// If ds is empty, it returns the zero Decision, which denies.
func Tightest(ds []Decision) Decision {
	var tightest Decision
	var delay time.Duration
	for i, d := range ds {
		if i == 0 || d.TighterThan(tightest) {
			tightest = d
		}
		delay = max(delay, d.Delay)
	}
	if tightest.Allowed {
		tightest.Delay = delay
	}
	return tightest
}

// TighterThan reports whether a decision says more about when a key has units
// again than one under another limit: a denial more than a grant, of denials the
// one with the longer RetryAfter, of grants the one with the least Remaining, and
// of equals the one with the longer ResetAfter.
func (d Decision) TighterThan(e Decision) bool {
	switch {
	case d.Allowed != e.Allowed:
		return e.Allowed
	case !d.Allowed && d.RetryAfter != e.RetryAfter:
		return d.RetryAfter > e.RetryAfter
	case d.Allowed && d.Remaining != e.Remaining:
		return d.Remaining < e.Remaining
	}
	return d.ResetAfter > e.ResetAfter
}

// A stateKey identifies the state that a request uses.
type stateKey struct {
	key   string
	limit Limit
}

func stateKeyOf(r Request) stateKey { return stateKey{r.Key, r.Limit.Identity()} }

// totalsOf returns the total cost of the requests for each state.
func totalsOf(rs []Request) map[stateKey]int64 {
	totals := make(map[stateKey]int64, len(rs))
	for _, r := range rs {
		k := stateKeyOf(r)
		totals[k] += min(r.Cost, math.MaxInt64-totals[k])
	}
	return totals
}

// denyAll refunds what was taken before a request was denied, and writes a peek for every
// request. The denied one stays denied.
func denyAll(ctx context.Context, s Store, rs []Request, ds []Decision, taken []Request, denied int) error {
	retry := ds[denied].RetryAfter
	if err := refundAll(ctx, s, taken); err != nil {
		return err
	}
	for i := range rs {
		d, err := s.Take(ctx, peekOf(rs[i]))
		if err != nil {
			return requestError(i, err)
		}
		ds[i] = d
	}
	ds[denied].Allowed, ds[denied].RetryAfter, ds[denied].Delay = false, retry, 0
	return nil
}

// refundAll refunds the units that were taken, even if ctx has ended.
func refundAll(ctx context.Context, s Store, taken []Request) (first error) {
	ctx = withRefundKind(context.WithoutCancel(ctx), wholeTake)
	for i, r := range taken {
		if r.Cost <= 0 {
			continue
		}
		if _, err := s.Take(ctx, refundOf(r, r.Cost)); err != nil && first == nil {
			first = requestError(i, fmt.Errorf("refund: %w", err))
		}
	}
	return first
}

// A refundKind says which units a refund returns, for the wrappers to which that matters. The
// context carries it through the stores between them.
type refundKind uint8

const (
	_           refundKind = iota
	wholeTake              // all that one take of this process was granted
	leasedUnits            // units that a [Lease] took from the primary store of a [Fallback]
)

type refundKindKey struct{}

func withRefundKind(ctx context.Context, k refundKind) context.Context {
	return context.WithValue(ctx, refundKindKey{}, k)
}

func refunds(ctx context.Context, k refundKind) bool { return ctx.Value(refundKindKey{}) == k }
