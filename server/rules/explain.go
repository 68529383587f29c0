package rules

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// An Explanation says which rule a descriptor gets, and why no other. Its String
// is meant for people.
type Explanation struct {
	Domain string

	// Steps are the entries of the descriptor, as far as they led.
	Steps []Step

	// Rule is the rule that applies, and Key what it counts the descriptor
	// under. If it is nil, NoRule says why.
	Rule   *Rule
	Key    string
	NoRule string

	shared bool // others are counted under the same key
}

// A Step is what became of one entry of a descriptor.
type Step struct {
	Entry      Entry
	Candidates []Candidate // every node that could have been meant, in the order of files
}

// A Candidate is a node of a rule file that an entry was compared with.
type Candidate struct {
	Key, Value string // of the node
	File       string
	Line       int
	Matches    bool
	Chosen     bool   // it is the one that the next entry goes on from
	Why        string // why it was chosen, or not

	node *node
}

// Explain says which rule a descriptor gets, and why. It answers as [Domain.Match]
// does.
func (s *Set) Explain(domain string, entries []Entry) *Explanation {
	x := &Explanation{Domain: domain}
	d := s.Domain(domain)
	switch {
	case d == nil:
		x.NoRule = "there is no such domain; known are " + s.domainNames()
	case len(entries) == 0:
		x.NoRule = "the descriptor has no entries"
	default:
		x.walk(d, entries)
	}
	return x
}

