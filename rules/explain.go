package rules

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/penstock-io/penstock/internal/timespan"
)

// An Explanation shows which rule applies to a descriptor, and why no other does. Its
// String is for people to read.
type Explanation struct {
	Domain string

	// Rule is the rule that applies, and Key the key to count the descriptor
	// under. If Rule is nil, NoRule has the reason.
	Rule   *Rule
	Key    string
	NoRule string

	// Regions is what regions hold of a global rule's limit, in words; see [Explanation.String].
	Regions string

	steps  []step // the entries of the descriptor, up to the first that matched no node
	shared bool   // other descriptors are counted under the same key
	above  bool   // because the rule has the limit of the one above
}

// A step shows how one entry of a descriptor was matched.
type step struct {
	entry      Entry
	candidates []candidate // all nodes it was compared with, in file order
}

// A candidate is a node that was compared with an entry.
type candidate struct {
	*node
	matches bool
	chosen  bool   // the next entry is compared with its children
	why     string // why it was chosen, or not
}

// Explain returns which rule applies to a descriptor, and why. The rule is the one that
// [Domain.Match] returns.
func (s *Set) Explain(domain string, entries []Entry) *Explanation {
	x := &Explanation{Domain: domain}
	d := s.Domain(domain)
	if d == nil {
		x.NoRule = "unknown domain; the rule files define " + s.listDomains()
		return x
	}
	switch matched := d.withoutIDs(entries); {
	case len(entries) == 0:
		x.NoRule = "the descriptor has no entries"
	case len(matched) == 0:
		x.NoRule = "the descriptor has no entries but those that name permits"
	default:
		x.trace(d, matched)
	}
	return x
}

