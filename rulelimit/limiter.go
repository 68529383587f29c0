// Package rulelimit limits requests by rules, in any Go program and without a daemon. Which
// limit applies to what is in a rule file, as package rules describes, that can be changed while
// the program runs:
//
//	lim, err := rulelimit.Open(ctx, "rules.yaml", penstock.NewMemory(nil), nil)
//	if err != nil {
//		return err
//	}
//	defer lim.Close()
//
//	a, err := lim.Allow(ctx, "shop", rulelimit.Entries("user", "42"), rulelimit.Entries("address", "192.0.2.7"))
//	if err == nil && !a.Allowed {
//		fmt.Println("retry in", a.Decision.RetryAfter)
//	}
//
// The answers are those of the daemon, penstock serve, for the same file and store: both use
// package server/engine. On one Redis with the same prefix a program and a daemon share what
// keys have used.
//
// A [Limiter] is a [penstock.RuleLimiter], which the middleware of httplimit and grpclimit takes.
package rulelimit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/rulesource"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/storepolicy"
)

// Options configure a [Limiter].
type Options struct {
	// Source says how [Open] reads the rules: credentials for a server, where to keep them for
	// a start without it, and whether several files may add to one domain. Optional.
	Source rulesource.Options

	// Shadow allows every request, and counts would-be denials. Default: rules are
	// enforced.
	Shadow bool

	// DenyUnmatched denies requests that take units and that no rule matches in any
	// descriptor. Default: they are allowed.
	DenyUnmatched bool

	// OnLoad is called after each load of the rules but the first, with those that are now
	// in use, or with the error because of which the old ones stay. Default: errors go
	// unnoticed, except by [Limiter.LoadError].
	OnLoad func(*rules.Set, error)

	// Observe is called after each decision, for the program's metrics. It is called
	// concurrently, must not block, and must not keep what the observation points to.
	// Optional.
	Observe func(Observation)

	// Policies get the settings of rules that wrappers of the store honour: on_store_failure,
	// share, lease, deny_cache and global. Pass its methods to the wrappers. Default: these
	// settings have no effect, of which [slog.Default] is told where a limit would hold less than its rule says.
	Policies *storepolicy.Policies

	// Overrides are the overrides of keys, such as those that daemons share. The
	// limiter runs them, and does not close them. Default: those that are set while the
	// program runs, in memory.
	Overrides *overrides.Set
}

// An Observation is one decision by rules.
type Observation struct {
	Request  penstock.RuleRequest
	Answers  []penstock.RuleAnswer // one for each descriptor; empty beside an error
	Allowed  bool
	Duration time.Duration
	Err      error // why there is no decision
}

// A Limiter decides requests by rules, and follows their changes. It must be closed. It is
// safe for concurrent use.
type Limiter struct {
	engine  *engine.Engine
	onLoad  func(*rules.Set, error)
	observe func(Observation)

	policies *storepolicy.Policies

	stop    context.CancelFunc
	running sync.WaitGroup

	mu      sync.Mutex
	loadErr error
}

// Open loads the rules of a source, and returns a limiter that decides by them and follows their
// changes until it is closed. The source is a file, a directory, or the URL of a configuration
// centre, such as etcd://host:2379/limits/rules.yaml; see [rulesource.Open]. Nil options are all
// defaults. If the content of a file is wrong, the error is [rules.Errors].
func Open(ctx context.Context, source string, store penstock.Store, o *Options) (*Limiter, error) {
	o = cmp.Or(o, &Options{})
	from, err := rulesource.Open(source, &o.Source)
	if err != nil {
		return nil, fmt.Errorf("rulelimit: source of the rules: %w", err)
	}
	return New(ctx, from, store, o)
}

