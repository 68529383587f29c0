package engine

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

// A RequestLimitMode says which callers may bring the limit of a request.
type RequestLimitMode uint8

// The modes of request limits.
const (
	RequestLimitsOn    RequestLimitMode = iota // all callers
	RequestLimitsLocal                         // callers that may refund
	RequestLimitsOff                           // none
)

// RequestLimits bound what the limits of requests leave behind in the store. The ceilings
// do not apply to callers that may refund; see [Engine.MayRefund].
type RequestLimits struct {
	// Mode says which callers may bring a limit. Default: all.
	Mode RequestLimitMode

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

	// Now is the clock by which MaxStoreBytes is accounted, for tests. Default: the
	// machine's monotonic clock.
	Now func() time.Time
}

const (
	defaultMaxPeriod   = 31 * 24 * time.Hour
	defaultMaxKeyBytes = 4 << 10
)

// A RefusalReason says which bound a request limit is over.
type RefusalReason uint8

// The reasons for which request limits are refused.
const (
	RefusedOff        RefusalReason = iota // the mode is off
	RefusedRemote                          // the mode is local, and the caller is not
	RefusedPeriod                          // over MaxPeriod
	RefusedKeyBytes                        // over MaxKeyBytes
	RefusedStoreBytes                      // over MaxStoreBytes
	refusalReasons
)

// String returns the reason as a label of metrics.
func (r RefusalReason) String() string {
	return [...]string{"off", "local", "period", "key_bytes", "redis_bytes"}[r]
}

// A LimitRefusal is the error of a limit that a request may not bring. Nothing was charged.
type LimitRefusal struct {
	Reason  RefusalReason
	problem string
}

// exemption ends the messages of all ceilings.
const exemption = "; exempt are callers with the token, or if the server has none, direct callers on its machine"

func (e *LimitRefusal) Error() string {
	if e.Reason == RefusedOff || e.Reason == RefusedRemote {
		return e.problem
	}
	return e.problem + exemption
}

var (
	refusedOff    = &LimitRefusal{Reason: RefusedOff, problem: "limits in requests are disabled (--request-limits off): use a rule"}
	refusedRemote = &LimitRefusal{Reason: RefusedRemote, problem: "limits in requests need the token, or if the server has none, a direct caller on its machine (--request-limits local)"}
)

// requestPolicy decides which request limits are accepted.
type requestPolicy struct {
	RequestLimits
	full    *LimitRefusal // the error over MaxStoreBytes
	ledger  *byteLedger   // nil without MaxStoreBytes
	refused [refusalReasons]atomic.Uint64
}

func newRequestPolicy(o RequestLimits) *requestPolicy {
	p := &requestPolicy{RequestLimits: o}
	if p.MaxPeriod <= 0 {
		p.MaxPeriod = defaultMaxPeriod
	}
	if p.MaxKeyBytes <= 0 {
		p.MaxKeyBytes = defaultMaxKeyBytes
	}
	if p.MaxStoreBytes > 0 {
		p.ledger = newByteLedger(p.MaxStoreBytes, len(o.StorePrefix), o.Now)
		p.full = &LimitRefusal{Reason: RefusedStoreBytes, problem: fmt.Sprintf(
			"no room for another key: limits in requests may leave at most %d bytes in Redis (--request-limits-max-redis-bytes)", p.MaxStoreBytes)}
	}
	return p
}

// LimitRefusal returns why some callers may not bring the limit, or nil if all may. It
// depends on the limit alone, so APIs can cache it with the limit. Pass it to
// [Engine.RefuseLimit]. The limit must be valid.
func (e *Engine) LimitRefusal(l penstock.Limit) *LimitRefusal {
	return e.requestPolicy.refusal(&l)
}

// OverrideRefusal is LimitRefusal for the overrides of Envoy, whose units have no ceiling.
func (e *Engine) OverrideRefusal() *LimitRefusal {
	return e.requestPolicy.modeRefusal()
}

func (p *requestPolicy) modeRefusal() *LimitRefusal {
	switch p.Mode {
	case RequestLimitsOff:
		return refusedOff
	case RequestLimitsLocal:
		return refusedRemote
	}
	return nil
}

