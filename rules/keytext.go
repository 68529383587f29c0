package rules

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Path returns the domain and the nodes of a rule, from its name. A node without a
// value applies to all values of its key.
func (r *Rule) Path() (domain string, nodes []Entry) {
	parts := splitEscaped(r.Name, '/')
	for _, part := range parts[1:] {
		if part == "" {
			break // see alsoMark
		}
		node, _ := parseEntry(part)
		nodes = append(nodes, node)
	}
	return unescape(parts[0]), nodes
}

// KeyForm returns how the keys of a rule are written, such as
// "path=/login|remote_address=VALUE".
func (r *Rule) KeyForm() string {
	_, nodes := r.Path()
	for i := range nodes {
		nodes[i].Value = cmp.Or(nodes[i].Value, "VALUE")
	}
	return string(AppendKey(nil, nodes))
}

// A KeyError means that a text is not a key of a rule.
type KeyError struct {
	Text string
	Rule *Rule

	// CountedBy is the rule that counts the text, if another one does.
	CountedBy *Rule
}

func (e *KeyError) Error() string {
	if e.CountedBy != nil {
		return fmt.Sprintf("%.200q is a key of rule %s", e.Text, excerpt(e.CountedBy.Name))
	}
	return fmt.Sprintf("%.200q is not a key of rule %s: want %s", e.Text, excerpt(e.Rule.Name), excerpt(e.Rule.KeyForm()))
}

// ParseKey returns the key of a rule that a text means: the key itself, as
// [Domain.Match] returns it; entries with commas between them, such as "a=1,b=2"; or
// just the values that the rule leaves open, such as "2". The error is a [*KeyError].
func (s *Set) ParseKey(r *Rule, text string) (string, error) {
	domain, nodes := r.Path()
	failed := &KeyError{Text: text, Rule: r}
	for _, entries := range readings(nodes, text) {
		rule, key := s.Domain(domain).Match(entries, nil)
		if rule == r || rule != nil && isAlso(rule, r.Name) {
			return string(key), nil
		}
		failed.CountedBy = cmp.Or(failed.CountedBy, rule)
	}
	return "", failed
}

// readings returns the descriptors that a text can mean, the most literal first.
func readings(nodes []Entry, text string) (all [][]Entry) {
	if entries, err := ParseDescriptor(text); err == nil {
		all = append(all, entries)
	}
	parts := strings.Split(text, ",")
	if len(nodes) == 1 {
		parts = []string{text} // a comma can only be part of the value
	}
	if entries, ok := plainEntries(parts); ok && !strings.Contains(text, "|") {
		all = append(all, entries)
	}
	if entries, ok := fillValues(nodes, text); ok {
		all = append(all, entries)
	}
	return all
}

// plainEntries parses entries without escapes: the first equals sign ends the key.
func plainEntries(parts []string) (entries []Entry, ok bool) {
	for _, part := range parts {
		key, value, ok := strings.Cut(part, "=")
		if !ok {
			return nil, false
		}
		entries = append(entries, Entry{Key: key, Value: value})
	}
	return entries, true
}

// fillValues returns the nodes with the values that they leave open. A value with an
// equals sign is not accepted: more likely, the key before it is misspelt. Nor is one
// that begins with a bar: that is the hash of a long key.
func fillValues(nodes []Entry, text string) ([]Entry, bool) {
	entries := slices.Clone(nodes)
	var open []*string
	for i := range entries {
		if v := &entries[i].Value; *v == "" || strings.Contains(*v, "*") {
			open = append(open, v)
		}
	}
	values := []string{text}
	switch len(open) {
	case 0:
		return entries, text == "" || text == nodes[len(nodes)-1].Value
	case 1:
	default:
		values = strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '|' })
	}
	if len(values) != len(open) || text == "" || text[0] == '|' || strings.Contains(text, "=") {
		return nil, false
	}
	for i := range open {
		*open[i] = values[i]
	}
	return entries, true
}

// ParseDescriptor returns the entries of a descriptor in the form of [AppendKey].
func ParseDescriptor(text string) ([]Entry, error) {
	var entries []Entry
	for _, part := range splitEscaped(text, '|') {
		e, ok := parseEntry(part)
		if !ok || e.Key == "" {
			return nil, fmt.Errorf("%.200q: want entries such as user=42, with bars between them", text)
		}
		entries = append(entries, e)
	}
	return entries, nil
}

// parseEntry parses a key and a value. It reports whether there is exactly one equals
// sign that is not escaped.
func parseEntry(text string) (Entry, bool) {
	parts := splitEscaped(text, '=')
	if len(parts) != 2 {
		return Entry{Key: unescape(text)}, false
	}
	return Entry{Key: unescape(parts[0]), Value: unescape(parts[1])}, true
}

// splitEscaped splits a text at each separator without a backslash before it.
func splitEscaped(text string, separator byte) (parts []string) {
	start := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case separator:
			parts = append(parts, text[start:i])
			start = i + 1
		}
	}
	return append(parts, text[start:])
}

// unescape removes the backslash before each escaped character.
func unescape(text string) string {
	if !strings.Contains(text, `\`) {
		return text
	}
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) {
			i++
		}
		b.WriteByte(text[i])
	}
	return b.String()
}
