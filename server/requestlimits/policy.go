// Package requestlimits is about limits that callers bring in their requests: who may bring
// which, and how much takes under them may leave behind in the store.
package requestlimits

import (
	"errors"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/defaults"
)

// A Mode says which callers may bring the limit of a request.
type Mode uint8

// The modes of request limits.
const (
	On    Mode = iota // all callers
	Local             // callers that may refund
	Off               // none
)

// Options bound what the limits of requests leave behind in the store. The ceilings do not
// apply to callers that may refund units.
type Options struct {
	// Mode says which callers may bring a limit. Default: all.
	Mode Mode

	// MaxPeriod is the longest period of a limit, and the longest time in which a
	// bucket may refill. Default: 31 days.
	MaxPeriod time.Duration

	// MaxKeyBytes bounds the state of a key under a limit. Default: 4 KiB.
	MaxKeyBytes int64

	// MaxStoreBytes bounds the live state of all keys in a store that others share.
	// Default: no bound.
	MaxStoreBytes int64

	// StorePrefix begins the name of every key in that store. Optional.
	StorePrefix string

	// TakeAllMemory is for how long that store remembers each request of a TakeAll, to
	// roll it back. The record needs room as that of an ID does. Default: it does not.
	TakeAllMemory time.Duration

	// Claim returns an error if the store cannot decide under one of the limits, though
	// they are valid: a store on Redis counts windows to fourteen digits. Limits are claimed
	// when they are parsed, so that one that the store rejects fails alone and not the others
	// of its batch. Default: it can.
	Claim func(...penstock.Limit) error

	// Now is the clock by which MaxStoreBytes is accounted, for tests. Default: the
	// machine's monotonic clock.
	Now func() time.Time
}

const (
	defaultMaxPeriod   = 31 * 24 * time.Hour
	defaultMaxKeyBytes = 4 << 10
)

// A Reason says which bound a request limit is over.
type Reason uint8

// The reasons for which request limits are refused.
const (
	ReasonOff        Reason = iota // the mode is off
	ReasonRemote                   // the mode is local, and the caller is not
	ReasonPeriod                   // over MaxPeriod
	ReasonKeyBytes                 // over MaxKeyBytes
	ReasonStoreBytes               // over MaxStoreBytes
	reasons
)

// String returns the reason as a label of metrics.
func (r Reason) String() string {
	return [...]string{"off", "local", "period", "key_bytes", "redis_bytes"}[r]
}

// A Refusal is the error of a limit that a request may not bring. Nothing was charged.
type Refusal struct {
	Reason  Reason
	problem string
}

// exemption ends the messages of all ceilings.
const exemption = "; exempt are callers with the token, or if the server has none, direct callers on its machine"

func (e *Refusal) Error() string { return e.problem }

// overCeiling returns the refusal of a limit that is over a ceiling.
func overCeiling(r Reason, format string, args ...any) *Refusal {
	return &Refusal{r, fmt.Sprintf(format, args...) + exemption}
}

var (
	refusedOff    = &Refusal{ReasonOff, "limits in requests are disabled (--request-limits off): use a rule"}
	refusedRemote = &Refusal{ReasonRemote, "limits in requests need the token, or if the server has none, " +
		"a direct caller on its machine (--request-limits local)"}
)

// A Policy decides which request limits are accepted. It is safe for concurrent use.
type Policy struct {
	Options
	store   penstock.Store
	parsed  parsedLimits
	full    *Refusal    // the error over MaxStoreBytes
	ledger  *byteLedger // nil without MaxStoreBytes
	refused [reasons]atomic.Uint64
}

// New returns a policy for limits that the store decides.
func New(store penstock.Store, o Options) *Policy {
	p := &Policy{Options: o, store: store, parsed: parsedLimits{seed: maphash.MakeSeed()}}
	if p.Claim == nil {
		p.Claim = func(...penstock.Limit) error { return nil }
	}
	p.MaxPeriod = defaults.Or(p.MaxPeriod, defaultMaxPeriod)
	p.MaxKeyBytes = defaults.Or(p.MaxKeyBytes, defaultMaxKeyBytes)
	if p.MaxStoreBytes > 0 {
		p.ledger = newByteLedger(p.MaxStoreBytes, len(o.StorePrefix), o.Now)
		p.full = overCeiling(ReasonStoreBytes,
			"no room for another key: limits in requests may leave at most %d bytes in Redis (--request-limits-max-redis-bytes)", p.MaxStoreBytes)
	}
	return p
}

// Refusal returns why some callers may not bring the limit, or nil if all may. It depends on
// the limit alone, so APIs can cache it with the limit. Pass it to Refuse. The limit must be
// valid.
func (p *Policy) Refusal(l *penstock.Limit) *Refusal {
	if r := p.ModeRefusal(); r != nil {
		return r
	}
	if t := longestPeriod(l); t > p.MaxPeriod {
		return overCeiling(ReasonPeriod,
			"a period, or the time to refill a bucket, of %v: want at most %v (--request-limits-max-period)", t, p.MaxPeriod)
	}
	if n := maxKeyBytes(l); n > p.MaxKeyBytes {
		return overCeiling(ReasonKeyBytes,
			"up to %d bytes for a key: want at most %d (--request-limits-max-key-bytes)", n, p.MaxKeyBytes)
	}
	return nil
}

