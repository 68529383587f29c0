package penstock

import (
	"context"
	"time"
)

// This file is how middleware asks for decisions by rules without importing what reads them:
// package rulelimit has a [RuleLimiter], and package rules the language of rule files.

// An Entry is one key and value of a descriptor, such as user and 42.
type Entry struct{ Key, Value string }

// A Descriptor describes a request by entries, in the order in which rules nest them, such
// as path=/login, user=42. One rule applies to it, or none.
type Descriptor struct {
	Entries []Entry

	// Cost is that of [Request]: above 0 takes, 0 peeks, below 0 refunds.
	Cost int64
}

// A RuleRequest asks for units under the limits that rules choose.
type RuleRequest struct {
	// Domain is the group of rules that decide. Required.
	Domain string

	// Descriptors are decided all or nothing, unless the domain has compat: envoy.
	// At least one is required.
	Descriptors []Descriptor

	// ID makes a repeated request charge once, as that of [Request] does. Optional.
	ID string

	// Settle makes what was charged under ID equal to the costs of the descriptors, under
	// rules with settle: true.
	Settle bool

	// AtMost takes what is left under all limits if that is less than the cost, which is
	// the same for all descriptors.
	AtMost bool

	// KeepFree is how many units must remain, where that is more than the rule says.
	KeepFree int64

	// MaxDelay is the longest delay under a leaky bucket. Default: as long as its queue.
	MaxDelay time.Duration

	// Release releases the permits of concurrent limits that the descriptors name, -Cost of
	// each, and refunds nothing under other rules: costs must be below 0.
	Release bool
}

// A RuleAnswer is the answer to one descriptor.
type RuleAnswer struct {
	// Rule is the name of the rule that applied, or "".
	Rule string

	// Limited means that the other fields have a meaning. It is false if no limit applied,
	// or nothing is known of its key; then only Decision.Allowed has one.
	Limited bool

	// Shadow means that the rule counts and never denies.
	Shadow bool

	Limit    Limit // of the rule
	KeepFree int64 // what had to remain
	Cost     int64 // of the descriptor

	// Decision is that of the limit. Its Allowed is false if the descriptor denies the
	// request. Beside a denial by another descriptor it is a peek.
	Decision Decision
}

// IsShown reports whether the answer belongs in the rate limit headers of a request that
// was allowed, or denied.
func (a *RuleAnswer) IsShown(allowed bool) bool {
	return a.Limited && !a.Shadow && (a.Decision.Allowed || !allowed)
}

// A RuleLimiter decides requests by rules. It is safe for concurrent use. Package rulelimit
// has one; middleware takes this interface, so that a program without rules downloads nothing for them.
type RuleLimiter interface {
	// TakeByRules decides a request, and writes one answer for each descriptor, in the same
	// order. An error means that no decision was made, and nothing stays charged, as far
	// as the store can be reached.
	TakeByRules(ctx context.Context, r RuleRequest, answers []RuleAnswer) (allowed bool, err error)
}

// TightestAnswer combines the answers to one request that agree with the outcome, as [Tightest]
// does. Shadow rules have no part in it. If no limit applied, it is not Limited.
func TightestAnswer(allowed bool, answers []RuleAnswer) (tightest RuleAnswer) {
	var delay time.Duration
	for i := range answers {
		a := &answers[i]
		if !a.IsShown(allowed) || a.Decision.Allowed != allowed {
			continue
		}
		if !tightest.Limited || a.Decision.TighterThan(tightest.Decision) {
			tightest = *a
		}
		delay = max(delay, a.Decision.Delay)
	}
	if tightest.Decision.Allowed = allowed; allowed {
		tightest.Decision.Delay = delay
	}
	return tightest
}
