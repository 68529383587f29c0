package rules

import (
	"slices"
	"strings"
)

// A Set holds the rules of all files. It is immutable.
type Set struct {
	rules    []*Rule
	domains  []*Domain // sorted by name
	warnings Errors
}

// Rules returns every rule, in the order of files and of nodes within a file.
func (s *Set) Rules() []*Rule { return s.rules }

// Rule returns the rule of that name, or nil.
func (s *Set) Rule(name string) *Rule {
	if i := slices.IndexFunc(s.rules, func(r *Rule) bool { return r.Name == name }); i >= 0 {
		return s.rules[i]
	}
	return nil
}

// UseCalendarMonths is [CalendarMonth] for all rules, before the set is used.
func (s *Set) UseCalendarMonths() {
	for _, r := range s.rules {
		r.Limit = CalendarMonth(r.Limit)
	}
}

// Warnings returns the settings that have no effect where they are, and limits without a count.
// Envoy's service accepts them silently.
func (s *Set) Warnings() Errors { return s.warnings }

// Domain returns the domain of that name, or nil.
func (s *Set) Domain(name string) *Domain {
	if len(s.domains) > maxFew {
		if i, ok := s.findDomain(name); ok {
			return s.domains[i]
		}
		return nil
	}
	for _, d := range s.domains {
		if d.Name == name {
			return d
		}
	}
	return nil
}

// findDomain returns the index of the domain of that name, or where it would be.
func (s *Set) findDomain(name string) (int, bool) {
	return slices.BinarySearchFunc(s.domains, name, func(d *Domain, name string) int { return strings.Compare(d.Name, name) })
}

// Domains returns every domain, sorted by name.
func (s *Set) Domains() []*Domain { return s.domains }

// DomainNames returns the names of all domains, sorted.
func (s *Set) DomainNames() []string {
	names := make([]string, len(s.domains))
	for i, d := range s.domains {
		names[i] = d.Name
	}
	return names
}

// Lost returns the names of the rules of another set, which may be nil, that this set
// does not have.
func (s *Set) Lost(old *Set) (names []string) {
	if old == nil {
		return nil
	}
	kept := make(map[string]bool, len(s.rules))
	for _, r := range s.rules {
		kept[r.Name] = true
	}
	for _, r := range old.rules {
		if !kept[r.Name] {
			names = append(names, r.Name)
		}
	}
	return names
}

// A Domain is a namespace of rules. A client, such as Envoy, names one in each
// request.
type Domain struct {
	Name        string
	CompatEnvoy bool // count as Envoy does: each descriptor by itself, denied hits too

	// File and Line are where the domain is defined, or defined first.
	File string
	Line int

	top    nodeList
	lists  map[string][][]Entry
	idKeys []string // of entries that name permits, which match no node
}
