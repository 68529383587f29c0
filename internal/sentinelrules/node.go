package sentinelrules

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rules"
)

// A node is a descriptor of the rule file.
type node struct {
	key      string
	value    *string // nil for any value
	limits   []string
	isPermit bool // its limit has permits, which an entry names
	below    []*node
	above    *node
}

func newNode(key string, value *string) *node { return &node{key: key, value: value} }

// child returns the node of a key and value below, which it adds if it is new.
func (n *node) child(key string, value *string) *node {
	i := slices.IndexFunc(n.below, func(o *node) bool {
		return o.key == key && (o.value == nil) == (value == nil) && (value == nil || *o.value == *value)
	})
	if i >= 0 {
		return n.below[i]
	}
	added := newNode(key, value)
	added.above = n
	n.below = append(n.below, added)
	return added
}

// sibling returns the node of the same key for one value.
func (n *node) sibling(value string) *node { return n.above.child(n.key, &value) }

// nodeOf returns the node of a rule: that of its resource, or of a parameter below. Permits have nodes of their
// own, because a descriptor with an ID has one limit.
func (c *converter) nodeOf(r *rule) *node {
	key := "resource"
	if r.isConcurrency() {
		key = "concurrency"
	}
	at := c.top.child(key, &r.Resource)
	if r.isHotspot() {
		at = at.child(r.parameter(), nil)
	}
	at.isPermit = r.isConcurrency()
	return at
}

// parameter returns the key of the entry with the value of the rule's parameter.
func (r *rule) parameter() string {
	if r.ParamKey != "" {
		return r.ParamKey
	}
	index := 0
	for _, i := range []*int{r.ParamIdx, r.ParamIndex} {
		if i != nil {
			index = *i
		}
	}
	return fmt.Sprintf("param%d", index)
}

// setLimit adds a limit. It returns an error if the node cannot have it, or not beside the others.
func (n *node) setLimit(text string) error {
	limit, err := penstock.ParseLimit(text)
	switch sameKind := func(other string) bool { return kind(other) == kind(text) }; {
	case err != nil:
		return err
	case len(n.limits) > 0 && limit.HasPermits(), len(n.limits) > rules.MaxAlso, slices.ContainsFunc(n.limits, sameKind):
		return errors.New("another rule for the same has such a limit")
	}
	n.limits = append(n.limits, text)
	return nil
}

// kind returns the period of a limit, after which a further one is named.
func kind(limit string) string {
	_, after, _ := strings.Cut(limit, "/")
	period, _, _ := strings.Cut(after, " ")
	return period
}

// append appends the nodes below as a list of descriptors.
func (n *node) append(b []byte, indent string) []byte {
	b = fmt.Appendf(b, "%sdescriptors:\n", indent)
	for _, o := range n.below {
		if len(o.limits)+len(o.below) == 0 {
			continue
		}
		b = fmt.Appendf(b, "%s  - key: %s\n", indent, quote(o.key))
		inside := indent + "    "
		if o.value != nil {
			b = fmt.Appendf(b, "%svalue: %s\n", inside, quote(*o.value))
		}
		b = o.appendLimits(b, inside)
		if len(o.below) > 0 {
			b = o.append(b, inside)
		}
	}
	return b
}

func (n *node) appendLimits(b []byte, indent string) []byte {
	for i, limit := range n.limits {
		switch i {
		case 0:
			b = fmt.Appendf(b, "%slimit: %s\n", indent, quote(limit))
		case 1:
			b = fmt.Appendf(b, "%salso: [%s", indent, quote(limit))
		default:
			b = fmt.Appendf(b, ", %s", quote(limit))
		}
	}
	if len(n.limits) > 1 {
		b = append(b, "]\n"...)
	}
	if n.isPermit && len(n.limits) > 0 {
		b = fmt.Appendf(b, "%sid: request_id\n", indent)
	}
	return b
}

// quote returns a text in quotes, as JSON and YAML have them.
func quote(text string) string {
	quoted, err := json.Marshal(text)
	if err != nil {
		return `""` // cannot happen: every string can be quoted
	}
	return string(quoted)
}