// New is [Open] for rules of any source.
func New(ctx context.Context, source rules.Provider, store penstock.Store, o *Options) (*Limiter, error) {
	o = cmp.Or(o, &Options{})
	if source == nil || store == nil {
		return nil, errors.New("rulelimit: want a source and a store")
	}
	l := &Limiter{onLoad: o.OnLoad, observe: o.Observe, policies: o.Policies}
	by := &engine.Options{Shadow: o.Shadow, DenyUnmatched: o.DenyUnmatched, Overrides: o.Overrides}
	if o.Policies != nil {
		by.OnFailure = o.Policies.OnFailure
	}
	l.engine = engine.New(store, by)
	set, err := source.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("rulelimit: %w", err)
	}
	l.setRules(set)
	running, stop := context.WithCancel(context.Background())
	l.stop = stop
	l.engine.Overrides().Refresh(ctx) // so that bans are in force for the first request
	l.running.Go(func() { source.Watch(running, l.use) })
	l.running.Go(func() { l.engine.Overrides().Run(running) })
	return l, nil
}

func (l *Limiter) setRules(set *rules.Set) {
	if l.policies != nil {
		l.policies.Set(set.Rules())
	} else {
		warnOfNoPolicies(set.Rules())
	}
	l.engine.SetRules(set)
}

// warnOfNoPolicies names a rule that admits more than it says, because nothing honours its settings.
func warnOfNoPolicies(all []*rules.Rule) {
	for _, r := range all {
		if r.OnStoreFailure != rules.FailDefault || r.Share > 0 || r.Global != nil {
			slog.Warn("rulelimit: on_store_failure, share and global have no effect without Options.Policies", "rule", r.Limit.Name)
			return
		}
	}
}

// use puts loaded rules in use.
func (l *Limiter) use(set *rules.Set, err error) error {
	if err == nil {
		l.setRules(set)
	}
	l.mu.Lock()
	l.loadErr = err
	l.mu.Unlock()
	if l.onLoad != nil {
		l.onLoad(set, err)
	}
	return err
}

// Close stops following the rules. The limiter still decides by those that it has.
func (l *Limiter) Close() error {
	l.stop()
	l.running.Wait()
	return nil
}

// Rules returns the rules in use. [rules.Set.Explain] shows which of them applies to what.
func (l *Limiter) Rules() *rules.Set { return l.engine.Rules() }

// LoadError returns why the last load of the rules failed, or nil. Then those of an earlier
// load are in use.
func (l *Limiter) LoadError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.loadErr
}

// Overrides returns the overrides of keys: bans, and limits for single keys.
func (l *Limiter) Overrides() *overrides.Set { return l.engine.Overrides() }

// Stats returns the counters of each rule.
func (l *Limiter) Stats() []*engine.RuleStats { return l.engine.RuleStats() }

// An Answer is the answer to a request.
type Answer struct {
	// Allowed reports whether the request may proceed.
	Allowed bool

	// Rule is the name of the rule whose limit is the tightest, or "" if no limit applied.
	Rule string

	// Decision is that of this limit. Its Delay, of a leaky bucket, is the longest of all limits:
	// the caller waits for so long before it acts on an allowed request. Without a Rule
	// only Allowed has a meaning.
	Decision penstock.Decision

	// Parts are the answers to each descriptor.
	Parts []penstock.RuleAnswer
}

// Entries returns a descriptor of keys and values, which alternate.
func Entries(keysAndValues ...string) []penstock.Entry {
	all := make([]penstock.Entry, 0, (len(keysAndValues)+1)/2)
	for i := 0; i < len(keysAndValues); i += 2 {
		e := penstock.Entry{Key: keysAndValues[i]}
		if i+1 < len(keysAndValues) {
			e.Value = keysAndValues[i+1]
		}
		all = append(all, e)
	}
	return all
}

// Allow takes one unit for each descriptor, by the rules of the domain: all or nothing.
func (l *Limiter) Allow(ctx context.Context, domain string, descriptors ...[]penstock.Entry) (Answer, error) {
	return l.AllowN(ctx, 1, domain, descriptors...)
}

