package server

import (
	"sync/atomic"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/overrides"
)

// A storePolicy is how the wrappers of the store treat a limit.
type storePolicy struct {
	onFailure penstock.FailureMode
	fraction  float64 // of the limit, while the store is unavailable
	lease     bool
	denyCache bool
}

// defaultStorePolicy returns the policy of limits without settings in a rule.
func (c *Config) defaultStorePolicy() storePolicy {
	return storePolicy{
		onFailure: failureModes[c.OnStoreFailure],
		fraction:  1 / float64(c.Nodes),
		lease:     c.Lease,
		denyCache: c.DenyCache,
	}
}

var failureModes = map[string]penstock.FailureMode{
	rules.FailLocal.String(): penstock.FailLocal,
	rules.FailAllow.String(): penstock.FailOpen,
	rules.FailDeny.String():  penstock.FailClosed,
}

// storePolicies holds the policies of the current rules by the names of their limits, and
// the default. They are replaced together, just before the rules: a request in flight at
// that moment may be decided by the old rules and the new policies.
type storePolicies struct {
	defaults storePolicy
	byName   atomic.Pointer[map[string]storePolicy]
}

// set replaces the policies by those of the rules.
func (p *storePolicies) set(all []*rules.Rule) {
	named := make(map[string]storePolicy, len(all))
	for _, r := range all {
		if !r.Unlimited {
			own := p.defaults.with(r)
			named[r.Limit.Name], named[overrides.LimitPrefix(r.Limit.Name)] = own, own
		}
	}
	p.byName.Store(&named)
}

// with returns the policy with the settings of a rule. A share only has a meaning for
// local decisions, so a rule with a share decides locally.
func (p storePolicy) with(r *rules.Rule) storePolicy {
	if mode, ok := failureModes[r.OnStoreFailure.String()]; ok {
		p.onFailure = mode
	}
	if r.Share > 0 {
		p.fraction = r.Share
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

// forLimit returns the policy of a limit. A limit that a request brought has the
// default, even if it has the name of a rule.
func (p *storePolicies) forLimit(l *penstock.Limit) storePolicy {
	if named := p.byName.Load(); named != nil && l.Name != "" && !l.Untrusted {
		if own, ok := (*named)[l.Name]; ok {
			return own
		}
		if prefix, ok := overrides.PrefixOf(l.Name); ok {
			if own, ok := (*named)[prefix]; ok {
				return own
			}
		}
	}
	return p.defaults
}

// The callbacks of the wrappers.

func (p *storePolicies) onFailure(l penstock.Limit) (penstock.FailureMode, float64) {
	own := p.forLimit(&l)
	return own.onFailure, own.fraction
}

func (p *storePolicies) leased(l penstock.Limit) bool     { return p.forLimit(&l).lease }
func (p *storePolicies) denyCached(l penstock.Limit) bool { return p.forLimit(&l).denyCache }
