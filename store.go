package penstock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// A Store holds the state of keys and decides requests. It is safe for concurrent
// use. [NewMemory] returns one.
//
// An error means that no decision was made; a denial is a decision. A store may
// implement [BatchStore], [AtomicStore] and other optional interfaces. A wrapper
// that has only Take hides them.
type Store interface {
	Take(ctx context.Context, r Request) (Decision, error)
}

// A StoreFunc is a function used as a [Store]. It has only Take, so [TakeAll] and
// [TakeEach] call it for one request after the other, even if the store it wraps
// could decide them in one call.
type StoreFunc func(ctx context.Context, r Request) (Decision, error)

// Take calls f.
func (f StoreFunc) Take(ctx context.Context, r Request) (Decision, error) { return f(ctx, r) }

// AllowAll is a store that grants every request and keeps no state.
var AllowAll Store = StoreFunc(func(_ context.Context, r Request) (Decision, error) {
	if err := r.validateShape(); err != nil {
		return Decision{}, err
	}
	capacity := r.Limit.Capacity()
	return Decision{Allowed: true, Granted: max(r.Cost, 0), Limit: capacity, Remaining: capacity}, nil
})

// DenyAll is a store that denies every request with a cost above zero. One with
// Overdraw is allowed and charged nothing. There is nothing to settle.
var DenyAll Store = StoreFunc(func(_ context.Context, r Request) (Decision, error) {
	if err := r.validateShape(); err != nil {
		return Decision{}, err
	}
	if r.Settle {
		return Decision{}, errNotRemembered
	}
	if r.Cost <= 0 || r.Overdraw {
		return Decision{Allowed: true, Limit: r.Limit.Capacity()}, nil
	}
	return Decision{Limit: r.Limit.Capacity(), RetryAfter: Never}, nil
})

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
	if err := ValidateEach(rs, ds); err != nil {
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

// A takeFunc is [TakeEach] or [TakeAll].
type takeFunc func(ctx context.Context, s Store, rs []Request, ds []Decision) error

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
// remembered is taken again.
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
	if err := ValidateAll(rs, ds); err != nil {
		return err
	}
	clearDecisions(rs, ds)
	totals, later := totalsOf(rs), totalsOf(rs)
	taken := make([]Request, len(rs)) // as they were granted, to refund after a denial
	for n, i := range permitsLast(rs) {
		r := rs[i]
		k := stateKeyOf(r)
		later[k] -= r.Cost
		if total := totals[k]; r.Cost > 0 && !r.Overdraw && !r.Settle && total > r.Limit.Capacity()-r.KeepFree {
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
	if r.Limit.hasPermits() && r.Cost > 0 && !r.NewID && !last {
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

// SettleAll makes what was charged under one ID equal to the costs of the requests, as
// one: if the ID is not remembered for one of them, nothing is charged and the error is
// [ErrUnknownID]. It sets [Request.Settle] in a copy of the requests and calls [TakeAll],
// so Granted is what each is charged then. It can be repeated, and settle again to other
// amounts. On a store that is not an [AtomicStore], or if the keys are in several slots
// of a Redis Cluster, an error may leave some settled: repeat it.
func SettleAll(ctx context.Context, s Store, rs []Request, ds []Decision) error {
	rs = slices.Clone(rs)
	for i := range rs {
		rs[i].Settle = true
	}
	return TakeAll(ctx, s, rs, ds)
}

// Tightest combines several decisions into one: of the denials, the one with the
// longest RetryAfter; if all are allowed, the one with the least Remaining, and
// the longest Delay of all. If ds is empty, it returns the zero Decision, which
// denies.
func Tightest(ds []Decision) Decision {
	var tightest Decision
	var delay time.Duration
	for i, d := range ds {
		if i == 0 || d.tighterThan(tightest) {
			tightest = d
		}
		delay = max(delay, d.Delay)
	}
	if tightest.Allowed {
		tightest.Delay = delay
	}
	return tightest
}

func (d Decision) tighterThan(e Decision) bool {
	switch {
	case d.Allowed != e.Allowed:
		return e.Allowed
	case d.Allowed:
		return d.Remaining < e.Remaining
	}
	return d.RetryAfter > e.RetryAfter
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
	ctx = context.WithoutCancel(ctx)
	for i, r := range taken {
		if r.Cost <= 0 {
			continue
		}
		r.Cost, r.MaxDelay, r.Overdraw, r.whole = -r.Cost, 0, false, true
		if _, err := s.Take(ctx, r); err != nil && first == nil {
			first = requestError(i, fmt.Errorf("refund: %w", err))
		}
	}
	return first
}

// ValidateEach returns the error that [TakeEach] returns for a malformed request,
// or for fewer decisions than requests. It is for stores that implement TakeEach.
func ValidateEach(rs []Request, ds []Decision) error {
	for i := range rs {
		if err := rs[i].validate(); err != nil {
			return requestError(i, err)
		}
	}
	return checkLengths(rs, ds)
}

// ValidateAll returns the error that [TakeAll] returns for a malformed request,
// for a request that cannot be decided all or nothing, or for fewer decisions
// than requests. It is for stores that implement TakeAll.
func ValidateAll(rs []Request, ds []Decision) error {
	for i := range rs {
		if err := rs[i].validateForAll(); err != nil {
			return requestError(i, err)
		}
	}
	if err := ValidateEach(rs, ds); err != nil {
		return err
	}
	return validateTogether(rs)
}

// validateTogether returns an error if requests, each of which is valid, cannot be
// decided all or nothing.
func validateTogether(rs []Request) error {
	if err := validateCharges(rs); err != nil {
		return err
	}
	return validateIDs(rs)
}

// CommonID returns the ID under which all requests of a [TakeAll] are granted once. It is
// empty if some have another or none, or take permits only under a new ID. It is for
// stores that implement TakeAll.
func CommonID(rs []Request) string {
	for i := range rs {
		if rs[i].ID != rs[0].ID || rs[i].NewID {
			return ""
		}
	}
	if len(rs) == 0 {
		return ""
	}
	return rs[0].ID
}

// validateIDs returns an error if the requests have different IDs, or if the same ID
// would be recorded twice for one key and limit.
func validateIDs(rs []Request) error {
	if len(rs) < 2 {
		return nil
	}
	common := CommonID(rs)
	for i := range rs {
		switch {
		case rs[i].ID != common && rs[i].ID != "" && !rs[i].Limit.hasPermits():
			return requestError(i, costError("ID", "must be the same on all requests of an all-or-nothing request"))
		case rs[i].Settle != rs[0].Settle:
			return requestError(i, costError("Settle", "must be set on all requests of an all-or-nothing request, or on none"))
		}
	}
	var seen map[stateKey]bool // nil until a request has an ID
	for i := range rs {
		if !rs[i].isRecorded() {
			continue
		}
		if seen == nil {
			seen = make(map[stateKey]bool, len(rs))
		}
		if seen[stateKeyOf(rs[i])] {
			return requestError(i, costError("ID", "cannot stand on two requests for the same key and limit"))
		}
		seen[stateKeyOf(rs[i])] = true
	}
	return nil
}

// validateCharges returns an error if one of the requests, which are valid, overdraws
// a key from which another takes: whether the take fits would depend on their order.
func validateCharges(rs []Request) error {
	var taken map[stateKey]bool // nil until a request overdraws
	for i := range rs {
		if !rs[i].Overdraw {
			continue
		}
		if taken == nil {
			taken = takenKeys(rs)
		}
		if taken[stateKeyOf(rs[i])] {
			return requestError(i, costError("Overdraw", "cannot be combined with a take of the same key in an all-or-nothing request"))
		}
	}
	return nil
}

// takenKeys returns the keys that the requests take from without overdrawing them.
func takenKeys(rs []Request) map[stateKey]bool {
	taken := make(map[stateKey]bool, len(rs))
	for i := range rs {
		if rs[i].Cost > 0 && !rs[i].Overdraw {
			taken[stateKeyOf(rs[i])] = true
		}
	}
	return taken
}

// errNoStore is returned for a nil Store.
var errNoStore = errors.New("penstock: no store: want a Store such as NewMemory(nil)")

// checkLengths returns an error if ds is shorter than rs.
func checkLengths(rs []Request, ds []Decision) error {
	if len(ds) < len(rs) {
		return fmt.Errorf("penstock: %d requests, but ds has a length of %d", len(rs), len(ds))
	}
	return nil
}
