// Package engine decides requests, by the rules or under a limit that the request names. It
// knows no protocol, so all APIs make the same decisions from the same counters.
package engine

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/beside"
	"github.com/penstock-io/penstock/internal/denials"
	"github.com/penstock-io/penstock/internal/hitcount"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/ahead"
	"github.com/penstock-io/penstock/server/callers"
	"github.com/penstock-io/penstock/server/candidates"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/requestlimits"
	"github.com/penstock-io/penstock/server/rulestats"
)

// The errors of invalid requests. Others are the store's.
var (
	ErrNoRules            = errors.New("no rate limit configuration loaded")
	ErrNoDomain           = errors.New("rate limit domain must not be empty")
	ErrNoDescriptors      = errors.New("rate limit descriptor list must not be empty")
	ErrTooManyDescriptors = errors.New("too many descriptors")
	ErrNoPermitID         = errors.New("the descriptor has no ID for its permit")
	ErrNoSettle           = errors.New("the descriptors cannot be taken or settled under an ID")
	ErrSeveralLimits      = errors.New("units of a rule with several limits cannot be taken ahead")
	ErrQueue              = errors.New("units of a queue cannot be taken ahead: each acts at a time of its own")
	ErrNoRelease          = errors.New("a concurrent limit needs to know when a request has ended, and this API never does")
)

// Options configure an [Engine].
type Options struct {
	// Token allows callers to refund units and reset keys. With a token, all callers
	// need it. Default: only local callers may.
	Token string

	// Tokens are further tokens, with names for the audit log; see [callers.CheckTokens].
	Tokens []callers.Token

	// DistrustLocal means that local callers may not refund or reset without the token
	// either. Without a token, no caller may.
	DistrustLocal bool

	// Shadow allows every request, and counts would-be denials.
	Shadow bool

	// MaxDescriptors limits the descriptors of a request, and MaxEntries the entries
	// of a descriptor. Default: 256 and 128, which is what Envoy Gateway can send.
	MaxDescriptors, MaxEntries int

	// CompatEnvoy decides the requests of all domains as those of domains with
	// compat: envoy. Default: only those.
	CompatEnvoy bool

	// CountHits counts the hits of rules as envoyproxy/ratelimit does, those above
	// NearLimitRatio of the limit as near it. Default: they are not counted.
	CountHits      bool
	NearLimitRatio float64

	// OnMetricValues is called once for each rule whose hits are told by value, when
	// there are more than hitcount.MaxValues of them. It must not block. Optional.
	OnMetricValues func(rule string)

	// QuotaMode makes every descriptor a quota, also those without a limit, which never
	// deny. Default: those under rules that say so.
	QuotaMode bool

	// StopIncrement is for compat: if the hits of some descriptors do not fit, those of
	// the others are not counted. Default: all are.
	StopIncrement bool

	// OverLimitKeys is how many keys over their limit are remembered under compat,
	// so that they cost no call of the store, and OverLimitAge for how long at
	// most. Default: none, and one second.
	OverLimitKeys int
	OverLimitAge  time.Duration

	// CacheDenials remembers keys whose windows have nothing left without compat too,
	// in place of a deny cache around the store.
	CacheDenials bool

	// OnFailure is that of the [penstock.Fallback] in the store, if it has one.
	OnFailure func(penstock.Limit) (penstock.FailureMode, float64)

	// DenyUnmatched denies requests that take units and that no rule matches
	// in any descriptor. Default: they are allowed.
	DenyUnmatched bool

	// OnUnmatched is called for each descriptor of a take that no rule matches,
	// even if another descriptor of the request has a rule. Entries is nil if
	// the domain has no rules. It is called concurrently, must not block, and
	// must not keep its arguments. Optional.
	OnUnmatched func(domain string, entries []rules.Entry)

	// OnDecided is called after each request by the rules that takes or refunds units, unless it
	// failed. It is called concurrently, must not block, and must not keep its arguments. Optional.
	OnDecided func(domain string, ds []Descriptor, denied bool)

	// OnResult is called after each decision by the rules, and OnTaken after each under a limit that the request
	// brings, with the context of the caller. They are called concurrently, must not block, and must not keep their
	// arguments. Optional.
	OnResult func(ctx context.Context, ds []Descriptor, r *Result)
	OnTaken  func(ctx context.Context, r penstock.Request, d penstock.Decision)

	// TopKeys counts the keys of decisions. Default: they are not counted.
	TopKeys *topkeys.Tracker

	// RequestLimits bound what limits in requests leave behind.
	RequestLimits requestlimits.Options

	// Overrides are the overrides of keys of rules. Default: those that are set while the
	// engine runs, in memory.
	Overrides *overrides.Set
}