func (p *requestPolicy) refusal(l *penstock.Limit) *LimitRefusal {
	if r := p.modeRefusal(); r != nil {
		return r
	}
	if t := longestPeriod(l); t > p.MaxPeriod {
		return &LimitRefusal{Reason: RefusedPeriod, problem: fmt.Sprintf(
			"a period, or the time to refill a bucket, of %v: want at most %v (--request-limits-max-period)", t, p.MaxPeriod)}
	}
	if n := maxKeyBytes(l); n > p.MaxKeyBytes {
		return &LimitRefusal{Reason: RefusedKeyBytes, problem: fmt.Sprintf(
			"up to %d bytes for a key: want at most %d (--request-limits-max-key-bytes)", n, p.MaxKeyBytes)}
	}
	return nil
}

// RefuseLimit returns the refusal as an error, and counts it, unless the caller is exempt.
// It calls mayRefund only if that matters. The refusal may be nil.
func (e *Engine) RefuseLimit(r *LimitRefusal, mayRefund func() bool) error {
	if r == nil || r.Reason != RefusedOff && mayRefund() {
		return nil
	}
	e.requestPolicy.refused[r.Reason].Add(1)
	return r
}

// RefusedLimits returns how many requests were refused because of the limit that they
// brought, by the reason.
func (e *Engine) RefusedLimits() (counts map[RefusalReason]uint64) {
	counts = map[RefusalReason]uint64{}
	for r := range refusalReasons {
		counts[r] = e.requestPolicy.refused[r].Load()
	}
	return counts
}

// StoreBytes returns how many bytes request limits have left behind in the store, as far as
// they are bounded.
func (e *Engine) StoreBytes() int64 {
	if l := e.requestPolicy.ledger; l != nil {
		return l.bytes.Used()
	}
	return 0
}

// An Admission is room in the store for what a request may leave behind. [Engine.Take],
// TakeEach and TakeAll admit their requests; an API that calls the store itself has to
// admit each request before, and to settle the admission after the call.
type Admission struct {
	ledger *byteLedger // nil if the request is not accounted for
	state  ledgerEntry
	record ledgerEntry // of the request's ID, or to roll it back
}

// Admit makes room in the store for a request, or returns a [*LimitRefusal]. It calls
// mayRefund only if the bytes in the store are bounded. The request must be valid.
func (e *Engine) Admit(r *penstock.Request, mayRefund func() bool) (a Admission, err error) {
	return e.admit(r, mayRefund, false)
}

// admit is Admit for a request that may be one of several in a TakeAll.
func (e *Engine) admit(r *penstock.Request, mayRefund func() bool, inTakeAll bool) (a Admission, err error) {
	l := e.requestPolicy.ledger
	if l == nil || mayRefund() {
		return a, nil
	}
	a.state = l.entry(r)
	if r.Cost <= 0 {
		l.touch(&a.state)
		return a, nil
	}
	if !l.reserve(&a.state) {
		return a, e.refuseFull()
	}
	switch memory := e.requestPolicy.TakeAllMemory; {
	case r.Limit.HasPermits(): // its permits are the records of its IDs
	case r.ID != "":
		a.record = l.recordEntry(r, a.state.hash)
	case inTakeAll && memory > 0:
		a.record = l.rollBackEntry(r, memory)
	}
	if a.record.hash != 0 && !l.reserve(&a.record) {
		l.settle(&a.state, false)
		return a, e.refuseFull()
	}
	a.ledger = l
	return a, nil
}

func (e *Engine) refuseFull() error {
	e.requestPolicy.refused[RefusedStoreBytes].Add(1)
	return e.requestPolicy.full
}

// Settle ends an admission with the result of its request. A request that failed may have
// been charged, unless it was invalid.
func (a *Admission) Settle(d *penstock.Decision, err error) {
	if a.ledger == nil {
		return
	}
	left := d.Granted > 0
	if err != nil {
		var invalid *penstock.FieldError
		left = !errors.As(err, &invalid)
	}
	a.ledger.settle(&a.state, left)
	if a.record.hash != 0 {
		a.ledger.settle(&a.record, left)
	}
	a.ledger = nil
}
