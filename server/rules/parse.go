package rules

import (
	"fmt"
	"maps"
	"slices"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/spelling"
	"go.yaml.in/yaml/v3"
)

// Limits that are checked before files are parsed.
const (
	MaxFileBytes = 16 << 20 // of one file
	MaxFiles     = 1000
)

// A File is the text of a rule file.
type File struct {
	Name string
	Text []byte
}

// Parse returns the rules of files. If the content of a file is wrong, the error is
// [Errors], which has the file, the line and the reason of each problem.
func Parse(files ...File) (*Set, error) { return parse(files, false) }

// ParseMerged is [Parse], except that several files may add to one domain.
func ParseMerged(files ...File) (*Set, error) { return parse(files, true) }

// parse returns the rules of files. With merge, several files may add to one domain.
func parse(files []File, merge bool) (*Set, error) {
	p := &parser{set: &Set{domains: map[string]*Domain{}}, merge: merge}
	if len(files) > MaxFiles {
		return nil, Errors{{File: files[MaxFiles].Name, Reason: fmt.Sprintf("too many rule files: at most %d are allowed", MaxFiles)}}
	}
	for _, f := range files {
		p.parseFile(f)
	}
	for _, d := range p.set.domains {
		p.setIDKeys(d)
		p.checkSettle(d)
	}
	if p.problems.count() > 0 {
		return nil, p.problems.sorted()
	}
	p.set.warnings = p.warnings.sorted()
	return p.set, nil
}

// A parser builds a set from files. It continues after a problem, to report all of
// them; the set is then not used.
type parser struct {
	set      *Set
	merge    bool
	problems problems
	warnings problems
	nodes    int
}

func (p *parser) parseFile(f File) {
	r := &reader{file: f.Name, problems: &p.problems, warnings: &p.warnings, nodes: &p.nodes, limits: map[string]penstock.Limit{}}
	if len(f.Text) > MaxFileBytes {
		r.fail(0, "file has %d bytes: at most %d are allowed", len(f.Text), MaxFileBytes)
		return
	}
	if checkSeal(f.Text) == sealBroken {
		r.fail(1, "%s", brokenSeal)
		return
	}
	before := p.problems.count()
	root := r.readDocument(f.Text)
	switch {
	case p.problems.count() > before:
	case root == nil || isNull(root):
		r.fail(1, emptyDomain)
	case root.Kind != yaml.MappingNode:
		r.failType(field{name: "the file", line: root.Line, value: root}, "a map with domain and descriptors")
	default:
		p.parseRoot(r, root)
	}
}

const emptyDomain = "config file cannot have empty domain: add domain: NAME"

// parseRoot reads the top-level fields of a file.
func (p *parser) parseRoot(r *reader, n *yaml.Node) {
	before := p.problems.count()
	var name string
	var descriptors field
	compat := false
	line := n.Line
	for _, f := range r.readFields(r.resolveAlias(n), 0) {
		switch f.name {
		case "domain":
			name, line = r.text(f), f.line
		case "descriptors":
			descriptors = f
		case "compat":
			compat = r.oneOf(f, "envoy") == 0
		default:
			r.misplaced(f)
		}
	}
	if name == "" && p.problems.count() > before {
		return // domain may be there but misspelt, which is reported already
	}
	d := p.addDomain(r, line, name)
	if d == nil {
		return
	}
	d.CompatEnvoy = d.CompatEnvoy || compat
	if descriptors.value != nil {
		p.parseDescriptors(r, descriptors, &d.top, rootPath(name))
	}
}

// addDomain returns the domain of that name, or nil after reporting a problem.
func (p *parser) addDomain(r *reader, line int, name string) *Domain {
	if name == "" {
		r.fail(line, emptyDomain)
		return nil
	}
	d, ok := p.set.domains[name]
	if ok && !p.merge {
		r.fail(line, "duplicate domain '%s' in config file, first defined in %s: use one file for it, or set merge-domains",
			excerpt(name), location(d.File, d.Line))
		return nil
	}
	if !ok {
		d = &Domain{Name: name, File: r.file, Line: line}
		p.set.domains[name] = d
		if len(p.set.few) < maxFew {
			p.set.few = append(p.set.few, d)
		}
	}
	return d
}

