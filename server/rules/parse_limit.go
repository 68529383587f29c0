package rules

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"go.yaml.in/yaml/v3"
)

// A limitSpec holds the settings of one limit as a file has them, before they are
// checked together.
type limitSpec struct {
	line   int              // of the descriptor
	fields map[string]field // by name, without those that are null

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
	id        string

	onStoreFailure OnStoreFailure
	share          float64
	lease          *bool
	denyCache      *bool
	chargeAlways   bool
	penalty        *Penalty
	keepFree       keptUnits
	settle         bool
	hold           time.Duration
}

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

func (s *limitSpec) isSet(name string) bool {
	_, ok := s.fields[name]
	return ok
}

// lineOf returns the line of a field, or that of the descriptor if it is not set.
func (s *limitSpec) lineOf(name string) int {
	if f, ok := s.fields[name]; ok {
		return f.line
	}
	return s.line
}

// firstSet returns the first of the fields that is set.
func (s *limitSpec) firstSet(names ...string) (string, bool) {
	i := slices.IndexFunc(names, s.isSet)
	if i < 0 {
		return "", false
	}
	return names[i], true
}

// readRateLimit reads a rate_limit, and returns false if it is null or no map.
func (r *reader) readRateLimit(f field, s *limitSpec, depth int) bool {
	if isNull(f.value) {
		return false
	}
	if f.value.Kind != yaml.MappingNode {
		r.failType(f, "a map")
		return false
	}
	s.line = f.line
	for _, f := range r.readFields(f.value, depth) {
		if !r.readEnvoyField(s, f) && !r.readLimitField(s, f) {
			r.misplaced(f)
		}
	}
	return true
}

// readEnvoyField reads a field of Envoy's format, and returns false for any other.
func (r *reader) readEnvoyField(s *limitSpec, f field) bool {
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
		s.replaces = r.readReplaces(f)
	default:
		return false
	}
	if !isNull(f.value) {
		s.fields[f.name] = f
	}
	return true
}

func (r *reader) readReplaces(f field) []string {
	var names []string
	for _, m := range r.listOfMaps(f) {
		name := ""
		for _, f := range r.readFields(m.value, 0) {
			if f.name == "name" {
				name = r.text(f)
			} else {
				r.misplaced(f)
			}
		}
		if name == "" {
			r.fail(m.line, "should not have an empty replaces entry: add name: NAME")
			continue
		}
		names = append(names, name)
	}
	return names
}

// readLimitField reads a field that Envoy's format lacks, and returns false for any
// other.
func (r *reader) readLimitField(s *limitSpec, f field) bool {
	read, ok := limitFieldReaders[f.name]
	if !ok {
		return false
	}
	if isNull(f.value) {
		return true
	}
	if before, ok := s.fields[f.name]; ok {
		r.fail(f.line, "'%s' is set here and on line %d: remove one of them", f.name, before.line)
		return true
	}
	s.fields[f.name] = f
	read(r, s, f)
	return true
}

var limitFieldReaders = map[string]func(*reader, *limitSpec, field){
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
	"id":    func(r *reader, s *limitSpec, f field) { s.id = r.text(f) },
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
	"charge": func(r *reader, s *limitSpec, f field) {
		s.chargeAlways = r.oneOf(f, chargeNames...) == chargeAlways
	},
	"penalty":   func(r *reader, s *limitSpec, f field) { s.penalty = r.readPenalty(f) },
	"keep_free": func(r *reader, s *limitSpec, f field) { s.keepFree = r.keptUnits(f) },
	"settle":    func(r *reader, s *limitSpec, f field) { s.settle = r.flag(f) },
	"hold":      func(r *reader, s *limitSpec, f field) { s.hold = r.hold(f) },
}

var algorithmNames = []string{
	penstock.TokenBucket.String(), penstock.LeakyBucket.String(), penstock.FixedWindow.String(),
	penstock.SlidingWindow.String(), penstock.RollingWindow.String(), penstock.SlidingLog.String(),
	penstock.Concurrent.String(),
}

