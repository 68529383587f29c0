package rules

import (
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"go.yaml.in/yaml/v3"
)

// A limitSpec is what a file says about one limit, before it is known to make
// sense as a whole.
type limitSpec struct {
	line int              // of the descriptor
	said map[string]field // what was said, by name; null is not

	requests  uint32
	unit      string
	unlimited bool
	alias     string
	replaces  []string

	algorithm penstock.Algorithm
	burst     int64
	period    time.Duration
	zone      string
	buckets   int
	text      string

	onStoreFailure OnStoreFailure
	share          float64
	lease          *bool
	denyCache      *bool
}

func (s *limitSpec) has(name string) bool {
	_, ok := s.said[name]
	return ok
}

// at returns the line on which something was said, or that of the descriptor.
func (s *limitSpec) at(name string) int {
	if f, ok := s.said[name]; ok {
		return f.line
	}
	return s.line
}

// firstOf returns the first of the names that was said.
func (s *limitSpec) firstOf(names ...string) (string, bool) {
	i := slices.IndexFunc(names, s.has)
	if i < 0 {
		return "", false
	}
	return names[i], true
}

// rateLimit reads a rate_limit, and returns false if it is none.
func (r *reader) rateLimit(f field, s *limitSpec, depth int) bool {
	if isNull(f.value) {
		return false
	}
	if f.value.Kind != yaml.MappingNode {
		r.failType(f, "a map")
		return false
	}
	s.line = f.line
	for _, f := range r.fields(f.value, depth) {
		if !r.envoyLimitField(s, f) && !r.limitField(s, f) {
			r.stray(f)
		}
	}
	return true
}

// envoyLimitField reads a field that is Envoy's, and returns false if it is not.
func (r *reader) envoyLimitField(s *limitSpec, f field) bool {
	switch f.name {
	case "unit":
		s.unit = r.text(f)
	case "requests_per_unit":
		s.requests = r.requests(f)
	case "unlimited":
		s.unlimited = r.flag(f)
	case "name":
		s.alias = r.text(f)
	case "replaces":
		s.replaces = r.replaces(f)
	default:
		return false
	}
	if !isNull(f.value) {
		s.said[f.name] = f
	}
	return true
}

func (r *reader) replaces(f field) []string {
	var names []string
	for _, m := range r.listOfMaps(f) {
		name := ""
		for _, f := range r.fields(m.value, 0) {
			if f.name == "name" {
				name = r.text(f)
			} else {
				r.stray(f)
			}
		}
		if name == "" {
			r.fail(m.line, "should not have an empty replaces entry")
			continue
		}
		names = append(names, name)
	}
	return names
}

// limitField reads a field that Envoy's service lacks, and returns false if it is
// none of them.
func (r *reader) limitField(s *limitSpec, f field) bool {
	read, ok := limitFields[f.name]
	if !ok {
		return false
	}
	if isNull(f.value) {
		return true
	}
	if before, ok := s.said[f.name]; ok {
		r.fail(f.line, "'%s' is said here and on line %d", f.name, before.line)
		return true
	}
	s.said[f.name] = f
	read(r, s, f)
	return true
}

var limitFields = map[string]func(*reader, *limitSpec, field){
	"algorithm": func(r *reader, s *limitSpec, f field) {
		s.algorithm = penstock.Algorithm(max(0, r.oneOf(f, algorithmNames...)))
	},
	"burst":  func(r *reader, s *limitSpec, f field) { s.burst = r.positive(f, math.MaxInt64) },
	"period": func(r *reader, s *limitSpec, f field) { s.period = r.duration(f) },
	"zone":   func(r *reader, s *limitSpec, f field) { s.zone = r.text(f) },
	"buckets": func(r *reader, s *limitSpec, f field) {
		s.buckets = int(r.positive(f, 1000))
	},
	"limit": func(r *reader, s *limitSpec, f field) { s.text = r.text(f) },
	"on_store_failure": func(r *reader, s *limitSpec, f field) {
		s.onStoreFailure = FailLocal + OnStoreFailure(max(0, r.oneOf(f, failureNames[FailLocal:]...)))
	},
	"share": func(r *reader, s *limitSpec, f field) { s.share = r.fraction(f) },
	"lease": func(r *reader, s *limitSpec, f field) {
		on := r.flag(f)
		s.lease = &on
	},
	"deny_cache": func(r *reader, s *limitSpec, f field) {
		on := r.flag(f)
		s.denyCache = &on
	},
}

var algorithmNames = []string{
	penstock.TokenBucket.String(), penstock.LeakyBucket.String(), penstock.FixedWindow.String(),
	penstock.SlidingWindow.String(), penstock.RollingWindow.String(), penstock.SlidingLog.String(),
}

