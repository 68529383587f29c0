// Package storepolicy is what rules say about the wrappers of the store: the fallback, the lease and the deny cache.
package storepolicy

import (
	"sync/atomic"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/overrides"
)

// A Policy is how the wrappers of the store treat a limit.
type Policy struct {
	OnFailure penstock.FailureMode
	Share     float64 // of the limit, while the store is unavailable; 0: that of the fallback
	Lease     bool
	DenyCache bool
	Global    *rules.Global // nil if each region counts for itself
}

// FailureModes are the values of on_store_failure.
var FailureModes = map[string]penstock.FailureMode{
	rules.FailLocal.String(): penstock.FailLocal,
	rules.FailAllow.String(): penstock.FailOpen,
	rules.FailDeny.String():  penstock.FailClosed,
}

// Policies hold the policies of the current rules by the names of their limits, and the
// default. Their methods are the callbacks of a fallback, a lease and a deny cache around the
// store. They are replaced together, just before the rules: a request in flight at that moment may
// be decided by the old rules and the new policies.
type Policies struct {
	Defaults Policy // of limits without such settings in a rule
	byName   atomic.Pointer[map[string]Policy]
}

// Set replaces the policies by those of the rules.
func (p *Policies) Set(all []*rules.Rule) {
	named := make(map[string]Policy, len(all))
	for _, r := range all {
		if !r.Unlimited {
			own := p.Defaults.with(r)
			named[r.Limit.Name], named[overrides.LimitPrefix(r.Limit.Name)] = own, own
			if c, _ := r.NewCandidate(r.Limit); c != nil { // any limit that is tried has this name
				named[c.Limit.Name] = own
			}
		}
	}
	p.byName.Store(&named)
}

// with returns the policy with the settings of a rule. A share only has a meaning for
// local decisions, so a rule with a share decides locally.
func (p Policy) with(r *rules.Rule) Policy {
	if mode, ok := FailureModes[r.OnStoreFailure.String()]; ok {
		p.OnFailure = mode
	}
	if r.Share > 0 {
		p.Share = r.Share
	}
	if r.Share > 0 && r.OnStoreFailure == rules.FailDefault {
		p.OnFailure = penstock.FailLocal
	}
	if r.Lease != nil {
		p.Lease = *r.Lease
	}
	if r.DenyCache != nil {
		p.DenyCache = *r.DenyCache
	}
	p.Global = r.Global
	return p
}

// ForLimit returns the policy of a limit. A limit that a request brought has the
// default, even if it has the name of a rule.
func (p *Policies) ForLimit(l *penstock.Limit) Policy {
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
	return p.Defaults
}

// OnFailure is that of [penstock.FallbackOptions].
func (p *Policies) OnFailure(l penstock.Limit) (penstock.FailureMode, float64) {
	own := p.ForLimit(&l)
	return own.OnFailure, own.Share
}

// Leased is the Only of [penstock.LeaseOptions].
func (p *Policies) Leased(l penstock.Limit) bool { return p.ForLimit(&l).Lease }

// DenyCached is the Only of [penstock.DenyCacheOptions].
func (p *Policies) DenyCached(l penstock.Limit) bool { return p.ForLimit(&l).DenyCache }
