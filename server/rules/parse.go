package rules

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// What files may ask for, before anything is allocated for them.
const (
	maxFileBytes = 4 << 20
	maxFiles     = 1000
)

// parse makes a set of files. Where merge is set, files may add to the domains of
// files before them.
func parse(files []File, merge bool) (*Set, error) {
	p := &parser{set: &Set{domains: map[string]*Domain{}}, merge: merge}
	if len(files) > maxFiles {
		return nil, Errors{{File: files[maxFiles].Name, Reason: fmt.Sprintf("one file too many: want at most %d", maxFiles)}}
	}
	for _, f := range files {
		p.file(f)
	}
	if p.problems.count() > 0 {
		return nil, p.problems.sorted()
	}
	p.set.warnings = p.warnings.sorted()
	return p.set, nil
}

// A parser makes a set of files. It goes on after a problem, to find all of
// them; the set is then of no use.
type parser struct {
	set      *Set
	merge    bool
	problems problems
	warnings problems
	nodes    int
}

func (p *parser) file(f File) {
	r := &reader{file: f.Name, problems: &p.problems, warnings: &p.warnings, nodes: &p.nodes}
	if len(f.Text) > maxFileBytes {
		r.fail(0, "%d bytes long: want at most %d", len(f.Text), maxFileBytes)
		return
	}
	before := p.problems.count()
	root := r.document(f.Text)
	switch {
	case p.problems.count() > before:
	case root == nil || isNull(root):
		r.fail(1, "config file cannot have empty domain")
	case root.Kind != yaml.MappingNode:
		r.failType(field{name: "the file", line: root.Line, value: root}, "a map with domain and descriptors")
	default:
		p.root(r, root)
	}
}

// root reads the fields of a file.
func (p *parser) root(r *reader, n *yaml.Node) {
	before := p.problems.count()
	var name string
	var descriptors field
	compat := false
	line := n.Line
	for _, f := range r.fields(r.visit(n), 0) {
		switch f.name {
		case "domain":
			name, line = r.text(f), f.line
		case "descriptors":
			descriptors = f
		case "compat":
			compat = r.oneOf(f, "envoy") == 0
		default:
			r.stray(f)
		}
	}
	if name == "" && p.problems.count() > before {
		return // it may be there, and misspelt
	}
	d := p.domain(r, line, name)
	if d == nil {
		return
	}
	d.CompatEnvoy = d.CompatEnvoy || compat
	if descriptors.value != nil {
		p.descriptors(r, descriptors, &d.top, rootPath(name))
	}
}

// domain returns the domain of that name, or nil if it may not be had.
func (p *parser) domain(r *reader, line int, name string) *Domain {
	if name == "" {
		r.fail(line, "config file cannot have empty domain")
		return nil
	}
	d, ok := p.set.domains[name]
	if ok && !p.merge {
		r.fail(line, "duplicate domain '%s' in config file", shown(name))
		return nil
	}
	if !ok {
		d = &Domain{Name: name, File: r.file, Line: line}
		p.set.domains[name] = d
	}
	return d
}

// homes says where each field belongs. Envoy's own count for nothing elsewhere,
// and are warned about; ours are refused.
var homes = map[string]struct {
	place string
	ours  bool
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
	"name":              {place: "inside rate_limit, or replaces"},
	"replaces":          {place: "inside rate_limit"},

	"algorithm":        {place: "inside rate_limit, or beside it", ours: true},
	"burst":            {place: "inside rate_limit, or beside it", ours: true},
	"period":           {place: "inside rate_limit, or beside it", ours: true},
	"zone":             {place: "inside rate_limit, or beside it", ours: true},
	"buckets":          {place: "inside rate_limit, or beside it", ours: true},
	"limit":            {place: "inside rate_limit, or in place of it", ours: true},
	"on_store_failure": {place: "inside rate_limit, or beside it", ours: true},
	"share":            {place: "inside rate_limit, or beside it", ours: true},
	"lease":            {place: "inside rate_limit, or beside it", ours: true},
	"deny_cache":       {place: "inside rate_limit, or beside it", ours: true},
}

// stray reports a field that does not belong where it stands.
func (r *reader) stray(f field) {
	home, known := homes[f.name]
	switch {
	case !known:
		r.fail(f.line, "config error, unknown key '%s'", shown(f.name))
	case home.ours:
		r.fail(f.line, "'%s' has no place here: it belongs %s", f.name, home.place)
	default:
		r.warn(f.line, "'%s' has no effect here: it belongs %s", f.name, home.place)
	}
}
