package rules

import (
	"bytes"
	"strings"
)

// A nodeList holds sibling nodes: those at the top of a domain, or the children of a
// node.
//
// A node is identified by its key or, if it has a value, by key and value joined by
// an underscore. Entries are compared in the same form. This is how Envoy's service
// does it; so a key "a_b" is the same as a key "a" with the value "b".
type nodeList struct {
	nodes     []*node          // in file order
	joined    map[string]*node // by joined key and value
	wildcards []*node          // those with a star, in file order

	// What spares most entries a lookup in the map, which costs more than all the rest.
	marks [256 / 64]uint64 // bit n is set if a node's joined text has the mark n
	heads [maxFew]uint8    // while there are few: by mark, 1 + the index of the last node; others follow by node.sameHead
}

// maxFew is how many nodes are searched by their marks rather than in the map.
const maxFew = 32

// A node is one descriptor of a rule file.
type node struct {
	nodeText
	key, value string
	file       string
	line       int

	rule *Rule // nil if the node has no limit

	sharesLimit bool  // the rule has the limit and the counts of the node above
	sameHead    *node // see nodeList.heads
	children    nodeList
	keyText     string // in keys: the key, an equals sign, and the value if the node has one
}

// A nodeText is what entries are compared with.
type nodeText struct {
	joined        string
	parts         [][]byte // the text around the stars; nil if there are none
	shared        bool     // all values that match the pattern have one count
	valueToMetric bool
}

func (l *nodeList) add(n *node) {
	if l.joined == nil {
		l.joined = map[string]*node{}
	}
	l.joined[n.joined] = n
	m := markOf(n.joined)
	l.marks[m/64] |= 1 << (m % 64)
	if len(l.nodes) < maxFew {
		n.sameHead = l.withMark(m)
		l.heads[m%maxFew] = uint8(len(l.nodes) + 1)
	}
	l.nodes = append(l.nodes, n)
	if n.parts != nil {
		l.wildcards = append(l.wildcards, n)
	}
}

// markOf returns the mark of a joined text: a small hash that can be computed from a key and
// a value without joining them.
func markOf(joined string) uint8 {
	if joined == "" {
		return 0
	}
	return mark(joined[0], joined[len(joined)-1], len(joined))
}

// markOfJoined returns the mark of an entry's key and value joined.
func markOfJoined(e Entry) uint8 {
	first, last := byte('_'), byte('_')
	if e.Key != "" {
		first = e.Key[0]
	}
	if e.Value != "" {
		last = e.Value[len(e.Value)-1]
	}
	return mark(first, last, len(e.Key)+1+len(e.Value))
}

func mark(first, last byte, length int) uint8 {
	return first*167 + last*59 + uint8(length)*13
}

// A matchKind is how a node matches an entry. The smallest wins.
type matchKind uint8

const (
	matchExact matchKind = iota
	matchWildcard
	matchDefault
	matchNone
)

// find returns the node that an entry selects: the one that matches exactly, or else
// the first whose pattern matches, or else the one for all values of the key. It uses
// the spare capacity of buf as scratch space, and returns buf with its old length and
// possibly a larger capacity.
func (l *nodeList) find(e Entry, buf []byte) (*node, matchKind, []byte) {
	if l.isFew() {
		n, kind := l.findFew(e)
		return n, kind, buf
	}
	if l.wildcards != nil || l.mayHave(markOfJoined(e)) {
		start := len(buf)
		buf = appendJoined(buf, e)
		n, kind := l.findJoined(buf[start:])
		if buf = buf[:start]; n != nil {
			return n, kind, buf
		}
	}
	if n := l.findKey(e.Key); n != nil {
		return n, matchDefault, buf
	}
	return nil, matchNone, buf
}

// isFew reports whether findFew can find nodes.
func (l *nodeList) isFew() bool { return l.wildcards == nil && len(l.nodes) <= maxFew }

// findFew is find for a few nodes without stars.
func (l *nodeList) findFew(e Entry) (*node, matchKind) {
	if m := markOfJoined(e); l.mayHave(m) {
		for n := l.withMark(m); n != nil; n = n.sameHead {
			if n.isJoined(e) {
				return n, matchExact
			}
		}
	}
	if n := l.findKey(e.Key); n != nil {
		return n, matchDefault
	}
	return nil, matchNone
}

// withMark returns the last of a few nodes with a mark, or with another of the same head.
func (l *nodeList) withMark(m uint8) *node {
	if i := int(l.heads[m%maxFew]) - 1; i >= 0 {
		return l.nodes[i]
	}
	return nil
}

