package rules

import (
	"maps"
	"slices"

	"github.com/penstock-io/penstock"
)

// A Set is the rules of all files together. It is immutable.
type Set struct {
	rules    []*Rule
	domains  map[string]*Domain
	warnings Errors
}

// A File is the text of a rule file.
type File struct {
	Name string
	Text []byte
}

// Parse makes a set of files. If anything is wrong with them the error is
// [Errors], which names the file, the line and the reason of each.
func Parse(files ...File) (*Set, error) { return parse(files, false) }

// Rules returns every rule, in the order of files and nodes.
func (s *Set) Rules() []*Rule { return s.rules }

// Warnings returns what the files say without effect. Envoy's service accepts it
// in silence; whoever checks a file wants to know.
func (s *Set) Warnings() Errors { return s.warnings }

// Domain returns the domain of that name, or nil.
func (s *Set) Domain(name string) *Domain { return s.domains[name] }

// Domains returns every domain, by name.
func (s *Set) Domains() []*Domain {
	domains := make([]*Domain, 0, len(s.domains))
	for _, name := range slices.Sorted(maps.Keys(s.domains)) {
		domains = append(domains, s.domains[name])
	}
	return domains
}

// CheckEnvoy returns [Errors] if there are rules that Envoy cannot be served by.
// A leaky bucket answers with a delay, and Envoy has no way to hold a request.
func (s *Set) CheckEnvoy() error {
	var p problems
	for _, r := range s.rules {
		if r.Limit.Algorithm == penstock.LeakyBucket {
			p.add(r.File, r.Line, "%s: a leaky-bucket delays requests, which Envoy cannot do: "+
				"choose another algorithm, or shut the door for Envoy", shown(r.Name))
		}
	}
	if p.count() == 0 {
		return nil
	}
	return p.sorted()
}

// A Domain is the rules that one caller, such as one Envoy, asks for.
type Domain struct {
	Name        string
	CompatEnvoy bool // count as Envoy does: each descriptor alone, denied hits too

	// File and Line are where the domain was named first.
	File string
	Line int

	top list
}