// ModeRefusal is Refusal for the overrides of Envoy, whose units have no ceiling.
func (p *Policy) ModeRefusal() *Refusal {
	switch p.Mode {
	case Off:
		return refusedOff
	case Local:
		return refusedRemote
	}
	return nil
}

// Refuse returns the refusal as an error, and counts it, unless the caller is exempt. It calls
// mayRefund only if that matters. The refusal may be nil.
func (p *Policy) Refuse(r *Refusal, mayRefund func() bool) error {
	if r == nil || r.Reason != ReasonOff && mayRefund() {
		return nil
	}
	p.refused[r.Reason].Add(1)
	return r
}

// Refused returns how many requests were refused because of the limit that they brought, by
// the reason.
func (p *Policy) Refused() map[Reason]uint64 {
	all := map[Reason]uint64{}
	for r := range reasons {
		all[r] = p.refused[r].Load()
	}
	return all
}

// StoreBytes returns how many bytes request limits have left behind in the store, as far as
// they are bounded.
func (p *Policy) StoreBytes() int64 {
	if p.ledger == nil {
		return 0
	}
	return p.ledger.bytes.Used()
}

// An Admission is room in the store for what a request may leave behind. Code that calls the
// store admits each request before, and settles the admission after the call.
type Admission struct {
	ledger *byteLedger // nil if the request is not accounted for
	state  ledgerEntry
	record ledgerEntry // of the request's ID, or to roll it back
}

// Admit makes room in the store for a request, which may be one of several in a TakeAll, or
// returns a [*Refusal]. It calls mayRefund only if the bytes in the store are bounded. The
// request must be valid.
func (p *Policy) Admit(r *penstock.Request, inTakeAll bool, mayRefund func() bool) (a Admission, err error) {
	l := p.ledger
	if l == nil || mayRefund() {
		return a, nil
	}
	a.state = l.entry(r)
	if r.Cost <= 0 {
		l.touch(&a.state)
		return a, nil
	}
	if !l.reserve(&a.state) {
		return a, p.Refuse(p.full, mayRefund)
	}
	switch {
	case r.Limit.HasPermits(): // its permits are the records of its IDs
	case r.ID != "":
		a.record = l.recordEntry(r, a.state.hash)
	case inTakeAll && p.TakeAllMemory > 0:
		a.record = l.rollBackEntry(r, p.TakeAllMemory)
	}
	if a.record.hash != 0 && !l.reserve(&a.record) {
		l.settle(&a.state, false)
		return a, p.Refuse(p.full, mayRefund)
	}
	a.ledger = l
	return a, nil
}

// AdmitAll makes room for all requests of a TakeEach or TakeAll, or for none.
func (p *Policy) AdmitAll(rs []penstock.Request, inTakeAll bool, mayRefund func() bool) ([]Admission, error) {
	if p.ledger == nil || mayRefund() {
		return nil, nil
	}
	admitted := make([]Admission, 0, len(rs))
	hold := longestHold(rs, inTakeAll)
	for i := range rs {
		r := rs[i]
		r.Hold = max(r.Hold, hold)
		a, err := p.Admit(&r, inTakeAll, mayRefund)
		if err != nil {
			FinishAll(admitted, make([]penstock.Decision, len(admitted)), nil)
			return nil, &penstock.RequestError{Index: i, Err: err}
		}
		admitted = append(admitted, a)
	}
	return admitted, nil
}

// longestHold returns how long one ID on all requests of a TakeAll is remembered.
func longestHold(rs []penstock.Request, inTakeAll bool) (hold time.Duration) {
	if !inTakeAll || rs[0].ID == "" {
		return 0
	}
	for i := range rs {
		hold = max(hold, rs[i].Hold, IDLifetime(&rs[i].Limit))
	}
	return hold
}

// FinishAll finishes the admissions of AdmitAll.
func FinishAll(admitted []Admission, ds []penstock.Decision, err error) {
	for i := range admitted {
		admitted[i].Finish(&ds[i], err)
	}
}

// Finish ends an admission with the result of its request. A request that failed may have
// been charged, unless it was invalid, or settles under an ID that is not known.
func (a *Admission) Finish(d *penstock.Decision, err error) {
	if a.ledger == nil {
		return
	}
	left := d.Granted > 0
	if err != nil && !errors.Is(err, penstock.ErrUnknownID) {
		var invalid *penstock.FieldError
		left = !errors.As(err, &invalid)
	}
	a.ledger.settle(&a.state, left)
	if a.record.hash != 0 {
		a.ledger.settle(&a.record, left)
	}
	a.ledger = nil
}
