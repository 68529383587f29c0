package sentinelrules

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/rules"
)

// A node is a descriptor of the rule file.
type node struct {
	Key   string   `yaml:"key"`
	Value *string  `yaml:"value,omitempty"` // nil for any value
	Limit string   `yaml:"limit,omitempty"`
	Also  []string `yaml:"also,omitempty,flow"`
	ID    string   `yaml:"id,omitempty"` // the entry that names the permits of the limit
	Below []*node  `yaml:"descriptors,omitempty"`
}

// child returns the node of a key and value below, which it adds if it is new.
func (n *node) child(key string, value *string) *node {
	i := slices.IndexFunc(n.Below, func(o *node) bool {
		return o.Key == key && (o.Value == nil) == (value == nil) && (value == nil || *o.Value == *value)
	})
	if i >= 0 {
		return n.Below[i]
	}
	added := &node{Key: key, Value: value}
	n.Below = append(n.Below, added)
	return added
}

// nodeOf returns the node of a rule: that of its resource, or below it of a parameter, with a value or with any. Permits
// have nodes of their own, because a descriptor with an ID has one limit.
func (c *converter) nodeOf(r *rule, value *string) *node {
	key := "resource"
	if r.isConcurrency() {
		key = "concurrency"
	}
	at := c.top.child(key, &r.Resource)
	if r.isHotspot() {
		at = at.child(r.parameter(), value)
	}
	return at
}

// parameter returns the key of the entry with the value of the rule's parameter.
func (r *rule) parameter() string {
	return cmp.Or(r.ParamKey, fmt.Sprintf("param%d", *cmp.Or(r.ParamIndex, r.ParamIdx, new(int))))
}

// addLimit adds a limit. It returns an error if the node cannot have it beside the others.
func (n *node) addLimit(text string, hasPermits bool) error {
	sameKind := func(other string) bool { return kind(other) == kind(text) }
	switch {
	case n.Limit == "":
		n.Limit = text
		if hasPermits {
			n.ID = "request_id"
		}
	case hasPermits, len(n.Also) >= rules.MaxAlso, sameKind(n.Limit), slices.ContainsFunc(n.Also, sameKind):
		return errors.New("another rule for the same has such a limit")
	default:
		n.Also = append(n.Also, text)
	}
	return nil
}

// kind returns the period of a limit, after which a further one is named.
func kind(limit string) string {
	_, after, _ := strings.Cut(limit, "/")
	period, _, _ := strings.Cut(after, " ")
	return period
}
