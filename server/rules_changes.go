package server

import (
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/rules"
)

// The most changes that one line of the log names, and the most bytes of a name in it.
const (
	maxNamedChanges = 10
	maxNamedBytes   = 100
)

// ruleChanges are how a set of rules differs from the one before it.
type ruleChanges struct {
	changed, removed, added []string // such as "shop/user 60/1m -> 6/1m"
}

// changes compares the limits of rules by their names. Nothing has changed from no set at all.
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
		switch {
		case was == nil:
			found.added = append(found.added, nameInLog(r)+" added: "+limitInLog(r))
		case limitInLog(was) != limitInLog(r):
			found.changed = append(found.changed, nameInLog(r)+" "+limitInLog(was)+" -> "+limitInLog(r))
		}
	}
	for _, r := range old.Rules() {
		if before[r.Name] != nil {
			found.removed = append(found.removed, nameInLog(r)+" removed: "+limitInLog(r))
		}
	}
	return found
}

func nameInLog(r *rules.Rule) string {
	if len(r.Name) <= maxNamedBytes {
		return r.Name
	}
	return strings.ToValidUTF8(r.Name[:maxNamedBytes], "") + "…"
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
	fields := []any{"changed", len(c.changed), "removed", len(c.removed), "added", len(c.added), "rules", c.String()}
	switch {
	case len(c.removed) > 0:
		s.log.Warn("reload removes rules", fields...)
	case len(c.changed)+len(c.added) > 0:
		s.log.Info("reload changes rules", fields...)
	}
}