func (s *Set) domainNames() string {
	names := make([]string, 0, len(s.domains))
	for _, d := range s.Domains() {
		names = append(names, shown(d.Name))
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// walk takes the steps of Match, and notes why.
func (x *Explanation) walk(d *Domain, entries []Entry) {
	at := &d.top
	var n *node
	for i, e := range entries {
		if i > 0 && len(at.nodes) == 0 {
			x.NoRule = n.place() + " has no descriptors below it, and " + entryText(e) + " is left" + x.hint(entries)
			return
		}
		chosen, kind, _ := at.find(e, nil)
		x.Steps = append(x.Steps, Step{e, at.candidates(e, chosen, kind)})
		if chosen == nil {
			x.NoRule = "nothing matches " + entryText(e) + x.hint(entries)
			return
		}
		n, at = chosen, &chosen.below
	}
	if n.rule == nil {
		x.NoRule = "the descriptor ends at " + n.place() + ", which has no limit" + x.hint(entries)
		return
	}
	var key []byte
	x.Rule, key = d.Match(entries, nil)
	x.Key = string(key)
	x.shared = !bytes.Equal(key, AppendKey(nil, entries))
}

// hint names a way to a rule that was not taken. The first match is final, which is
// Envoy's way and not what everyone expects.
func (x *Explanation) hint(entries []Entry) string {
	for i, s := range slices.Backward(x.Steps) {
		for _, c := range s.Candidates {
			if c.Matches && !c.Chosen && c.node.leads(entries[i+1:]) {
				return "; " + c.node.place() + " would have led to a rule, but a match once chosen is never left again"
			}
		}
	}
	return ""
}

// leads reports whether entries lead from the node to a rule.
func (n *node) leads(entries []Entry) bool {
	for _, e := range entries {
		if n, _, _ = n.below.find(e, nil); n == nil {
			return false
		}
	}
	return n.rule != nil
}

func (n *node) text() string {
	if n.value == "" {
		return shown(n.key)
	}
	return entryText(Entry{n.key, n.value})
}

func (n *node) place() string { return n.text() + " (" + placeText(n.file, n.line) + ")" }

// candidates says of each node why it was chosen, or not.
func (l *list) candidates(e Entry, chosen *node, kind matchKind) []Candidate {
	joined := appendJoined(nil, e)
	cs := make([]Candidate, 0, len(l.nodes))
	for _, n := range l.nodes {
		c := Candidate{Key: n.key, Value: n.value, File: n.file, Line: n.line, Chosen: n == chosen, node: n}
		own := n.kindFor(e, joined)
		c.Matches = own != matchNone
		switch {
		case c.Chosen:
			c.Why = n.whyMatches(e, own)
		case !c.Matches:
			c.Why = n.whyNot(e)
		case own == kind:
			c.Why = n.whyMatches(e, own) + ", but " + chosen.text() + " comes first"
		case kind == matchExact:
			c.Why = n.whyMatches(e, own) + ", but an exact match comes first"
		default:
			c.Why = n.whyMatches(e, own) + ", but a pattern comes first"
		}
		cs = append(cs, c)
	}
	return cs
}

// kindFor says by what the node matches an entry, regardless of its neighbours.
func (n *node) kindFor(e Entry, joined []byte) matchKind {
	switch {
	case n.joined == string(joined):
		return matchExact
	case n.parts != nil && n.fits(joined):
		return matchWildcard
	case n.joined == e.Key:
		return matchDefault
	}
	return matchNone
}

func (n *node) whyMatches(e Entry, kind matchKind) string {
	switch {
	case kind == matchWildcard:
		return "the pattern matches"
	case kind == matchExact && n.key == e.Key:
		return "is exactly this"
	case kind == matchExact:
		return "is the same when joined by an underscore"
	case n.key == e.Key:
		return "matches any value"
	}
	return "is the key when joined by an underscore, and matches any value"
}

func (n *node) whyNot(e Entry) string {
	switch {
	case n.parts != nil:
		return "the pattern does not match"
	case n.key != e.Key:
		return "has another key"
	}
	return "has another value"
}

func entryText(e Entry) string { return shown(e.Key) + "=" + shown(e.Value) }

// String returns the explanation as lines of text: under each entry the nodes that
// it was compared with, the chosen one marked, and then the rule.
func (x *Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain %s\n", shown(x.Domain))
	for _, s := range x.Steps {
		fmt.Fprintf(&b, "\n%s\n%s", entryText(s.Entry), s.lines())
	}
	fmt.Fprintf(&b, "\n%s", x.ruleLines())
	return b.String()
}

// maxOthers is how many nodes that do not match are printed of each list.
const maxOthers = 10

func (s Step) lines() string {
	var rows [][]string
	others := 0
	for _, c := range s.Candidates {
		if !c.Matches {
			if others++; others > maxOthers {
				continue
			}
		}
		mark := "  "
		if c.Chosen {
			mark = "> "
		}
		rows = append(rows, []string{mark + c.node.text(), placeText(c.File, c.Line), c.Why})
	}
	if others > maxOthers {
		rows = append(rows, []string{fmt.Sprintf("  … and %d more that do not match", others-maxOthers)})
	}
	return columns(rows)
}

func (x *Explanation) ruleLines() string {
	if x.Rule == nil {
		return "no rule: " + x.NoRule + "\n"
	}
	key := printable(x.Key)
	if x.shared {
		key += " (one count for all that the pattern matches)"
	}
	return columns(append(x.Rule.describe(), []string{"key", key}))
}

// columns returns rows as lines, each cell below those before it but for the last
// of a row.
func columns(rows [][]string) string {
	var widths []int
	for _, row := range rows {
		for i := range len(row) - 1 {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", 2+widths[i]-utf8.RuneCountInString(cell)))
			}
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// describe returns what the rule does, as words and their explanations.
func (r *Rule) describe() [][]string {
	limit := "none: unlimited"
	if !r.Unlimited {
		limit = r.Limit.WithName("").String()
	}
	lines := [][]string{{"rule", printable(r.Name)}, {"limit", limit}}
	for _, line := range []struct {
		applies    bool
		word, text string
	}{
		{r.Shadow, "shadow", "counts, but never denies"},
		{r.Quota, "quota", "denies only when all quotas of the request are used up"},
		{r.Alias != "", "name", shown(r.Alias)},
		{len(r.Replaces) > 0, "replaces", shown(strings.Join(r.Replaces, ", "))},
		{r.OnStoreFailure != FailDefault, "on_store_failure", r.OnStoreFailure.String()},
		{r.Share != 0, "share", fmt.Sprint(r.Share)},
		{r.Lease != nil && *r.Lease, "lease", "units are taken ahead and spent locally"},
		{r.Lease != nil && !*r.Lease, "lease", "false"},
		{r.DenyCache != nil, "deny_cache", fmt.Sprint(r.DenyCache != nil && *r.DenyCache)},
	} {
		if line.applies {
			lines = append(lines, []string{line.word, line.text})
		}
	}
	return lines
}