// oneOf returns which of the words a field says, or -1.
func (r *reader) oneOf(f field, words ...string) int {
	i := slices.Index(words, f.value.Value)
	if i < 0 && !isNull(f.value) {
		r.fail(f.line, "%s: want %s, and not %s", f.name, strings.Join(words, " or "), r.kindText(f.value))
	}
	return i
}

func (r *reader) positive(f field, most int64) (n int64) {
	if f.value.ShortTag() != "!!int" || f.value.Decode(&n) != nil || n < 1 || n > most {
		r.fail(f.line, "%s: want a whole number from 1 to %d, and not %s", f.name, most, r.kindText(f.value))
	}
	return n
}

func (r *reader) fraction(f field) (x float64) {
	tag := f.value.ShortTag()
	if tag != "!!int" && tag != "!!float" || f.value.Decode(&x) != nil || !(x > 0 && x <= 1) {
		r.fail(f.line, "%s: want a number above 0 and at most 1, such as 0.25, and not %s", f.name, r.kindText(f.value))
	}
	return x
}

// duration reads a period as a limit's text has it.
func (r *reader) duration(f field) time.Duration {
	l, err := penstock.ParseLimit("1/" + f.value.Value + " fixed-window")
	if err != nil || strings.ContainsAny(f.value.Value, " \t\r\n") {
		r.fail(f.line, "%s: want a duration such as 30s, 1h30m or 7d, of at most 366 days, and not %s", f.name, r.kindText(f.value))
	}
	return l.Period
}

// rule makes a rule of what was said. Its limit has no meaning if a problem was
// reported, but then nobody will ask for it.
func (p *parser) rule(r *reader, d *descriptor, name string) *Rule {
	s := &d.limit
	rule := &Rule{
		Name: name, File: r.file, Line: s.line, Index: len(p.set.rules),
		Unlimited: s.unlimited, Shadow: d.shadow, Quota: d.quota,
		Alias: s.alias, Replaces: s.replaces, Metadata: d.metadata,
		OnStoreFailure: s.onStoreFailure, Share: s.share, Lease: s.lease, DenyCache: s.denyCache,
	}
	if r.checkTogether(s) && !s.unlimited {
		rule.Limit = r.limit(s)
		rule.Limit.Name = limitName(name)
		rule.RequestsPerUnit = uint32(min(rule.Limit.Count, math.MaxUint32))
		rule.Unit = unitOf(rule.Limit.Period)
	}
	p.set.rules = append(p.set.rules, rule)
	return rule
}

// limit returns the limit that was asked for: a whole one as text, or else a
// number of requests per unit or period, in Envoy's windows on the clock unless
// another algorithm is named.
func (r *reader) limit(s *limitSpec) penstock.Limit {
	if s.has("limit") {
		return r.limitFromText(s)
	}
	unit, _ := parseUnit(s.unit)
	l := unit.Limit(s.requests)
	if s.has("period") {
		l.Period = s.period
	}
	if s.has("algorithm") && s.algorithm != penstock.FixedWindow {
		l.Algorithm, l.Align = s.algorithm, penstock.AlignFirst
	}
	if !r.checkAlgorithm(s, l.Algorithm) {
		return l
	}
	l.Burst, l.Buckets, l.Zone = s.burst, s.buckets, s.zone
	if l.Zone != "" {
		l.Align = calendars[unitOf(l.Period)]
	}
	r.checkLimit(s, l)
	return l.Normal()
}

// calendars are the alignments to the units of a calendar.
var calendars = map[Unit]penstock.Align{
	Day: penstock.AlignDay, Week: penstock.AlignWeek, Month: penstock.AlignMonth, Year: penstock.AlignYear,
}

// limitFromText reads a whole limit. Its name is where the rule stands, so that
// no two rules can share state by accident.
func (r *reader) limitFromText(s *limitSpec) penstock.Limit {
	l, err := penstock.ParseLimit(s.text)
	var bad *penstock.FieldError
	switch {
	case errors.As(err, &bad):
		r.fail(s.at("limit"), "limit '%s': %s %s", shown(s.text), bad.Field, bad.Problem)
	case l.Name != "":
		r.fail(s.at("limit"), "limit '%s': name= has no place in a rule, which is named by where it stands", shown(s.text))
	default:
		r.checkAlgorithm(s, l.Algorithm)
	}
	return l
}

// limitKeys says which field of a file sets which field of a limit.
var limitKeys = map[string]string{
	"Algorithm": "algorithm", "Count": "requests_per_unit", "Burst": "burst", "Buckets": "buckets", "Zone": "zone",
}

// checkLimit reports a limit that cannot be counted by.
func (r *reader) checkLimit(s *limitSpec, l penstock.Limit) {
	var bad *penstock.FieldError
	if !errors.As(l.Validate(), &bad) {
		return
	}
	key, ok := limitKeys[bad.Field]
	if !ok {
		key, _ = s.firstOf("period", "unit")
	}
	r.fail(s.at(key), "%s: %s", key, bad.Problem)
}
