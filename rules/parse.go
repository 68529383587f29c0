package rules

import (
	"fmt"
	"slices"

	"github.com/penstock-io/penstock"
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
func Parse(files ...File) (*Set, error) { return parse(files, &Options{}) }

// ParseMerged is [Parse], except that several files may add to one domain.
func ParseMerged(files ...File) (*Set, error) { return parse(files, &Options{MergeDomains: true}) }

// parse returns the rules of files.
func parse(files []File, o *Options) (*Set, error) {
	p := &parser{set: &Set{}, mergeDomains: o.MergeDomains, allowDuplicates: o.AllowDuplicates, kinds: kindsByName, limits: map[string]penstock.Limit{}}
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
	set             *Set
	mergeDomains    bool
	allowDuplicates bool
	kinds           map[string]fieldKind // all fields, by name
	problems        problems
	warnings        problems
	nodes           int                       // of YAML, read so far
	limits          map[string]penstock.Limit // parsed so far, by text: many rules share a few
}

func (p *parser) parseFile(f File) {
	r := &reader{parser: p, file: f.Name}
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
		r.parseRoot(root)
	}
}

const emptyDomain = "config file cannot have empty domain: add domain: NAME"

// parseRoot reads the top-level fields of a file.
func (r *reader) parseRoot(n *yaml.Node) {
	before := r.problems.count()
	d := r.newDraft(n.Line)
	d.readMap(r.resolveAlias(n), atTop)
	if d.domain == "" {
		if r.problems.count() == before { // or domain may be there but misspelt, which is reported already
			r.fail(d.line, emptyDomain)
		}
		return
	}
	domain := r.addDomain(d.line, d.domain)
	if domain == nil {
		return
	}
	domain.CompatEnvoy = domain.CompatEnvoy || d.compatEnvoy
	d.readLists(domain)
	d.parseDescriptors(&domain.top, rootPath(d.domain))
}

// addDomain returns the domain of that name, or nil after reporting a problem.
func (r *reader) addDomain(line int, name string) *Domain {
	i, ok := r.set.findDomain(name)
	if ok && !r.mergeDomains {
		d := r.set.domains[i]
		r.fail(line, "duplicate domain '%s' in config file, first defined in %s: use one file for it, or set merge-domains",
			excerpt(name), location(d.File, d.Line))
		return nil
	}
	if !ok {
		d := &Domain{Name: name, File: r.file, Line: line}
		r.set.domains = slices.Insert(r.set.domains, i, d)
	}
	return r.set.domains[i]
}
