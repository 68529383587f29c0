package rules

import (
	"errors"
	"strings"

	"github.com/penstock-io/penstock"
)

// keptUnits is how many units a rule keeps free: a number, or a part of the limit.
type keptUnits struct {
	number  int64
	percent bool
}

// of returns the units of a limit that has so many, rounded up.
func (k keptUnits) of(capacity int64) int64 {
	if !k.percent {
		return k.number
	}
	return capacity/100*k.number + (capacity%100*k.number+99)/100
}

// addRule adds the rule of a descriptor to the set. Its limit is meaningless if a
// problem was reported, but then the set is not used.
func (d *draft) addRule(name string) *Rule {
	rule := d.rule
	rule.Name, rule.CountedBy, rule.File, rule.Line = name, name, d.file, d.limitLine
	if d.checkCombination() && !rule.Unlimited {
		rule.Limit = d.buildLimit()
		rule.Limit.Name = limitName(name)
		rule.setUnit()
		d.setKeepFree(&rule)
	}
	added := d.set.add(&rule)
	d.addAlso(added)
	d.addCandidate(added)
	return added
}

// MaxAlso is how many further limits a rule may have.
const MaxAlso = 4

// addAlso adds the further limits of a descriptor as rules: each is the rule with that limit, under
// the rule's name and its period, so that its counts survive a change of the count.
func (d *draft) addAlso(rule *Rule) {
	switch {
	case len(d.also) > MaxAlso:
		d.fail(d.lineOf("also"), "also: %d further limits: at most %d are allowed", len(d.also), MaxAlso)
		return
	case len(d.also) > 0 && (rule.Unlimited || rule.Limit.HasPermits()):
		d.fail(d.lineOf("also"), "also: needs a limit over time beside it")
		return
	}
	for last, first := rule, rule; len(d.also) > 0; d.also = d.also[1:] {
		also := *first
		also.Also, also.isFurther = nil, true
		also.Limit = d.parseLimitText("also", d.also[0])
		also.Name += alsoMark + periodText(also.Limit)
		switch {
		case also.Limit.HasPermits():
			d.fail(d.lineOf("also"), "also: '%s' holds permits, which need a descriptor of their own", excerpt(d.also[0]))
			return
		case isAlso(first, also.Name) || periodText(also.Limit) == periodText(first.Limit):
			d.fail(d.lineOf("also"), "also: '%s' has the period of another limit here: want one limit for each period", excerpt(d.also[0]))
			return
		}
		also.Limit.Name, also.CountedBy = limitName(also.Name), also.Name
		also.setUnit()
		d.setKeepFree(&also)
		last.Also = d.set.add(&also)
		last = last.Also
	}
}

// IsFurther reports whether a rule is a further limit of another one, whose Also leads to it.
func (r *Rule) IsFurther() bool { return r.isFurther }

// Limits returns the rules that decide about the keys of a rule: it and its further limits. One that
// is a further limit itself is alone.
func (r *Rule) Limits() []*Rule {
	all := []*Rule{r}
	for also := r.Also; also != nil && !r.isFurther; also = also.Also {
		all = append(all, also)
	}
	return all
}

// isAlso reports whether a rule has a further limit of that name.
func isAlso(r *Rule, name string) bool {
	for r = r.Also; r != nil && r.Name != name; r = r.Also {
	}
	return r != nil
}

// periodText returns the period of a limit as its text has it, such as 1m or day.
func periodText(l penstock.Limit) string {
	_, after, _ := strings.Cut(l.WithName("").String(), "/")
	period, _, _ := strings.Cut(after, " ")
	return period
}

// addSharingRule adds the rule of a descriptor that keeps units of the limit above it free.
// It differs from that rule only in its name and in what it keeps.
func (d *draft) addSharingRule(name string, above *Rule) *Rule {
	if above == nil || above.Unlimited {
		d.fail(d.lineOf("keep_free"), "'keep_free' needs a limit: add rate_limit or limit to this descriptor, or to the one above it")
		return nil
	}
	first := d.addSharing(name, above)
	for last := first; last.Also != nil; last = last.Also { // they share its further limits, too
		last.Also = d.addSharing(name+alsoMark+periodText(last.Also.Limit), last.Also)
	}
	return first
}

