package server

import (
	"sync/atomic"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/rules"
)

// A policy says how a limit is counted around the store.
type policy struct {
	onFailure penstock.FailureMode
	share     float64 // of the limit, while the store is away
	lease     bool
	denyCache bool
}

// policy returns that of limits that no rule says anything about.
func (c *Config) policy() policy {
	return policy{
		onFailure: failureModes[c.OnStoreFailure],
		share:     1 / float64(c.Nodes),
		lease:     c.Lease,
		denyCache: c.DenyCache,
	}
}

var failureModes = map[string]penstock.FailureMode{
	rules.FailLocal.String(): penstock.FailLocal,
	rules.FailAllow.String(): penstock.FailOpen,
	rules.FailDeny.String():  penstock.FailClosed,
}

// policies are those of the rules in force, by the names of their limits, and that
// of all other limits. They are replaced all at once, a moment before the rules: a
// request that is under way then may be decided by the rules of before and the
// policies of now.
type policies struct {
	byDefault policy
	named     atomic.Pointer[map[string]policy]
}

// set replaces the policies by what rules say.
func (p *policies) set(all []*rules.Rule) {
	named := make(map[string]policy, len(all))
	for _, r := range all {
		if !r.Unlimited {
			named[r.Limit.Name] = p.byDefault.with(r)
		}
	}
	p.named.Store(&named)
}

// with returns the policy that a rule makes of a default. A share is meant for
// counting here, so a rule that names one counts here.
func (p policy) with(r *rules.Rule) policy {
	if mode, ok := failureModes[r.OnStoreFailure.String()]; ok {
		p.onFailure = mode
	}
	if r.Share > 0 {
		p.share = r.Share
	}
	if r.Share > 0 && r.OnStoreFailure == rules.FailDefault {
		p.onFailure = penstock.FailLocal
	}
	if r.Lease != nil {
		p.lease = *r.Lease
	}
	if r.DenyCache != nil {
		p.denyCache = *r.DenyCache
	}
	return p
}

func (p *policies) of(l *penstock.Limit) policy {
	if named := p.named.Load(); named != nil && l.Name != "" {
		if own, ok := (*named)[l.Name]; ok {
			return own
		}
	}
	return p.byDefault
}

// What the decorators ask about a limit.

func (p *policies) onFailure(l penstock.Limit) (penstock.FailureMode, float64) {
	own := p.of(&l)
	return own.onFailure, own.share
}

func (p *policies) leases(l penstock.Limit) bool    { return p.of(&l).lease }
func (p *policies) remembers(l penstock.Limit) bool { return p.of(&l).denyCache }
