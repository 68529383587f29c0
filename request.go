package penstock

import (
	"fmt"
	"math"
	"strconv"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// Reset, as the Cost of a [Request], deletes the state of the key, which is then
// idle. Records of a Request.ID are kept.
const Reset int64 = math.MinInt64

// A Request asks a [Store] for units of one key under one limit.
type Request struct {
	// Key is what is limited, such as a user or an address. Any bytes, but not
	// empty. Required.
	Key string

	// Limit applies to the key. Required.
	Limit Limit

	// Cost is the number of units. Above 0 takes, 0 peeks, below 0 refunds,
	// and [Reset] resets the key. A peek is always allowed, so a request whose
	// cost was not set is never denied.
	Cost int64

	// AtMost takes the units that are left if they are fewer than the cost.
	// The request is denied only if none are left.
	AtMost bool

	// Overdraw charges the cost whether or not it fits: the request is allowed,
	// and the key owes what was not left, up to [Limit.MaxDebt]. Granted is what
	// was charged. The cost must be above zero. It cannot be combined with AtMost
	// or MaxDelay, and a RollingWindow, SlidingLog or Concurrent limit cannot owe.
	// In a [TakeAll], such a request denies nothing.
	Overdraw bool

	// KeepFree is how many units must remain after a take, which is denied
	// otherwise. It keeps them for requests that set it to less: with a KeepFree of
	// 20 on all but the critical requests, these alone can take the last 20 units.
	// Only the cost is charged, RetryAfter is that of a request for both, and AtMost
	// takes what is left above KeepFree. Such a request reserves no units of a
	// TokenBucket, which ignores its MaxDelay. Peeks, refunds and requests with
	// Overdraw or Settle ignore KeepFree. In a [TakeAll], so many must remain after
	// all takes of the key. Default: 0.
	KeepFree int64

	// Settle makes what was charged under the ID equal to the Cost, once the true
	// cost is known: it refunds what was too much, except what time has paid back
	// already, and charges what was too little as Overdraw does, as far as the
	// limit's [Limit.MaxDebt] allows. Granted is then what is charged under the ID.
	// It can be repeated, and settled again to another amount. What is never settled
	// stays charged. If the ID is not remembered, nothing is charged and the error is
	// [ErrUnknownID]. In a [TakeAll], all requests settle or none does.
	Settle bool

	// MaxDelay lets a bucket grant units that become available within this
	// time: they are charged at once, and [Decision.Delay] is how long to wait
	// before acting. On a LeakyBucket, which always delays, it bounds the
	// delay. Windows ignore it. Default: no delay for a TokenBucket, any delay
	// for a LeakyBucket.
	MaxDelay time.Duration

	// ID makes a take safe to retry. Within one Period (at most 24 hours), the
	// same ID on the same key and limit is charged once and returns the same
	// grant, even if the cost differs. Denials are not remembered: a retry is
	// decided again. A refund with an ID refunds that take, once, and never
	// more than it was granted. A full [Memory] without room for the record
	// returns [ErrUnavailable] and charges nothing. For one ID on several
	// requests, see [TakeAll]. Optional.
	//
	// A [Concurrent] limit requires it for every cost but 0 and Reset: it names
	// the permits. A new ID takes permits, the same ID renews them for one more
	// Period, and a negative cost under it releases them.
	ID string

	// Hold lengthens how long the ID is remembered, for work that takes longer than
	// one Period, up to 24 hours. The longest Hold or Period of the requests in a
	// [TakeAll] holds for all of them. Default: one Period.
	Hold time.Duration

	// NewID denies a take under an ID that holds permits of a [Concurrent] limit
	// already, which would renew them otherwise. It is for IDs that others choose:
	// with one ID, they could run any number of requests under one permit. Such a
	// take is not repeated when its response was lost. In a [TakeAll], requests
	// under other limits have no ID then.
	NewID bool

	// compiled is the compiled Limit, which saves stores a lookup. It is used only
	// if it matches Limit, because a wrapper may have changed Limit.
	compiled *compiledLimit
}

// canBeDenied reports whether the request takes units only if they are there.
func (r *Request) canBeDenied() bool { return r.Cost > 0 && !r.Overdraw && !r.Settle }

// isPlainTake reports whether the request can be denied, and is not one that may be repeated.
func (r *Request) isPlainTake() bool { return r.canBeDenied() && r.ID == "" }

// returnsUnits reports whether the request may return units to its key.
func (r *Request) returnsUnits() bool { return r.Cost < 0 || r.Settle }

// isRefund reports whether the request returns units, and does not reset its key.
func (r *Request) isRefund() bool { return r.Cost < 0 && r.Cost != Reset }

// isRecorded reports whether what the request is charged is recorded under its ID.
func (r *Request) isRecorded() bool { return r.ID != "" && (r.Cost > 0 || r.Settle) }

// canRenew reports whether the request renews permits that its ID holds.
func (r *Request) canRenew() bool { return r.Limit.hasPermits() && r.Cost > 0 && !r.NewID }

// mayDelay reports whether units may be granted for later.
func (r *Request) mayDelay() bool { return r.MaxDelay > 0 && r.Limit.isBucket() }

// needed returns how many units must be there for a take to be granted any.
func (r *Request) needed() int64 {
	cost := r.Cost
	if r.AtMost {
		cost = min(cost, 1)
	}
	if cost > 0 {
		cost += min(r.KeepFree, math.MaxInt64-cost)
	}
	return cost
}

// mostGranted returns how many units a request can be granted of an idle key.
func (r *Request) mostGranted() int64 { return r.Limit.Capacity() - r.KeepFree }

// peekOf returns the request as a peek at its key.
func peekOf(r Request) Request {
	r.Cost, r.MaxDelay, r.Overdraw = 0, 0, false
	return r
}

// refundOf returns the refund of units that the request was granted.
func refundOf(r Request, units int64) Request {
	r = peekOf(r)
	r.Cost, r.AtMost = -units, false
	return r
}

// Validate returns an error if a store would reject the request as malformed. The
// error wraps [ErrBadKey], [ErrBadCost] or [ErrBadLimit]. Stores call it
// themselves.
func (r Request) Validate() error { return r.validate() }

// validate is Validate without copying the request.
func (r *Request) validate() error {
	if err := r.validateShape(); err != nil {
		return err
	}
	return r.validateLimit()
}

// validateLimit validates the limit, unless it was compiled, as that of a [Limiter] is.
func (r *Request) validateLimit() error {
	if r.compiled != nil && r.compiled.limit.equal(&r.Limit) {
		return nil
	}
	return r.Limit.validate()
}

// validateShape is Validate without the limit.
func (r *Request) validateShape() error {
	switch {
	case r.Key == "":
		return &FieldError{Field: "Key", Problem: "is empty: want any bytes that identify the caller", Kind: ErrBadKey}
	case r.MaxDelay < 0:
		return costError("MaxDelay", r.MaxDelay.String()+": must not be negative")
	case r.KeepFree < 0:
		return costError("KeepFree", strconv.FormatInt(r.KeepFree, 10)+": must not be negative")
	case r.AtMost && r.Cost < 0:
		return costError("AtMost", "cannot be combined with a refund")
	case r.ID != "" && r.Cost == Reset:
		return costError("ID", "cannot be combined with a reset")
	case r.Hold != 0 && (r.Hold < 0 || r.Hold > maxIDLifetime):
		return costError("Hold", r.Hold.String()+": must be from 0 to "+maxIDLifetime.String())
	case r.NewID && !r.Limit.hasPermits():
		return costError("NewID", "requires a "+Concurrent.String()+" limit, not a "+r.Limit.Algorithm.String())
	case r.Settle:
		return r.validateSettle()
	case r.Overdraw:
		return r.validateOverdraw()
	case r.Limit.hasPermits():
		return r.validateConcurrent()
	}
	return nil
}

// validateConcurrent returns an error if the request cannot be made under a
// concurrency limit.
func (r *Request) validateConcurrent() error {
	switch {
	case r.ID == "" && r.Cost != 0 && r.Cost != Reset:
		return costError("ID", "is required by a "+Concurrent.String()+" limit: it names the permits that are taken, renewed or released; in Go, Limiter.Acquire makes one")
	case r.Cost > algorithm.MaxPermits:
		return costError("Cost", strconv.FormatInt(r.Cost, 10)+": must be at most "+strconv.Itoa(algorithm.MaxPermits)+" under a "+Concurrent.String()+" limit")
	}
	return nil
}

// validateSettle returns an error if the request cannot settle what was taken.
func (r *Request) validateSettle() error {
	switch {
	case r.ID == "":
		return costError("ID", "is required to settle: it names what was taken")
	case r.Cost < 0:
		return costError("Cost", strconv.FormatInt(r.Cost, 10)+": must not be negative in a settlement")
	case r.AtMost || r.Overdraw || r.MaxDelay > 0:
		return costError("Settle", "cannot be combined with AtMost, Overdraw or MaxDelay")
	case r.Limit.hasPermits():
		return costError("Settle", "requires a limit over time: permits are released, not settled")
	}
	return nil
}

// validateOverdraw returns an error if the request cannot overdraw its key.
func (r *Request) validateOverdraw() error {
	switch {
	case r.Cost <= 0:
		return costError("Overdraw", "requires a cost above zero, not "+strconv.FormatInt(r.Cost, 10))
	case r.AtMost:
		return costError("Overdraw", "cannot be combined with AtMost")
	case r.MaxDelay > 0:
		return costError("Overdraw", "cannot be combined with MaxDelay: a charge is not delayed")
	case !r.Limit.canOwe():
		return costError("Overdraw", "requires a bucket, a fixed or a sliding window: a "+
			r.Limit.Algorithm.String()+" has no place for units beyond its count")
	}
	return nil
}

// validateForAll returns an error if the request cannot be part of a TakeAll. It
// does not check the limit.
func (r *Request) validateForAll() error {
	switch {
	case r.AtMost:
		return costError("AtMost", "cannot be used in an all-or-nothing request")
	case r.Cost < 0:
		return costError("Cost", strconv.FormatInt(r.Cost, 10)+": must not be negative in an all-or-nothing request")
	}
	return r.validateShape()
}

// isSimple reports whether the request is a take or a peek that [TakeAll] accepts under a
// limit over time, and that has nothing to do with IDs. It answers for most requests what
// validateForAll would, in less time.
func (r *Request) isSimple() bool {
	return r.Cost >= 0 && r.Key != "" && r.ID == "" && r.Hold == 0 && r.MaxDelay >= 0 && r.KeepFree >= 0 &&
		!r.AtMost && !r.Overdraw && !r.Settle && !r.NewID
}

// forAlgorithm returns the part of the request that the algorithms need.
func (r *Request) forAlgorithm() algorithm.Request {
	return algorithm.Request{
		Cost: r.Cost, AtMost: r.AtMost, Overdraw: r.Overdraw, MaxDelay: int64(r.MaxDelay), KeepFree: r.KeepFree,
		NewID: r.NewID,
	}
}

func costError(field, problem string) error {
	return &FieldError{Field: field, Problem: problem, Kind: ErrBadCost}
}

// ValidateBatch returns the error that [TakeEach], or [TakeAll] if all is set, returns for a
// malformed request, for requests that cannot be decided all or nothing, or for fewer decisions
// than requests. Stores that implement them call it themselves.
func ValidateBatch(rs []Request, ds []Decision, all bool) error {
	validate := (*Request).validateShape
	if all {
		validate = (*Request).validateForAll
	}
	for i := range rs {
		err := validate(&rs[i])
		if err == nil {
			err = rs[i].validateLimit()
		}
		if err != nil {
			return requestError(i, err)
		}
	}
	if err := checkLengths(rs, ds); err != nil || !all {
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

// commonID returns the ID under which all requests of a [TakeAll] are granted once. It is
// empty if some have another or none, or take permits only under a new ID.
func commonID(rs []Request) string {
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
	common := commonID(rs)
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
		if rs[i].canBeDenied() {
			taken[stateKeyOf(rs[i])] = true
		}
	}
	return taken
}

// checkLengths returns an error if ds is shorter than rs.
func checkLengths(rs []Request, ds []Decision) error {
	if len(ds) < len(rs) {
		return fmt.Errorf("penstock: %d requests, but ds has a length of %d", len(rs), len(ds))
	}
	return nil
}
