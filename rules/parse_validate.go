package rules

import (
	"strings"

	"github.com/penstock-io/penstock"
)

// Settings that contradict each other are an error: if one of them were ignored, its
// author would still rely on it.

// checkCombination reports missing settings, and contradictions that do not depend on
// the algorithm. It returns true if there are none.
func (d *draft) checkCombination() bool {
	before := d.problems.count()
	switch {
	case d.rule.Unlimited:
		d.checkUnlimited()
	case d.isSet("limit"):
		d.checkLimitText()
	case d.isSet("period"):
		d.checkPeriod()
	default:
		d.checkUnit()
	}
	for _, name := range d.rule.Replaces {
		if name == d.rule.Alias {
			d.fail(d.lineOf("replaces"), "replaces should not contain name of same descriptor: remove '%s'", excerpt(name))
		}
	}
	if f := d.rule.OnStoreFailure; d.isSet("share") && (f == FailAllow || f == FailDeny) {
		d.fail(d.lineOf("share"), "share: needs on_store_failure: local, but it is %s", f)
	}
	if d.rule.Global != nil && (d.rule.ChargeAlways || d.rule.Settle || d.isSet("keep_free")) {
		d.warn(d.lineOf("global"), "global: beside charge, settle or keep_free each request takes a round trip to the home region")
	}
	switch {
	case d.isSet("hold") && !d.rule.Settle:
		d.fail(d.lineOf("hold"), "hold: needs settle: true beside it")
	case d.rule.Settle && d.rule.ChargeAlways:
		d.fail(d.lineOf("settle"), "settle: cannot be combined with charge: always, which charges what was used already")
	}
	return d.problems.count() == before
}

func (d *draft) checkUnlimited() {
	if _, valid := parseUnit(d.unit); valid {
		d.fail(d.lineOf("unit"), "should not specify rate limit unit when unlimited: remove unit")
	}
	for _, kind := range fieldKinds {
		if kind.ours && kind.in&inRateLimit != 0 && d.isSet(kind.name) {
			d.fail(d.lineOf(kind.name), "%s: cannot be combined with unlimited, which counts nothing: remove one of them", kind.name)
			return
		}
	}
}

func (d *draft) checkLimitText() {
	name, ok := d.firstSet("unit", "requests_per_unit", "period", "algorithm", "burst", "buckets", "zone")
	if ok {
		d.fail(d.lineOf(name), "%s: cannot be combined with limit on line %d, which sets all of it: remove one of them", name, d.lineOf("limit"))
	}
}

func (d *draft) checkPeriod() {
	switch {
	case d.isSet("unit"):
		d.fail(d.lineOf("unit"), "unit: cannot be combined with period on line %d: remove one of them", d.lineOf("period"))
	case !d.isSet("requests_per_unit"):
		d.fail(d.lineOf("period"), "period: needs requests_per_unit beside it")
	}
	d.checkZone(unitOf(d.limit.Period))
}

func (d *draft) checkUnit() {
	unit, valid := parseUnit(d.unit)
	if !valid {
		d.fail(d.lineOf("unit"), "invalid rate limit unit '%s'%s", excerpt(d.unit), wantUnit(d.unit))
		return
	}
	if !d.isSet("requests_per_unit") { // valid for Envoy's service, and seldom meant
		d.warn(d.lineOf("unit"), "a limit without requests_per_unit is 0, and denies every request")
	}
	d.checkZone(unit)
}

// wantUnit returns the end of the message about an unknown unit.
func wantUnit(name string) string {
	if near := didYouMean(strings.ToLower(name), unitNames()); near != "" {
		return near
	}
	return ": want " + orList(unitNames()) + ", or use period"
}

// checkZone reports a zone with a unit that no calendar has.
func (d *draft) checkZone(unit Unit) {
	if d.isSet("zone") && unit.align() == penstock.AlignFirst {
		d.fail(d.lineOf("zone"), "zone: needs a unit or period of a day, week, month or year")
	}
}

// checkAlgorithm reports settings that the limit's algorithm does not have. It returns true if
// there are none.
func (d *draft) checkAlgorithm(l penstock.Limit) bool {
	before := d.problems.count()
	for _, c := range []struct {
		name  string
		isSet bool
		needs func(penstock.Limit) bool
	}{
		{"burst", d.isSet("burst"), penstock.Limit.IsBucket},
		{"buckets", d.isSet("buckets"), penstock.Limit.HasBuckets},
		{"zone", d.isSet("zone"), penstock.Limit.CanAlign},
		{"lease", d.rule.Lease != nil && *d.rule.Lease, penstock.Limit.CanLease},
		{"charge", d.rule.ChargeAlways, penstock.Limit.CanOwe},
		{"id", d.isSet("id"), penstock.Limit.HasPermits},
	} {
		if c.isSet && !c.needs(l) {
			d.fail(d.lineOf(c.name), "%s: needs algorithm: %s, but it is %s", c.name, orList(algorithmsThat(c.needs)), l.Algorithm)
		}
	}
	switch {
	case l.HasPermits() && d.rule.ID == "":
		d.fail(d.lineOf("limit"), "a concurrent limit needs id: and the key of the entry that names the permit, such as request_id")
	case l.HasPermits() && d.rule.Settle:
		d.fail(d.lineOf("settle"), "settle: cannot be combined with a concurrent limit, whose permits are released and not settled")
	}
	return d.problems.count() == before
}

// algorithmsThat returns the names of the algorithms whose limits have a property.
func algorithmsThat(has func(penstock.Limit) bool) (names []string) {
	for _, a := range penstock.Algorithms() {
		if has(penstock.Limit{Algorithm: a}) {
			names = append(names, a.String())
		}
	}
	return names
}

// checkSettle reports rules with settle in a domain with compat: there hits are counted as
// Envoy's service counts them, which knows no ID.
func (p *parser) checkSettle(d *Domain) {
	if !d.CompatEnvoy {
		return
	}
	d.top.walk(func(n *node) {
		if n.rule != nil && n.rule.Settle && !n.sharesLimit {
			p.problems.add(n.rule.File, n.rule.Line, "settle: cannot be combined with compat: envoy of the domain '%s'", excerpt(d.Name))
		}
	})
}
