package rules

import (
	"maps"
	"slices"
	"strings"
)

// KeyList returns the keys of a descriptor, with commas between them: a description without
// the values, for operators.
func KeyList(entries []Entry) string {
	keys := make([]string, len(entries))
	for i := range entries {
		keys[i] = entries[i].Key
	}
	return strings.Join(keys, ",")
}

// KeyLists returns the key lists that the domain has rules for, sorted. A descriptor with
// one of them can still be without a rule, if the rules are for other values.
func (d *Domain) KeyLists() []string {
	found := map[string]bool{}
	d.top.addKeyLists("", found)
	return slices.Sorted(maps.Keys(found))
}

func (l *nodeList) addKeyLists(prefix string, found map[string]bool) {
	for _, n := range l.nodes {
		list := prefix + n.key
		if n.rule != nil {
			found[list] = true
		}
		n.children.addKeyLists(list+",", found)
	}
}