// listDomains returns the names of all domains for a message.
func (s *Set) listDomains() string {
	names := s.DomainNames()
	for i, name := range names {
		names[i] = excerpt(name)
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

// trace repeats the steps of Match and records the reasons.
func (x *Explanation) trace(d *Domain, entries []Entry) {
	at := &d.top
	var n *node
	for i, e := range entries {
		if i > 0 && len(at.nodes) == 0 {
			x.NoRule = n.location() + " has no nested descriptors to match " + entryText(e) + x.missedRule(entries)
			return
		}
		chosen, kind, _ := at.find(e, nil)
		x.steps = append(x.steps, step{e, at.candidates(e, chosen, kind)})
		if chosen == nil {
			x.NoRule = "no descriptor matches " + entryText(e) + x.missedRule(entries)
			return
		}
		n, at = chosen, &chosen.children
	}
	if n.rule == nil {
		x.NoRule = "the last entry matches " + n.location() + ", which has no limit" + x.missedRule(entries)
		return
	}
	var key []byte
	x.Rule, key = d.Match(entries, nil)
	x.Key = string(key)
	x.above = n.sharesLimit
	x.shared = !x.above && !bytes.Equal(key, AppendKey(nil, entries))
}

// missedRule names a candidate that would have led to a rule. As in Envoy's service, the
// best match of an entry is final even if it leads to no rule, which often surprises.
func (x *Explanation) missedRule(entries []Entry) string {
	for i, s := range slices.Backward(x.steps) {
		for _, c := range s.candidates {
			if c.matches && !c.chosen && c.leadsToRule(entries[i+1:]) {
				return "; " + c.location() + " would lead to a rule, but matching never backtracks from the chosen descriptor"
			}
		}
	}
	return ""
}

// leadsToRule reports whether entries select a rule among the node's descendants, or the
// node's own if there are no entries.
func (n *node) leadsToRule(entries []Entry) bool {
	for _, e := range entries {
		if n, _, _ = n.children.find(e, nil); n == nil {
			return false
		}
	}
	return n.rule != nil
}

func (n *node) text() string {
	if n.value == "" {
		return excerpt(n.key)
	}
	return entryText(Entry{Key: n.key, Value: n.value})
}

func (n *node) location() string { return n.text() + " (" + printable(location(n.file, n.line)) + ")" }

// candidates returns all nodes with the reason why each was chosen or not.
func (l *nodeList) candidates(e Entry, chosen *node, kind matchKind) []candidate {
	joined := appendJoined(nil, e)
	cs := make([]candidate, 0, len(l.nodes))
	for _, n := range l.nodes {
		own := n.matchKind(e, joined)
		c := candidate{node: n, matches: own != matchNone, chosen: n == chosen, why: n.why(e, own)}
		switch {
		case c.chosen || !c.matches:
		case own == kind:
			c.why += ", but " + chosen.text() + " is earlier in the file"
		case kind == matchExact:
			c.why += ", but an exact match wins"
		default:
			c.why += ", but a pattern wins"
		}
		cs = append(cs, c)
	}
	return cs
}

// matchKind returns how the node matches an entry, regardless of its siblings.
func (n *node) matchKind(e Entry, joined []byte) matchKind {
	switch {
	case n.joined == string(joined):
		return matchExact
	case n.parts != nil && n.matchesPattern(joined):
		return matchWildcard
	case n.joined == e.Key:
		return matchDefault
	}
	return matchNone
}

// why says how the node matches an entry, or why it does not.
func (n *node) why(e Entry, kind matchKind) string {
	sameKey := n.key == e.Key
	switch {
	case kind == matchWildcard:
		return "pattern matches"
	case kind == matchExact && sameKey:
		return "exact match"
	case kind == matchExact:
		return "exact match of key and value joined by '_'"
	case kind == matchDefault && sameKey:
		return "matches any value"
	case kind == matchDefault:
		return "key and value joined by '_' equal the key, matches any value"
	case n.parts != nil:
		return "pattern does not match"
	case !sameKey:
		return "different key"
	}
	return "different value"
}

func entryText(e Entry) string { return excerpt(e.Key) + "=" + excerpt(e.Value) }

// String returns the explanation as lines of text: below each entry the nodes that
// it was compared with, with a mark at the chosen one, and then the rule.
func (x *Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain %s\n", excerpt(x.Domain))
	for _, s := range x.steps {
		fmt.Fprintf(&b, "\n%s\n%s", entryText(s.entry), s.lines())
	}
	fmt.Fprintf(&b, "\n%s", x.ruleLines())
	return b.String()
}

// maxMismatches is how many nodes that do not match are printed for each entry.
const maxMismatches = 10

func (s step) lines() string {
	var rows [][]string
	mismatches := 0
	for _, c := range s.candidates {
		if !c.matches {
			if mismatches++; mismatches > maxMismatches {
				continue
			}
		}
		mark := "  "
		if c.chosen {
			mark = "> "
		}
		rows = append(rows, []string{mark + c.text(), printable(location(c.file, c.line)), c.why})
	}
	if mismatches > maxMismatches {
		rows = append(rows, []string{fmt.Sprintf("  … and %d more that do not match", mismatches-maxMismatches)})
	}
	return columns(rows)
}

func (x *Explanation) ruleLines() string {
	if x.Rule == nil {
		return "no rule: " + x.NoRule + "\n"
	}
	key := printable(x.Key)
	if x.shared {
		key += " (one count for all values that match the pattern)"
	} else if x.above {
		key += " (counted with the descriptor above)"
	}
	limit := "none: unlimited"
	if !x.Rule.Unlimited {
		limit = x.Rule.Limit.WithName("").String()
	}
	rows := append([][]string{{"rule", printable(x.Rule.Name)}, {"limit", limit}}, x.Rule.Settings()...)
	if x.Regions != "" {
		rows = append(rows, []string{"regions", x.Regions})
	}
	return columns(append(rows, []string{"key", key}))
}

// columns returns rows as lines with aligned cells.
func columns(rows [][]string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		_, _ = fmt.Fprintln(w, strings.Join(row, "\t")) // a strings.Builder cannot fail
	}
	_ = w.Flush()
	return b.String()
}

// Settings returns what the file says of the rule besides its limit, as rows of a name and a text.
func (r *Rule) Settings() (lines [][]string) {
	for _, line := range []struct {
		applies    bool
		word, text string
	}{
		{r.Also != nil && !r.isFurther, "also", r.alsoText()},
		{r.Candidate != nil, "candidate", r.candidateText()},
		{r.Shadow, "shadow", "counts, but never denies"},
		{r.Quota, "quota", "denies only if all quota rules of the request are over their limit"},
		{r.Alias != "", "name", excerpt(r.Alias)},
		{len(r.Replaces) > 0, "replaces", excerpt(strings.Join(r.Replaces, ", "))},
		{r.OnStoreFailure != FailDefault, "on_store_failure", r.OnStoreFailure.String()},
		{r.KeepFree != 0, "keep_free", fmt.Sprint(r.KeepFree)},
		{r.ChargeAlways, "charge", "always, as debt if it does not fit"},
		{r.ID != "", "id", printable(r.ID)},
		{r.Settle, "settle", settleText(r.Hold)},
		{r.Share != 0, "share", fmt.Sprint(r.Share)},
		{r.Lease != nil && *r.Lease, "lease", "units are taken in advance and spent locally"},
		{r.Lease != nil && !*r.Lease, "lease", "false"},
		{r.Global != nil, "global", r.Global.String()},
		{r.Penalty != nil, "penalty", r.Penalty.String()},
		{r.DenyCache != nil, "deny_cache", fmt.Sprint(r.DenyCache != nil && *r.DenyCache)},
	} {
		if line.applies {
			lines = append(lines, []string{line.word, line.text})
		}
	}
	return lines
}

// alsoText returns the further limits on the same keys.
func (r *Rule) alsoText() string {
	var limits []string
	for also := r.Also; also != nil; also = also.Also {
		limits = append(limits, also.Limit.WithName("").String())
	}
	return strings.Join(limits, ", ")
}

// candidateText returns the limit that is tried.
func (r *Rule) candidateText() string {
	if r.Candidate == nil {
		return ""
	}
	return r.Candidate.Limit.WithName("").String() + ", which counts beside the limit, but never denies"
}

// settleText describes for how long what was taken can be settled.
func settleText(hold time.Duration) string {
	if hold == 0 {
		return "what was taken under an ID, for one period and at most a day"
	}
	return "what was taken under an ID, for " + timespan.Text(hold) + " or one period if that is longer"
}