const (
	defaultMaxDescriptors = 256
	defaultMaxEntries     = 128
)

// An Engine decides requests. It is safe for concurrent use.
type Engine struct {
	callers.Rights
	requestlimits.Takes

	Denials *denials.Store  // that are remembered; nil if none are
	Trials  *candidates.Set // limits that are tried, beside those in the rules

	options       Options
	store         penstock.Store
	calls         penstock.Store // the store, or the denials, which call it
	transientKeys bool           // the store is a penstock.TransientKeyStore

	loading sync.Mutex // serializes SetRules
	table   atomic.Pointer[ruleTable]

	unknownDomain atomic.Uint64 // unmatched requests to domains without rules

	reports           ahead.Reports
	comparedKeys      candidates.Keys
	beside            *beside.Pool
	requestLimits     *requestlimits.Policy
	requestLimitState ruleState         // of all request limits
	OwnHits           hitcount.ByDomain // of descriptors with their own limit, if Options.CountHits is set
	Shadowed          atomic.Uint64     // requests that were allowed because of Options.Shadow only
}

// New returns an engine without rules. The store is required; nil options are all defaults.
func New(store penstock.Store, o *Options) *Engine {
	o = cmp.Or(o, &Options{})
	_, transient := store.(penstock.TransientKeyStore)
	policy := requestlimits.New(store, o.RequestLimits)
	e := &Engine{
		options:           o.withDefaults(),
		Denials:           denials.New(store, o.OverLimitKeys, o.OverLimitAge),
		Rights:            callers.NewRights(append([]callers.Token{{Secret: o.Token}}, o.Tokens...), !o.DistrustLocal),
		store:             store,
		calls:             store,
		transientKeys:     transient,
		requestLimits:     policy,
		beside:            beside.NewPool(),
		requestLimitState: ruleState{stats: &RuleStats{Stats: &rulestats.Stats{}}},
	}
	e.reports = ahead.Reports{TopKeys: e.options.TopKeys, Overrides: e.options.Overrides, OnUnmatched: e.options.OnUnmatched}
	e.Trials = candidates.NewSet(policy.Claim, e.reload)
	e.comparedKeys.None = e.options.TopKeys == nil
	if e.Denials != nil {
		e.calls = e.Denials
	}
	stats := rulestats.NewLocal(e.requestLimitState.stats.Stats, e.options.TopKeys, e.options.Shadow)
	e.Takes = requestlimits.NewTakes(policy, e.calls, stats, e.options.OnTaken)
	e.SetRules(nil)
	return e
}

func (o Options) withDefaults() Options {
	o.MaxDescriptors = cmp.Or(max(o.MaxDescriptors, 0), defaultMaxDescriptors)
	o.MaxEntries = cmp.Or(max(o.MaxEntries, 0), defaultMaxEntries)
	if o.OnUnmatched == nil {
		o.OnUnmatched = func(string, []rules.Entry) {}
	}
	if o.Overrides == nil {
		o.Overrides, _ = overrides.Open(nil) // only a file can fail
	}
	return o
}

// MaxDescriptors returns how many descriptors a request may have, so that APIs can stop
// parsing there.
func (e *Engine) MaxDescriptors() int { return e.options.MaxDescriptors }

// MaxEntries returns how many entries a descriptor may have.
func (e *Engine) MaxEntries() int { return e.options.MaxEntries }

// Store returns the engine's store.
func (e *Engine) Store() penstock.Store { return e.store }

// RequestLimits returns the policy of limits that callers bring.
func (e *Engine) RequestLimits() *requestlimits.Policy { return e.requestLimits }

// Overrides returns the overrides of keys of rules.
func (e *Engine) Overrides() *overrides.Set { return e.options.Overrides }

// SetRules replaces the rules. Requests in flight keep the old ones. A rule that the old set
// has under the same name keeps its statistics.
func (e *Engine) SetRules(s *rules.Set) {
	e.loading.Lock()
	defer e.loading.Unlock()
	e.table.Store(newRuleTable(e, s, e.table.Load()))
}

// reload sets the rules again, after something beside them has changed.
func (e *Engine) reload() {
	e.loading.Lock()
	defer e.loading.Unlock()
	e.table.Store(newRuleTable(e, e.Rules(), e.table.Load()))
}

// Rules returns the current rules, or nil.
func (e *Engine) Rules() *rules.Set {
	if s := e.table.Load().set; s != noRules {
		return s
	}
	return nil
}
