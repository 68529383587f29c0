package penstock

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/breaker"
	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/monotime"
)

// FallbackOptions are the settings of a [Fallback]. The zero value suits a single
// process. If several processes share the primary store, set Share. A number of
// zero or less means its default.
type FallbackOptions struct {
	// Timeout is how long a call to the primary store may take. For a
	// [TimeoutStore] with a shorter timeout, such as the Redis store, no timer is
	// set, which makes calls a little cheaper. Default: 50 milliseconds.
	Timeout time.Duration

	// Failures is how many consecutive failed calls open the breaker. While it
	// is open, the primary store counts as down. It also opens if half of all
	// calls within one second fail, of at least 20. Default: 5.
	Failures int

	// Retry is how long the breaker stays open before the primary store is
	// probed, and the time between probes, with a jitter of up to a fifth.
	// Default: a quarter of a second.
	Retry time.Duration

	// Share is the fraction of every limit that this process may grant by itself
	// while the primary store is down: with N processes, 1/N. It is never less
	// than one unit. Default: 1, the whole limit.
	Share float64

	// OnFailure returns how requests under a limit are decided while the
	// primary store is down, and with which share. A share of zero or less
	// means Share. It must be safe for concurrent use. Default: FailLocal for
	// all limits.
	OnFailure func(l Limit) (mode FailureMode, share float64)

	// OnChange is called when the primary store, or a shard of it, goes down
	// or comes up. Calls do not delay decisions and are never concurrent. The
	// last call reports the current state. Changes that were reverted during a
	// call are not reported. Default: no calls.
	OnChange func(FallbackChange)

	// MaxKeys bounds the ledger, which holds the keys with units spent while
	// the primary store was down and not yet charged to it. Units of further
	// keys are never charged, and their settlements are [ErrUnavailable].
	// Default: 65,536.
	MaxKeys int

	// Now is the clock, for tests and simulations. It must be safe for
	// concurrent use. Default: the machine's monotonic clock.
	Now func() time.Time
}

// A FailureMode determines how requests are decided while the primary store is
// down.
type FailureMode uint8

// The failure modes. A cost above the limit's capacity is denied in all of them.
const (
	FailLocal  FailureMode = iota // by the secondary store, with a share of the limit
	FailOpen                      // allow all
	FailClosed                    // deny all
)

// A FallbackChange reports that the primary store, or a shard of it, went down or
// came up.
type FallbackChange struct {
	Shard int   // 0, unless the primary is a [ShardedStore]
	Down  bool  // whether it went down
	Err   error // the call that failed last before it went down
}

// A Fallback is a [Store] that decides by a secondary store while the primary
// store is down, so callers see no outage. [WithFallback] makes one. It is
// safe for concurrent use and needs no Close. It probes the primary, and charges it
// for what the secondary granted, in goroutines that end by themselves.
//
// If the primary store fails to answer a call, the secondary decides it at once.
// After a few such calls a breaker opens: the primary counts as down, and only
// probes call it until one succeeds. A request starts a probe, and so does a call of
// [Fallback.Down]. In a program that has made neither for a while, the primary still counts as
// down after the outage, and the secondary decides the first requests, until the probe is
// answered. Errors are returned only for malformed requests, to callers whose own context
// has ended, and [ErrBusy]: a primary that answers others is up, and no number of callers makes the
// secondary grant anything. Only a settlement is kept then, for the primary. A [KeyError] concerns only its key: the secondary decides that request, and the
// primary still counts as up.
//
// While the primary store is down, this process admits at most its share of the
// limit for each key: Share·B + Share·r·T of a token bucket in any time T. Units
// taken from the primary by a call that timed out stay taken. When the primary is
// up again, the units that were spent in the meantime and have not come back by
// time are charged to it, as far as it has units left. Under FailOpen there is no
// bound.
//
// A grant under a Request.ID is charged to the primary under the same ID, and
// only once, even if the primary had granted it and the response was lost. Until
// it is charged, each store knows only the IDs that it granted itself. A refund
// goes to the store that decides at that time; if it did not grant the ID,
// nothing is refunded. A settlement goes to the store that granted the ID. While the
// primary is down, one of an ID that the secondary does not know is allowed, and made
// at the primary when it is up again; if the primary does not know the ID either, it is
// lost.
//
// Permits of a [Concurrent] limit are not charged to the primary afterwards. Each
// store knows those that it granted: a renewal at the other one is decided anew, and
// a release reaches whichever of them holds the permit and is up. So up to Count
// permits and this process's share of them can be held at once for one Period after
// the primary went down or came up; a permit that could not be released expires.
//
// Decisions without the primary store have [SourceFallback], and their numbers
// are those of the share. A Request.KeepFree then keeps the same share of its units,
// rounded up.
type Fallback struct {
	batchFunc
	primary, secondary Store

	timeout   time.Duration
	setsTimer bool // whether the primary needs a deadline from the fallback
	rules     breaker.Options
	share     float64
	onFailure func(Limit) (FailureMode, float64)
	onChange  func(FallbackChange)
	clock     monotime.Clock
	limits    compiledCache

	shards  []fallbackShard
	shardOf func(key string) int // nil if there is one shard

	notifyMu  sync.Mutex
	notifying bool // whether a goroutine is calling onChange
	ids       chargeIDs
}

