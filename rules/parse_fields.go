package rules

import (
	"maps"
	"math"
	"slices"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/spelling"
	"go.yaml.in/yaml/v3"
)

// A place is a map of a rule file in which a field may stand.
type place uint8

const (
	atTop place = 1 << iota
	inDescriptor
	inRateLimit
	inReplaces
	inPenalty
	inGlobal
)

// A site says where fields belong. In another place, a field of Envoy's format has no effect
// and causes a warning; one of ours is an error.
type site struct {
	in   place
	text string
	ours bool // not part of Envoy's format
}

var (
	top             = site{atTop, "at the top of the file", false}
	topOrDescriptor = site{atTop | inDescriptor, "at the top of the file or in a descriptor", false}
	descriptor      = site{inDescriptor, "in a descriptor", false}
	besideLimit     = site{inDescriptor, "in a descriptor, beside rate_limit", false}
	besideValue     = site{inDescriptor, "in a descriptor, beside value", false}
	rateLimit       = site{inRateLimit, "inside rate_limit", false}
	limitOrReplaces = site{inRateLimit | inReplaces, "inside rate_limit or replaces", false}

	ourTop      = site{atTop, "at the top of the file", true}
	ourLimit    = site{inRateLimit | inDescriptor, "inside rate_limit or beside it", true}
	ourText     = site{inRateLimit | inDescriptor, "inside rate_limit or in place of it", true}
	ourKeepFree = site{inRateLimit | inDescriptor, "inside rate_limit, beside it, or below a descriptor with a limit", true}
	ourPenalty  = site{inPenalty, "inside penalty", true}
	ourGlobal   = site{inGlobal, "inside global", true}
)

// A fieldKind is a field that rule files can have.
type fieldKind struct {
	name string
	site
	read func(*draft, field)
}

// fieldKinds are all fields. A new one needs a row here, and a row in docs/rules.md.
var fieldKinds = []fieldKind{
	{"domain", top, func(d *draft, f field) { d.domain, d.line = d.text(f), f.line }},
	{"descriptors", topOrDescriptor, func(d *draft, f field) { d.children = f }},
	{"compat", ourTop, func(d *draft, f field) { d.compatEnvoy = d.oneOf(f, "envoy") == 0 }},
	{"lists", ourTop, func(*draft, field) {}}, // of the domain, which may stand below; see readLists

	{"key", descriptor, func(d *draft, f field) { d.key = d.text(f) }},
	{"value", descriptor, func(d *draft, f field) { d.value = d.text(f) }},
	{"rate_limit", descriptor, (*draft).readRateLimit},
	{"shadow_mode", besideLimit, func(d *draft, f field) { d.rule.Shadow = d.flag(f) }},
	{"quota_mode", besideLimit, func(d *draft, f field) { d.rule.Quota = d.flag(f) }},
	{"detailed_metric", besideLimit, func(d *draft, f field) { d.detailedMetric = d.flag(f) }},
	{"value_to_metric", besideLimit, func(d *draft, f field) { d.valueToMetric = d.flag(f) }},
	{"share_threshold", besideValue, func(d *draft, f field) { d.shareThreshold = d.flag(f) }},
	{"metadata", besideLimit, func(d *draft, f field) { d.rule.Metadata = d.metadata(f) }},

	{"unit", rateLimit, func(d *draft, f field) { d.unit = d.text(f) }},
	{"requests_per_unit", rateLimit, func(d *draft, f field) { d.limit.Count = d.requests(f) }},
	{"unlimited", rateLimit, func(d *draft, f field) { d.rule.Unlimited = d.flag(f) }},
	{"name", limitOrReplaces, func(d *draft, f field) { d.rule.Alias = d.text(f) }},
	{"replaces", rateLimit, (*draft).readReplaces},

	{"limit", ourText, func(d *draft, f field) { d.limitText = d.text(f) }},
	{"also", ourLimit, func(d *draft, f field) { d.also = d.texts(f) }},
	{"candidate", ourLimit, func(d *draft, f field) { d.candidate = d.text(f) }},
	{"period", ourLimit, func(d *draft, f field) { d.limit.Period = d.duration(f) }},
	{"algorithm", ourLimit, func(d *draft, f field) { d.limit.Algorithm = d.algorithm(f) }},
	{"burst", ourLimit, func(d *draft, f field) { d.limit.Burst = d.whole(f, 1, math.MaxInt64) }},
	{"buckets", ourLimit, func(d *draft, f field) { d.limit.Buckets = int(d.whole(f, 1, 1000)) }},
	{"zone", ourLimit, func(d *draft, f field) { d.limit.Zone = d.text(f) }},
	{"id", ourLimit, func(d *draft, f field) { d.rule.ID = d.text(f) }},
	{"on_store_failure", ourLimit, func(d *draft, f field) { d.rule.OnStoreFailure = d.onStoreFailure(f) }},
	{"share", ourLimit, func(d *draft, f field) { d.rule.Share = d.fraction(f) }},
	{"lease", ourLimit, func(d *draft, f field) { d.rule.Lease = new(d.flag(f)) }},
	{"deny_cache", ourLimit, func(d *draft, f field) { d.rule.DenyCache = new(d.flag(f)) }},
	{"charge", ourLimit, func(d *draft, f field) { d.rule.ChargeAlways = d.oneOf(f, "granted", "always") == 1 }},
	{"penalty", ourLimit, (*draft).readPenalty},
	{"after", ourPenalty, func(d *draft, f field) { d.rule.Penalty.After, d.rule.Penalty.Within = d.denials(f) }},
	{"for", ourPenalty, func(d *draft, f field) { d.rule.Penalty.For = d.duration(f) }},
	{"up_to", ourPenalty, func(d *draft, f field) { d.rule.Penalty.UpTo = d.duration(f) }},
	{"global", ourLimit, (*draft).readGlobal},
	{"pool", ourGlobal, func(d *draft, f field) { d.rule.Global.Pool = d.poolShare(f) }},
	{"age", ourGlobal, func(d *draft, f field) { d.rule.Global.Age = d.duration(f) }},
	{"on_partition", ourGlobal, func(d *draft, f field) { d.rule.Global.OnPartition = d.onStoreFailure(f) }},
	{"keep_free", ourKeepFree, func(d *draft, f field) { d.rule.keepFree = d.keptUnits(f) }},
	{"settle", ourLimit, func(d *draft, f field) { d.rule.Settle = d.flag(f) }},
	{"hold", ourLimit, func(d *draft, f field) { d.rule.Hold = d.hold(f) }},
}