// fieldPlaces lists where each field belongs. In another place, a field of Envoy's
// format has no effect and causes a warning; one of ours is an error.
var fieldPlaces = map[string]struct {
	place string
	ours  bool // not part of Envoy's format
}{
	"domain":      {place: "at the top of the file"},
	"descriptors": {place: "at the top of the file or in a descriptor"},
	"compat":      {place: "at the top of the file", ours: true},

	"key":             {place: "in a descriptor"},
	"value":           {place: "in a descriptor"},
	"rate_limit":      {place: "in a descriptor"},
	"shadow_mode":     {place: "in a descriptor, beside rate_limit"},
	"quota_mode":      {place: "in a descriptor, beside rate_limit"},
	"detailed_metric": {place: "in a descriptor, beside rate_limit"},
	"value_to_metric": {place: "in a descriptor, beside rate_limit"},
	"share_threshold": {place: "in a descriptor, beside value"},
	"metadata":        {place: "in a descriptor, beside rate_limit"},

	"unit":              {place: "inside rate_limit"},
	"requests_per_unit": {place: "inside rate_limit"},
	"unlimited":         {place: "inside rate_limit"},
	"name":              {place: "inside rate_limit or replaces"},
	"replaces":          {place: "inside rate_limit"},

	"algorithm":        {place: "inside rate_limit or beside it", ours: true},
	"burst":            {place: "inside rate_limit or beside it", ours: true},
	"period":           {place: "inside rate_limit or beside it", ours: true},
	"zone":             {place: "inside rate_limit or beside it", ours: true},
	"buckets":          {place: "inside rate_limit or beside it", ours: true},
	"limit":            {place: "inside rate_limit or in place of it", ours: true},
	"id":               {place: "inside rate_limit or beside it", ours: true},
	"on_store_failure": {place: "inside rate_limit or beside it", ours: true},
	"share":            {place: "inside rate_limit or beside it", ours: true},
	"lease":            {place: "inside rate_limit or beside it", ours: true},
	"deny_cache":       {place: "inside rate_limit or beside it", ours: true},
	"charge":           {place: "inside rate_limit or beside it", ours: true},
	"penalty":          {place: "inside rate_limit or beside it", ours: true},
	"after":            {place: "inside penalty", ours: true},
	"for":              {place: "inside penalty", ours: true},
	"up_to":            {place: "inside penalty", ours: true},
	"keep_free":        {place: "inside rate_limit, beside it, or below a descriptor with a limit", ours: true},
	"settle":           {place: "inside rate_limit or beside it", ours: true},
	"hold":             {place: "inside rate_limit or beside it", ours: true},
}

// misplaced reports a field that is unknown or belongs elsewhere.
func (r *reader) misplaced(f field) {
	field, known := fieldPlaces[f.name]
	switch {
	case !known:
		r.fail(f.line, "unknown key '%s'%s", excerpt(f.name), r.suggestion(f.name))
	case field.ours:
		r.fail(f.line, "'%s' is not allowed here: put it %s", f.name, field.place)
	default:
		r.warn(f.line, "'%s' has no effect here: put it %s", f.name, field.place)
	}
}

// suggestion names the known field that a misspelt one was probably meant to be, if
// any. It costs nothing for problems that are not kept.
func (r *reader) suggestion(name string) string {
	if r.problems.count() >= maxProblems {
		return ""
	}
	return didYouMean(name, slices.Sorted(maps.Keys(fieldPlaces)))
}

// didYouMean returns the end of a message about a misspelt word.
func didYouMean(word string, known []string) string {
	best := spelling.Similar(word, known)
	if best == "" {
		return ""
	}
	return ": did you mean '" + best + "'?"
}