const (
	defaultFallbackTimeout  = 50 * time.Millisecond
	defaultFallbackFailures = 5
	defaultFallbackRetry    = 250 * time.Millisecond
	defaultFallbackKeys     = 1 << 16
)

// WithFallback returns a store that decides by primary, or by secondary while
// primary is down. If secondary is nil, it is a new [Memory]. Nil options mean
// all defaults.
//
// If primary is a [ShardedStore], its shards are down or up independently.
func WithFallback(primary, secondary Store, o *FallbackOptions) *Fallback {
	o = cmp.Or(o, &FallbackOptions{})
	if secondary == nil {
		secondary = NewMemory(nil)
	}
	f := &Fallback{
		primary: primary, secondary: secondary,
		timeout:   defaults.Duration(o.Timeout, defaultFallbackTimeout),
		rules:     breakerRules(o),
		share:     min(defaults.Or(o.Share, 1), 1),
		onFailure: o.OnFailure,
		onChange:  o.OnChange,
		clock:     monotime.New(o.Now),
	}
	f.initShards(defaults.Or(o.MaxKeys, defaultFallbackKeys))
	bounded, ok := StoreAs[TimeoutStore](primary)
	f.setsTimer = !ok || bounded.Timeout() <= 0 || bounded.Timeout() > f.timeout
	f.batchFunc = f.decide
	return f
}

// A breaker also opens when, of at least minRatioCalls calls within ratioWindow,
// half have failed.
const (
	minRatioCalls = 20
	ratioWindow   = time.Second
)

// breakerRules returns the rules of the shards' breakers. There is no ramp: the
// primary store bears its full load, and the sooner it decides, the fewer units
// are granted without it.
func breakerRules(o *FallbackOptions) breaker.Options {
	failures := defaults.Or(o.Failures, defaultFallbackFailures)
	retry := defaults.Duration(o.Retry, defaultFallbackRetry)
	return breaker.Options{
		Trip: func(c breaker.Counts) bool {
			return c.Consecutive >= failures || c.Calls >= minRatioCalls && 2*c.Failed >= c.Calls
		},
		Window: ratioWindow,
		Wait:   retry, MaxWait: retry,
	}
}

// Down returns how many shards of the primary store are down, and how many there
// are. It also probes those that are due, so a caller can poll Down to wait for
// the store before it sends requests.
func (f *Fallback) Down() (down, shards int) {
	for i := range f.shards {
		if s := &f.shards[i]; s.breaker.IsOpen() {
			down++
			f.probe(s)
		}
	}
	return down, len(f.shards)
}

// decide decides requests: by the primary store those whose shards are up, in one call, and
// the others without it. If a shard of an all-or-nothing request is down, all are decided
// without it.
func (f *Fallback) decide(ctx context.Context, rs []Request, ds []Decision, all bool) error {
	if f.primary == nil {
		return errNoStore
	}
	if err := ValidateBatch(rs, ds, all); err != nil {
		return err
	}
	single := !all && len(rs) == 1
	switch {
	case (all || single) && settles(rs):
		return f.settle(ctx, rs, ds)
	case all || !settles(rs) && !f.refundsDebt(ctx, rs):
		return f.take(ctx, rs, ds, all)
	case single:
		return f.refund(ctx, rs[0], ds)
	}
	return takeEach(ctx, f, rs, ds)
}

// settles reports whether one of the requests is a settlement.
func settles(rs []Request) bool {
	return slices.ContainsFunc(rs, func(r Request) bool { return r.Settle })
}

// take decides requests that neither settle nor refund what the ledger has.
func (f *Fallback) take(ctx context.Context, rs []Request, ds []Decision, all bool) (err error) {
	var buffer [batchBuffer]shardCall
	c := f.admit(buffer[:0], rs)
	if all && !c.allAdmitted {
		return f.takeAllLocal(ctx, &c, rs, ds)
	}
	answered, err := f.callPrimary(ctx, &c, rs, ds, all)
	switch {
	case err != nil:
		return err
	case all && !answered:
		return f.takeAllLocal(ctx, &c, rs, ds)
	}
	for i := range rs {
		switch s := &c.shards[i]; {
		case !s.admitted:
			ds[i], err = f.takeLocal(ctx, s.shard, &rs[i])
		case !answered && ds[i] == Decision{}:
			ds[i], err = f.takeUnanswered(ctx, s.shard, &rs[i])
		default:
			f.releaseLocal(ctx, &rs[i], &ds[i])
		}
		if err != nil {
			return requestError(i, err)
		}
	}
	return nil
}