// kindsByName are the fieldKinds. Readers of fields use it as parser.kinds: Go allows no table
// whose functions refer to it.
var kindsByName = func() map[string]fieldKind {
	kinds := map[string]fieldKind{}
	for _, k := range fieldKinds {
		kinds[k.name] = k
	}
	return kinds
}()

// A draft holds the settings of a map of a file, mostly of a descriptor, as they are written:
// before they are checked together.
type draft struct {
	*reader
	line   int              // of the map
	fields map[string]field // that were read, by name

	domain      string
	compatEnvoy bool

	key, value     string
	shareThreshold bool
	detailedMetric bool
	valueToMetric  bool
	children       field
	hasLimit       bool
	sharesLimit    bool // has no limit but a part of the one above to keep free

	limitLine int
	limitText string
	also      []string // further limits, as texts
	candidate string   // a limit to try
	unit      string
	limit     penstock.Limit // as the fields beside limitText and unit say
	rule      Rule           // without its name, place and limit
}

func (r *reader) newDraft(line int) *draft {
	return &draft{
		reader: r, line: line, limitLine: line, fields: map[string]field{},
		limit: penstock.Limit{Algorithm: penstock.FixedWindow},
	}
}

func (d *draft) isSet(name string) bool {
	_, ok := d.fields[name]
	return ok
}

// lineOf returns the line of a field, or that of the limit if it is not set.
func (d *draft) lineOf(name string) int {
	if f, ok := d.fields[name]; ok {
		return f.line
	}
	return d.limitLine
}

// firstSet returns the first of the fields that is set.
func (d *draft) firstSet(names ...string) (string, bool) {
	i := slices.IndexFunc(names, d.isSet)
	if i < 0 {
		return "", false
	}
	return names[i], true
}

// readMap reads the fields of a map.
func (d *draft) readMap(n *yaml.Node, at place) {
	for _, f := range d.readFields(n, 0) {
		d.read(f, at)
	}
}

// read reads a field. In a descriptor, null is the same as no field.
func (d *draft) read(f field, at place) {
	kind := d.kinds[f.name]
	before, twice := d.fields[f.name]
	switch {
	case kind.in&at == 0:
		d.misplaced(f)
	case isNull(f.value) && at&(inDescriptor|inRateLimit) != 0:
	case twice:
		d.fail(f.line, "'%s' is set here and on line %d: remove one of them", f.name, before.line)
	default:
		d.fields[f.name] = f
		kind.read(d, f)
	}
}

// misplaced reports a field that is unknown or belongs elsewhere.
func (r *reader) misplaced(f field) {
	kind, known := r.kinds[f.name]
	switch {
	case !known:
		r.fail(f.line, "unknown key '%s'%s", excerpt(f.name), r.suggestion(f.name))
	case kind.ours:
		r.fail(f.line, "'%s' is not allowed here: put it %s", f.name, kind.text)
	default:
		r.warn(f.line, "'%s' has no effect here: put it %s", f.name, kind.text)
	}
}

// suggestion names the known field that a misspelt one was probably meant to be, if
// any. It costs nothing for problems that are not kept.
func (r *reader) suggestion(name string) string {
	if r.problems.count() >= maxProblems {
		return ""
	}
	return didYouMean(name, slices.Sorted(maps.Keys(r.kinds)))
}

// didYouMean returns the end of a message about a misspelt word.
func didYouMean(word string, known []string) string {
	best := spelling.Similar(word, known)
	if best == "" {
		return ""
	}
	return ": did you mean '" + best + "'?"
}