// isJoined reports whether the node's joined text is that of an entry.
func (n *nodeText) isJoined(e Entry) bool {
	rest, ok := strings.CutPrefix(n.joined, e.Key)
	return ok && len(rest) == 1+len(e.Value) && rest[0] == '_' && rest[1:] == e.Value
}

// mayHave reports whether a node's joined text has that mark.
func (l *nodeList) mayHave(m uint8) bool { return l.marks[m/64]&(1<<(m%64)) != 0 }

// findKey returns the node for all values of a key, or nil.
func (l *nodeList) findKey(key string) *node {
	if len(l.nodes) > maxFew {
		return l.joined[key]
	}
	for n := l.withMark(markOf(key)); n != nil; n = n.sameHead {
		if n.joined == key {
			return n
		}
	}
	return nil
}

// findJoined returns the node that matches a joined key and value exactly, or else the first
// whose pattern matches.
func (l *nodeList) findJoined(joined []byte) (*node, matchKind) {
	if n := l.joined[string(joined)]; n != nil {
		return n, matchExact
	}
	for _, n := range l.wildcards {
		if n.matchesPattern(joined) {
			return n, matchWildcard
		}
	}
	return nil, matchNone
}

func appendJoined(buf []byte, e Entry) []byte {
	buf = append(buf, e.Key...)
	buf = append(buf, '_')
	return append(buf, e.Value...)
}

// matchesPattern reports whether the node's pattern matches a joined key and value.
// A star matches any run of bytes, so each part between two stars can be matched at
// its first occurrence: no backtracking is needed, and the time is linear.
func (n *node) matchesPattern(joined []byte) bool {
	first, last := n.parts[0], n.parts[len(n.parts)-1]
	if len(joined) < len(first)+len(last) || !bytes.HasPrefix(joined, first) || !bytes.HasSuffix(joined, last) {
		return false
	}
	rest := joined[len(first) : len(joined)-len(last)]
	for _, part := range n.parts[1 : len(n.parts)-1] {
		i := bytes.Index(rest, part)
		if i < 0 {
			return false
		}
		rest = rest[i+len(part):]
	}
	return true
}

// countedEntry returns what a matching entry is in a key: itself or, if all values of the pattern
// have one count, the node. A key that the node's text does not begin with is counted by itself.
func (n *node) countedEntry(e Entry, kind matchKind) Entry {
	if !n.shared || kind != matchWildcard {
		return e
	}
	if pattern := n.pattern(e.Key); pattern == n.joined {
		return Entry{Key: e.Key, Value: pattern}
	}
	return Entry{Key: n.key, Value: n.value}
}

// pattern returns the pattern of a node for the values of a key.
func (n *nodeText) pattern(key string) string {
	if rest, ok := strings.CutPrefix(n.joined, key); ok && rest != "" && rest[0] == '_' {
		return rest[1:]
	}
	return n.joined
}

// Match returns the rule that applies to a descriptor, or nil, and appends to buf the
// key to count it under. Different values never have the same key, unless the rule
// counts all values of a pattern together, or shares the counts of the rule above. Match does not allocate if buf has room for
// the key and once more for its longest entry. A nil Domain has no rules.
func (d *Domain) Match(entries []Entry, buf []byte) (*Rule, []byte) {
	start := len(buf)
	if d == nil {
		return nil, buf
	}
	at, end := &d.top, start
	var n *node
	for _, e := range entries {
		if d.idKeys != nil && d.isID(e.Key) {
			continue
		}
		var kind matchKind
		if at.isFew() { // find would do so, too, for the price of another call
			n, kind = at.findFew(e)
		} else {
			n, kind, buf = at.find(e, buf)
		}
		if n == nil {
			return nil, buf[:start]
		}
		if len(buf) > start {
			buf = append(buf, '|')
		}
		switch {
		case kind == matchDefault && n.value == "":
			buf = appendKeyPart(append(buf, n.keyText...), e.Value)
		case kind == matchExact && len(e.Key) == len(n.key): // so the values are equal, too
			buf = append(buf, n.keyText...)
		default:
			e = n.countedEntry(e, kind)
			buf = appendEntry(buf, e.Key, e.Value)
		}
		if !n.sharesLimit {
			end = len(buf)
		}
		at = &n.children
	}
	if n == nil || n.rule == nil {
		return nil, buf[:start]
	}
	return n.rule, buf[:end]
}
