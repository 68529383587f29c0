package rules

import (
	"bytes"
	"strings"
)

// A list is the nodes beside each other, at the top of a domain or below one node,
// made ready for matching.
//
// Nodes are known by their key or, with a value, by key and value joined by an
// underscore. So are entries, which is how Envoy's service does it, and a key "a_b"
// is therefore the same as a key "a" with the value "b".
type list struct {
	nodes     []*node          // in the order of the files
	joined    map[string]*node // by their joined strings
	wildcards []*node          // those with a star, in the order of the files
}

// A node is one descriptor of a rule file.
type node struct {
	key, value string
	joined     string
	file       string
	line       int

	rule   *Rule // nil if nothing is limited here
	below  list
	parts  [][]byte // what is around the stars; nil if there are none
	shared bool     // all values that the stars match are counted as one
}

func (l *list) add(n *node) {
	if l.joined == nil {
		l.joined = map[string]*node{}
	}
	l.joined[n.joined] = n
	l.nodes = append(l.nodes, n)
	if n.parts != nil {
		l.wildcards = append(l.wildcards, n)
	}
}

// A matchKind says by what a node matches an entry. The lesser wins.
type matchKind uint8

const (
	matchExact matchKind = iota
	matchWildcard
	matchDefault
	matchNone
)

// find returns the node that an entry leads to: the exact one, or else the first
// whose stars fit, or else the one for all values of the key. It uses what is free
// of buf to write on, and returns buf as it was, though perhaps with more room.
func (l *list) find(e Entry, buf []byte) (*node, matchKind, []byte) {
	start := len(buf)
	buf = appendJoined(buf, e)
	joined := buf[start:]
	if n := l.joined[string(joined)]; n != nil {
		return n, matchExact, buf[:start]
	}
	for _, n := range l.wildcards {
		if n.fits(joined) {
			return n, matchWildcard, buf[:start]
		}
	}
	if n := l.joined[e.Key]; n != nil {
		return n, matchDefault, buf[:start]
	}
	return nil, matchNone, buf[:start]
}

func appendJoined(buf []byte, e Entry) []byte {
	buf = append(buf, e.Key...)
	buf = append(buf, '_')
	return append(buf, e.Value...)
}

// fits reports whether the node's pattern matches a joined string. Each star
// stands for any run of bytes, so what is between two stars can be taken where it is
// found first, and no step is ever taken back.
func (n *node) fits(joined []byte) bool {
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

// counted returns the value under which an entry that the node matches is
// counted: its own or, where all values share one count, the pattern.
func (n *node) counted(e Entry, kind matchKind) string {
	if !n.shared || kind != matchWildcard {
		return e.Value
	}
	if rest, ok := strings.CutPrefix(n.joined, e.Key); ok && rest != "" && rest[0] == '_' {
		return rest[1:]
	}
	return n.joined
}

// Match returns the rule for a descriptor, or nil, and appends to buf the key
// under which the rule counts it. Different values never make the same key, unless
// the rule counts them as one. Nothing is allocated while buf has room for the key
// and once more for its longest entry. A nil Domain has no rules.
func (d *Domain) Match(entries []Entry, buf []byte) (*Rule, []byte) {
	start := len(buf)
	if d == nil {
		return nil, buf
	}
	at := &d.top
	for i, e := range entries {
		var n *node
		var kind matchKind
		if n, kind, buf = at.find(e, buf); n == nil {
			break
		}
		if i > 0 {
			buf = append(buf, '|')
		}
		buf = appendEntry(buf, e.Key, n.counted(e, kind))
		if i == len(entries)-1 && n.rule != nil {
			return n.rule, buf
		}
		at = &n.below
	}
	return nil, buf[:start]
}
