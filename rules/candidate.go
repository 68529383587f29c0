package rules

import (
	"errors"
	"fmt"

	"github.com/penstock-io/penstock"
)

// A candidate is a limit that is counted beside one in force, by the same keys, and that never denies.

// candidateMark follows the name of a rule in that of its candidate's limit; see alsoMark.
const candidateMark = alsoMark + "candidate"

// NewCandidate returns the rule with another limit and a state of its own, which is no part of the set. The error says
// why it cannot be counted beside the rule.
func (r *Rule) NewCandidate(l penstock.Limit) (*Rule, error) {
	c := r.WithLimit(l)
	c.Candidate, c.Also, c.Replaces = nil, nil, nil
	c.Limit.Name = limitName(r.CountedBy + candidateMark)
	if !r.Unlimited && r.Limit.HasPermits() {
		return c, errPermits
	}
	return c, c.CandidateProblem()
}

var errPermits = errors.New("permits are held by requests that were let pass, and a candidate lets none pass")

// CandidateProblem returns why the rule cannot be counted as a candidate, or nil.
func (r *Rule) CandidateProblem() error {
	capacity := r.Limit.Capacity()
	switch {
	case r.Unlimited:
		return errors.New("an unlimited rule counts nothing")
	case r.Limit.HasPermits():
		return errPermits
	case r.ChargeAlways && !r.Limit.CanOwe():
		return fmt.Errorf("charge: always needs a limit that can owe, and %s cannot", r.Limit.Algorithm)
	case r.KeepFree > 0 && r.KeepFree >= capacity:
		return fmt.Errorf("keep_free keeps %d of %d units, so that none could be taken", r.KeepFree, capacity)
	}
	return nil
}

// AsCandidates gives the rules of a set that is tried as a whole states of their own, before it is used. It returns
// those that cannot be counted.
func (s *Set) AsCandidates() (left Errors) {
	for _, r := range s.rules {
		r.Candidate, r.Replaces = nil, nil
		r.Limit.Name = limitName(r.CountedBy + candidateMark)
		if err := r.CandidateProblem(); err != nil && !r.Unlimited {
			left = append(left, &Error{File: r.File, Line: r.Line, Reason: "not counted as a candidate: " + err.Error()})
		}
	}
	return left
}

// addCandidate adds the candidate of a descriptor to its rule.
func (d *draft) addCandidate(rule *Rule) {
	if d.candidate == "" || rule.Unlimited {
		return
	}
	d.setCandidate(rule, d.parseLimitText("candidate", d.candidate))
}

func (d *draft) setCandidate(rule *Rule, l penstock.Limit) {
	c, err := rule.NewCandidate(l)
	if rule.Candidate = c; err != nil {
		rule.Candidate = nil
		d.warn(d.lineOf("candidate"), "candidate: not counted: %v", err)
	}
}

// SameLimits reports whether another rule decides the same about the same key.
func (r *Rule) SameLimits(o *Rule) bool {
	switch {
	case r.Unlimited != o.Unlimited || r.Limit.WithName("") != o.Limit.WithName("") || r.KeepFree != o.KeepFree,
		r.Shadow != o.Shadow || r.Quota != o.Quota || r.ChargeAlways != o.ChargeAlways:
		return false
	case r.Also == nil || o.Also == nil:
		return r.Also == o.Also
	}
	return r.Also.SameLimits(o.Also)
}