func (d *draft) addSharing(name string, above *Rule) *Rule {
	rule := *above
	rule.Name, rule.File, rule.Line = name, d.file, d.line
	rule.Shadow, rule.Quota, rule.Metadata = d.rule.Shadow, d.rule.Quota, d.rule.Metadata
	rule.keepFree, rule.metric = d.rule.keepFree, nil
	rule.Penalty = nil // a request that keeps units free is denied for the sake of others
	d.setKeepFree(&rule)
	if above.Candidate != nil {
		d.setCandidate(&rule, above.Candidate.Limit)
	}
	return d.set.add(&rule)
}

func (s *Set) add(r *Rule) *Rule {
	r.Index = len(s.rules)
	s.rules = append(s.rules, r)
	return r
}

// setKeepFree sets how many units of its limit a rule keeps free.
func (d *draft) setKeepFree(rule *Rule) {
	capacity := rule.Limit.Capacity()
	rule.KeepFree = rule.keepFree.of(capacity)
	switch {
	case rule.KeepFree == 0:
	case rule.ChargeAlways:
		d.fail(d.lineOf("keep_free"), "keep_free: cannot be combined with charge: always, which charges whatever is left")
	case rule.KeepFree >= capacity:
		d.fail(d.lineOf("keep_free"), "keep_free: keeps %d of %d units, so that none could be taken", rule.KeepFree, capacity)
	}
}

// buildLimit returns the limit: either the one in the limit field, or a number of
// requests per unit or period, by default in windows aligned to the clock, as in
// Envoy's service.
func (d *draft) buildLimit() penstock.Limit {
	if d.isSet("limit") {
		return d.parseLimitText("limit", d.limitText)
	}
	l := d.limit
	if !d.isSet("period") {
		unit, _ := parseUnit(d.unit)
		l.Period = unit.Length()
	}
	if !d.checkAlgorithm(l) {
		return l
	}
	if l.Zone != "" {
		l.Align = unitOf(l.Period).align()
	} else if l.CanAlign() {
		l.Align = penstock.AlignClock
	}
	d.checkLimit(l)
	return l.Normal()
}

// parseLimitText reads the text of a limit in a field. A rule names its limit itself, so that no two
// rules share state by accident.
func (d *draft) parseLimitText(name, text string) penstock.Limit {
	l, err := d.parseLimit(text)
	var bad *penstock.FieldError
	switch {
	case errors.As(err, &bad):
		d.fail(d.lineOf(name), "%s '%s': %s %s", name, excerpt(text), bad.Field, bad.Problem)
	case l.Name != "":
		d.fail(d.lineOf(name), "%s '%s': remove name=: a rule is named after its place in the file", name, excerpt(text))
	default:
		d.checkAlgorithm(l)
	}
	return l
}

// parseLimit parses the text of a limit, each text once.
func (p *parser) parseLimit(text string) (penstock.Limit, error) {
	if l, ok := p.limits[text]; ok {
		return l, nil
	}
	l, err := penstock.ParseLimit(text)
	if err == nil {
		p.limits[text] = l
	}
	return l, err
}

// fileKeys maps the fields of a [penstock.Limit] to those of a rule file.
var fileKeys = map[string]string{
	"Algorithm": "algorithm", "Count": "requests_per_unit", "Burst": "burst", "Buckets": "buckets", "Zone": "zone",
}

// checkLimit reports an invalid limit.
func (d *draft) checkLimit(l penstock.Limit) {
	var bad *penstock.FieldError
	if !errors.As(l.Validate(), &bad) {
		return
	}
	key, ok := fileKeys[bad.Field]
	if !ok {
		key, _ = d.firstSet("period", "unit")
	}
	d.fail(d.lineOf(key), "%s: %s", key, bad.Problem)
}
