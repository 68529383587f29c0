package server

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/rules"
)

// The most changes that one line of the log names, and the most bytes of a name or a setting in it.
const (
	maxNamedChanges = 10
	maxNamedBytes   = 100
)

// ruleChanges are how a set of rules differs from the one before it.
type ruleChanges struct {
	changedRules            int
	changed, removed, added []string // such as "shop/user 60/1m -> 6/1m"; of a rule, each change of its own
}

// changes compares rules of the same name. Nothing has changed from no set at all.
func changes(old, now *rules.Set) (found ruleChanges) {
	if old == nil {
		return found
	}
	before := make(map[string]*rules.Rule, len(old.Rules()))
	for _, r := range old.Rules() {
		before[r.Name] = r
	}
	for _, r := range now.Rules() {
		was := before[r.Name]
		delete(before, r.Name)
		if was == nil {
			found.added = append(found.added, nameInLog(r)+" added: "+limitInLog(r))
			continue
		}
		if how := changesOf(was, r); len(how) > 0 {
			found.changedRules++
			found.changed = append(found.changed, how...)
		}
	}
	for _, r := range old.Rules() {
		if before[r.Name] != nil {
			found.removed = append(found.removed, nameInLog(r)+" removed: "+limitInLog(r))
		}
	}
	return found
}

// changesOf compares two rules of one name: their limits, and then what else the file says of them.
func changesOf(was, r *rules.Rule) (found []string) {
	if old, now := limitInLog(was), limitInLog(r); old != now {
		found = append(found, nameInLog(r)+" "+old+" -> "+now)
	}
	if r.IsFurther() { // it has the settings of its rule
		return found
	}
	before, after := settingsInLog(was), settingsInLog(r)
	for _, name := range settingNames(was, r) {
		if old, now := before[name], after[name]; old != now {
			found = append(found, nameInLog(r)+" "+name+" "+cut(cmp.Or(old, "unset"))+" -> "+cut(cmp.Or(now, "unset")))
		}
	}
	return found
}

// settingNames returns the names of the settings of two rules, those of the later one first.
func settingNames(was, r *rules.Rule) (names []string) {
	for _, row := range append(r.Settings(), was.Settings()...) {
		if !slices.Contains(names, row[0]) {
			names = append(names, row[0])
		}
	}
	return names
}

// settingsInLog returns what the file says of a rule besides its limit, by the names of the settings. It is without
// what the log says with a limit: further limits are rules with names of their own.
func settingsInLog(r *rules.Rule) map[string]string {
	texts := map[string]string{}
	for _, row := range r.Settings() {
		if name := row[0]; name != "also" && name != "shadow" {
			texts[name] = row[1]
		}
	}
	return texts
}

func nameInLog(r *rules.Rule) string { return cut(r.Name) }

// cut returns the beginning of a long text.
func cut(text string) string {
	if len(text) <= maxNamedBytes {
		return text
	}
	return strings.ToValidUTF8(text[:maxNamedBytes], "") + "…"
}

func limitInLog(r *rules.Rule) string {
	text := "unlimited"
	if !r.Unlimited {
		limit := r.Limit
		limit.Name = "" // that of the rule
		text = limit.String()
	}
	if r.Shadow {
		text += " (shadow)"
	}
	return text
}

// String names the first changes: those that may be mistakes before those that add rules.
func (c ruleChanges) String() string {
	var all []string
	for _, some := range [][]string{c.changed, c.removed, c.added} {
		all = append(all, some...)
	}
	named := strings.Join(all[:min(len(all), maxNamedChanges)], ", ")
	if more := len(all) - maxNamedChanges; more > 0 {
		named += fmt.Sprintf(", and %d more", more)
	}
	return named
}

// logChanges says what a reload changes, since a file that is valid may be wrong. What a rule limited that is removed
// is not limited any more, of which it warns.
func (s *Server) logChanges(set *rules.Set) {
	c := changes(s.engine.Rules(), set)
	fields := []any{"changed", c.changedRules, "removed", len(c.removed), "added", len(c.added), "rules", c.String()}
	switch {
	case len(c.removed) > 0:
		s.log.Warn("reload removes rules", fields...)
	case len(c.changed)+len(c.added) > 0:
		s.log.Info("reload changes rules", fields...)
	}
}