// chargeNames are the ways to charge: what is granted, or always the whole cost.
var chargeNames = []string{"granted", "always"}

const chargeAlways = 1 // index in chargeNames

// oneOf returns the index of a field's value among words, or -1.
func (r *reader) oneOf(f field, words ...string) int {
	i := slices.Index(words, f.value.Value)
	if i < 0 && !isNull(f.value) {
		r.fail(f.line, "%s: want %s, got %s", f.name, orList(words), r.kindText(f.value))
	}
	return i
}

func (r *reader) positive(f field, most int64) (n int64) {
	if f.value.ShortTag() != "!!int" || f.value.Decode(&n) != nil || n < 1 || n > most {
		r.fail(f.line, "%s: want a whole number from 1 to %d, got %s", f.name, most, r.kindText(f.value))
	}
	return n
}

// keptUnits reads a number of units, or a whole percentage.
func (r *reader) keptUnits(f field) keptUnits {
	text, percent := strings.CutSuffix(f.value.Value, "%")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || percent && n > 99 {
		r.fail(f.line, "%s: want a number of units, or a part of the limit from 0%% to 99%%, such as 20%%, got %s", f.name, r.kindText(f.value))
	}
	return keptUnits{number: n, percent: percent}
}

func (r *reader) fraction(f field) (x float64) {
	tag := f.value.ShortTag()
	if tag != "!!int" && tag != "!!float" || f.value.Decode(&x) != nil || !(x > 0 && x <= 1) {
		r.fail(f.line, "%s: want a number above 0 and at most 1, such as 0.25, got %s", f.name, r.kindText(f.value))
	}
	return x
}

// duration reads a period in the syntax of a limit's text.
func (r *reader) duration(f field) time.Duration {
	l, err := penstock.ParseLimit("1/" + f.value.Value + " fixed-window")
	if err != nil || strings.ContainsAny(f.value.Value, " \t\r\n") {
		r.fail(f.line, "%s: want a duration such as 30s, 1h30m or 7d, of at most 366 days, got %s", f.name, r.kindText(f.value))
	}
	return l.Period
}

// addRule adds the rule of a descriptor to the set. Its limit is meaningless if a
// problem was reported, but then the set is not used.
func (p *parser) addRule(r *reader, d *descriptor, name string) *Rule {
	s := &d.limit
	rule := &Rule{
		Name: name, CountedBy: name, File: r.file, Line: s.line, Index: len(p.set.rules),
		Unlimited: s.unlimited, Shadow: d.shadow, Quota: d.quota,
		Alias: s.alias, Replaces: s.replaces, Metadata: d.metadata,
		ID: s.id, OnStoreFailure: s.onStoreFailure, Share: s.share, Lease: s.lease, DenyCache: s.denyCache,
		ChargeAlways: s.chargeAlways, Penalty: s.penalty, Settle: s.settle, Hold: s.hold,
	}
	if r.checkCombination(s) && !s.unlimited {
		rule.Limit = r.buildLimit(s)
		rule.Limit.Name = limitName(name)
		rule.setUnit()
		r.setKeepFree(s, rule)
	}
	p.set.rules = append(p.set.rules, rule)
	return rule
}

// addSharingRule adds the rule of a descriptor that keeps units of the limit above it free.
// It differs from that rule only in its name and in what it keeps.
func (p *parser) addSharingRule(r *reader, d *descriptor, name string, above *Rule) *Rule {
	if above == nil || above.Unlimited {
		r.fail(d.limit.lineOf("keep_free"), "'keep_free' needs a limit: add rate_limit or limit to this descriptor, or to the one above it")
		return nil
	}
	rule := *above
	rule.metric = nil
	rule.Name, rule.File, rule.Line, rule.Index = name, r.file, d.line, len(p.set.rules)
	rule.Shadow, rule.Quota, rule.Metadata = d.shadow, d.quota, d.metadata
	rule.Penalty = nil // a request that keeps units free is denied for the sake of others
	r.setKeepFree(&d.limit, &rule)
	p.set.rules = append(p.set.rules, &rule)
	return &rule
}