// AllowN is [Limiter.Allow] for n units. With 0 it is a peek, and below 0 it refunds units.
func (l *Limiter) AllowN(ctx context.Context, n int64, domain string, descriptors ...[]penstock.Entry) (Answer, error) {
	r := penstock.RuleRequest{Domain: domain}
	for _, entries := range descriptors {
		r.Descriptors = append(r.Descriptors, penstock.Descriptor{Entries: entries, Cost: n})
	}
	return l.Take(ctx, r)
}

// Take decides a request.
func (l *Limiter) Take(ctx context.Context, r penstock.RuleRequest) (Answer, error) {
	parts := make([]penstock.RuleAnswer, len(r.Descriptors))
	allowed, err := l.TakeByRules(ctx, r, parts)
	if err != nil {
		return Answer{}, err
	}
	tightest := penstock.TightestAnswer(allowed, parts)
	return Answer{Allowed: allowed, Rule: tightest.Rule, Decision: tightest.Decision, Parts: parts}, nil
}

// TakeByRules implements [penstock.RuleLimiter]. It is [Limiter.Take] without an allocation.
func (l *Limiter) TakeByRules(ctx context.Context, r penstock.RuleRequest, answers []penstock.RuleAnswer) (allowed bool, err error) {
	if l.observe == nil {
		return l.decide(ctx, &r, answers)
	}
	began := time.Now()
	allowed, err = l.decide(ctx, &r, answers)
	o := Observation{Request: r, Allowed: allowed, Duration: time.Since(began), Err: err}
	if err == nil {
		o.Answers = answers[:len(r.Descriptors)]
	}
	l.observe(o)
	return allowed, err
}

// A call holds what the engine needs of one request. Calls are pooled.
type call struct {
	descriptors []engine.Descriptor
	result      engine.Result
}

var calls = sync.Pool{New: func() any { return &call{} }}

// maxPooled is the largest number of descriptors of a call in the pool.
const maxPooled = 64

func (c *call) release() {
	if cap(c.descriptors) > maxPooled {
		return
	}
	clear(c.descriptors)
	clear(c.result.Statuses)
	c.descriptors = c.descriptors[:0]
	calls.Put(c)
}

func (l *Limiter) decide(ctx context.Context, r *penstock.RuleRequest, answers []penstock.RuleAnswer) (bool, error) {
	if len(answers) < len(r.Descriptors) {
		return false, fmt.Errorf("rulelimit: room for %d answers, and %d descriptors", len(answers), len(r.Descriptors))
	}
	c := calls.Get().(*call)
	defer c.release()
	for _, d := range r.Descriptors {
		if r.Release && d.Cost >= 0 {
			return false, &penstock.FieldError{Field: "Cost", Problem: "must be below 0 to release permits", Kind: penstock.ErrBadCost}
		}
		c.descriptors = append(c.descriptors, engine.Descriptor{
			Entries: d.Entries, Cost: d.Cost, Permits: engine.RenewPermits, ReleaseOnly: r.Release,
		})
	}
	terms := engine.Terms{ID: r.ID, Settle: r.Settle, AtMost: r.AtMost, KeepFree: r.KeepFree, MaxDelay: r.MaxDelay}
	if err := l.engine.DecideOn(ctx, r.Domain, terms, c.descriptors, &c.result); err != nil {
		return false, fmt.Errorf("rulelimit: %w", err)
	}
	for i := range c.result.Statuses {
		answers[i] = answerOf(&c.result.Statuses[i], c.descriptors[i].Cost)
	}
	return !c.result.OverLimit, nil
}

func answerOf(s *engine.Status, cost int64) penstock.RuleAnswer {
	a := penstock.RuleAnswer{Decision: s.Decision, Cost: cost}
	a.Decision.Allowed = !s.OverLimit
	if s.Rule != nil {
		a.Rule, a.Shadow = s.Rule.Name, s.Rule.Shadow
	}
	if s.Limited() {
		a.Limited, a.Limit, a.KeepFree = true, s.Rule.Limit, s.Rule.KeepFree
	}
	return a
}
