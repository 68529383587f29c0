package engine

import (
	"bytes"
	"fmt"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/hitlimit"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// This file is about descriptors that bring their own limit, which Envoy calls an override.
// (Overrides of keys by an operator are in key_override.go.) It decides that descriptor alone. Its
// hits are counted where those of the rule are, as in Envoy's service, so a caller that brings a
// limit only now and then does not get both allowances. Only a limit of another unit, or of a
// descriptor that no rule counts in the same way, is counted apart, as a request limit.

// useOwnLimit makes a rule of the limit that the descriptor itself has.
func (f *found) useOwnLimit(l *limitedDescriptor, d *Descriptor) error {
	l.rule = f.result.ownRule(d.Own)
	l.state = &f.engine.requestLimitState
	l.own, l.maxHits = true, l.rule.Limit.Count
	f.templates = append(f.templates, penstock.Request{Limit: l.rule.Limit})
	l.template = &f.templates[len(f.templates)-1]
	if s := f.ruleBelow(l, d); s != nil {
		l.underRule, l.hits, *l.template = true, s.hits, s.template
		l.template.KeepFree = 0
		return l.rule.Limit.Validate()
	}
	if hitlimit.Has(&l.rule.Limit) {
		l.template.Limit = hitlimit.Of(l.rule.Limit)
	}
	f.keys = appendOwnLimitKey(f.keys[:l.key], f.domain.Name, d.Entries)
	return l.rule.Limit.Validate()
}

// ruleBelow returns the state of the rule that the descriptor's hits are added to, or nil. Then
// the key is that of the rule.
func (f *found) ruleBelow(l *limitedDescriptor, d *Descriptor) *ruleState {
	var rule *rules.Rule
	rule, f.keys = f.domain.Match(d.Entries, f.keys)
	own := &d.Own.Limit
	if rule == nil || rule.Unlimited || !hitlimit.AddsOwn(rule) || rule.Limit.Period != own.Period || rule.Limit.Align != own.Align {
		return nil
	}
	end := len(f.keys)
	f.keys = rules.AppendKey(f.keys, d.Entries)
	same := bytes.Equal(f.keys[l.key:end], f.keys[end:]) // a pattern's shared counter is not its own
	f.keys = f.keys[:end]
	if !same {
		return nil
	}
	l.rule.ChargeAlways = rule.ChargeAlways
	return &f.table.states[rule.Index]
}

// appendOwnLimitKey appends the key of a descriptor with its own limit. It contains the
// domain, so that domains do not share counters.
func appendOwnLimitKey(buf []byte, domain string, entries []rules.Entry) []byte {
	buf = rules.AppendKey(buf, []rules.Entry{{Key: domain}})
	buf = append(buf, '|')
	return rules.AppendKey(buf, entries)
}

// An ownAdmission is the admission of a descriptor with its own limit.
type ownAdmission struct {
	status    *Status
	admission requestlimits.Admission
}

// admitOwnLimits makes room for what descriptors with their own limit leave behind.
func (f *found) admitOwnLimits() error {
	if len(f.templates) == 0 { // no descriptor has one
		return nil
	}
	for i := range f.limited {
		l := &f.limited[i]
		if !l.own || l.underRule {
			continue
		}
		r := *l.template
		r.Key, r.Cost, r.ID, r.Hold = f.keyOf(l), l.cost, l.id, l.hold
		mayRefund := func() bool { return f.ds[l.index].Own.MayRefund }
		a, err := f.engine.requestLimits.Admit(&r, len(f.limited) > 1, mayRefund)
		if err != nil {
			f.settleAdmissions(nil)
			return fmt.Errorf("descriptor %d: %w", l.index, err)
		}
		f.admissions = append(f.admissions, ownAdmission{l.status, a})
	}
	return nil
}

// settleAdmissions settles the admissions by the decisions, or by the error.
func (f *found) settleAdmissions(err error) {
	for i := range f.admissions {
		a := &f.admissions[i]
		a.admission.Finish(&penstock.Decision{Granted: a.status.Decision.Granted}, err)
	}
}