// setKeepFree sets how many units of its limit a rule keeps free.
func (r *reader) setKeepFree(s *limitSpec, rule *Rule) {
	capacity := rule.Limit.Capacity()
	rule.keepFree, rule.KeepFree = s.keepFree, s.keepFree.of(capacity)
	switch {
	case rule.KeepFree == 0:
	case rule.ChargeAlways:
		r.fail(s.lineOf("keep_free"), "keep_free: cannot be combined with charge: always, which charges whatever is left")
	case rule.KeepFree >= capacity:
		r.fail(s.lineOf("keep_free"), "keep_free: keeps %d of %d units, so that none could be taken", rule.KeepFree, capacity)
	}
}

// buildLimit returns the limit: either the one in the limit field, or a number of
// requests per unit or period, by default in windows aligned to the clock, as in
// Envoy's service.
func (r *reader) buildLimit(s *limitSpec) penstock.Limit {
	if s.isSet("limit") {
		return r.parseLimitText(s)
	}
	unit, _ := parseUnit(s.unit)
	l := unit.Limit(s.requests)
	if s.isSet("period") {
		l.Period = s.period
	}
	if s.isSet("algorithm") && s.algorithm != penstock.FixedWindow {
		l.Algorithm, l.Align = s.algorithm, penstock.AlignFirst
	}
	if !r.checkAlgorithm(s, l.Algorithm) {
		return l
	}
	l.Burst, l.Buckets, l.Zone = s.burst, s.buckets, s.zone
	if l.Zone != "" {
		l.Align = calendarAligns[unitOf(l.Period)]
	}
	r.checkLimit(s, l)
	return l.Normal()
}

// calendarAligns are the alignments of the units that a calendar has.
var calendarAligns = map[Unit]penstock.Align{
	Day: penstock.AlignDay, Week: penstock.AlignWeek, Month: penstock.AlignMonth, Year: penstock.AlignYear,
}

// parseLimitText reads the limit field. A rule names its limit itself, so that no two
// rules share state by accident.
func (r *reader) parseLimitText(s *limitSpec) penstock.Limit {
	l, err := r.parseLimit(s.text)
	var bad *penstock.FieldError
	switch {
	case errors.As(err, &bad):
		r.fail(s.lineOf("limit"), "limit '%s': %s %s", excerpt(s.text), bad.Field, bad.Problem)
	case l.Name != "":
		r.fail(s.lineOf("limit"), "limit '%s': remove name=: a rule is named after its place in the file", excerpt(s.text))
	default:
		r.checkAlgorithm(s, l.Algorithm)
	}
	return l
}

// parseLimit parses the text of a limit, each text once.
func (r *reader) parseLimit(text string) (penstock.Limit, error) {
	if l, ok := r.limits[text]; ok {
		return l, nil
	}
	l, err := penstock.ParseLimit(text)
	if err == nil {
		r.limits[text] = l
	}
	return l, err
}

// fileKeys maps the fields of a [penstock.Limit] to those of a rule file.
var fileKeys = map[string]string{
	"Algorithm": "algorithm", "Count": "requests_per_unit", "Burst": "burst", "Buckets": "buckets", "Zone": "zone",
}

// checkLimit reports an invalid limit.
func (r *reader) checkLimit(s *limitSpec, l penstock.Limit) {
	var bad *penstock.FieldError
	if !errors.As(l.Validate(), &bad) {
		return
	}
	key, ok := fileKeys[bad.Field]
	if !ok {
		key, _ = s.firstSet("period", "unit")
	}
	r.fail(s.lineOf(key), "%s: %s", key, bad.Problem)
}
