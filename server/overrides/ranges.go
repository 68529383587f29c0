package overrides

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A rangeTable finds the networks and prefixes that contain a key. It is immutable: ranges
// change seldom, and the table is then built anew.
type rangeTable struct {
	networks []networkGroup
	prefixes nested[prefixRange]
}

// A networkGroup holds the networks of keys that have the same text before the address.
type networkGroup struct {
	before string
	nested nested[networkRange]
}

// newRangeTable returns a table of entries whose patterns are ranges, or nil if there are
// none.
func newRangeTable(all []*Entry) *rangeTable {
	if len(all) == 0 {
		return nil
	}
	t := &rangeTable{}
	networks := map[string][]networkRange{}
	var prefixes []prefixRange
	for _, e := range all {
		if e.pattern.prefix {
			prefixes = append(prefixes, prefixRange{e})
		} else {
			networks[e.pattern.text] = append(networks[e.pattern.text], networkRange{e.pattern.network, e})
		}
	}
	for before, list := range networks {
		t.networks = append(t.networks, networkGroup{before, newNested[address](list)})
	}
	slices.SortFunc(t.networks, func(a, b networkGroup) int { return strings.Compare(a.before, b.before) })
	t.prefixes = newNested[string](prefixes)
	return t
}

// find returns the override of the smallest network that contains the key or else that of
// the longest prefix, and skips those that have ended.
func (t *rangeTable) find(key string) *Entry {
	if len(t.networks) > 0 {
		if e := t.findNetwork(key); e != nil {
			return e
		}
	}
	return findNested(t.prefixes, key)
}

func (t *rangeTable) findNetwork(key string) *Entry {
	i := strings.LastIndexByte(key, '=') + 1
	j, found := slices.BinarySearchFunc(t.networks, key[:i], func(g networkGroup, before string) int {
		return strings.Compare(g.before, before)
	})
	if !found {
		return nil
	}
	q, ok := parseAddress(key[i:])
	if !ok {
		return nil
	}
	return findNested(t.networks[j].nested, q)
}

// An address is an address, or a network as proxies name one that they have masked.
type address struct {
	addr netip.Addr
	bits int
}

// parseAddress parses the value of a key. It rejects most values that are no address by
// their characters: an error of package netip would cost an allocation.
func parseAddress(value string) (a address, ok bool) {
	value, length, masked := strings.Cut(value, "/")
	if len(value) < len("::") || len(value) > maxAddress || !hasAddressBytes(value) {
		return a, false
	}
	addr, err := netip.ParseAddr(value)
	if err != nil {
		return a, false
	}
	a.addr = addr.Unmap()
	a.bits = a.addr.BitLen()
	if masked {
		n, err := strconv.ParseUint(length, 10, 8)
		if err != nil {
			return a, false
		}
		a.bits = min(a.bits, int(n))
	}
	return a, true
}

const maxAddress = len("ffff:ffff:ffff:ffff:ffff:ffff:255.255.255.255")

func hasAddressBytes(s string) bool {
	separators := 0
	for i := range len(s) {
		switch c := s[i]; {
		case c == '.' || c == ':':
			separators++
		case c < '0' || c > '9' && c|0x20 < 'a' || c|0x20 > 'f':
			return false
		}
	}
	return separators > 1
}

// A span is a set of keys that contains another span, is contained in it, or has nothing in
// common with it. Spans are ordered by their first key, larger ones first.
type span[S, Q any] interface {
	compare(S) int
	includes(S) bool
	startsAfter(Q) bool
	contains(Q) bool
	entry() *Entry
}

// Nested spans are sorted, and each knows the smallest one around it. The one that contains
// a key is then the last that starts at or before the key, or one around that.
type nested[S any] []nestedSpan[S]

type nestedSpan[S any] struct {
	span   S
	around int // index of the smallest span that includes this one, or -1
}

func newNested[Q any, S span[S, Q]](spans []S) nested[S] {
	slices.SortFunc(spans, func(a, b S) int { return a.compare(b) })
	n := make(nested[S], len(spans))
	around := -1
	for i, s := range spans {
		for around >= 0 && !n[around].span.includes(s) {
			around = n[around].around
		}
		n[i] = nestedSpan[S]{s, around}
		around = i
	}
	return n
}

func findNested[Q any, S span[S, Q]](n nested[S], q Q) *Entry {
	low, high := 0, len(n) // the spans before low start at or before q
	for low < high {
		if middle := int(uint(low+high) / 2); n[middle].span.startsAfter(q) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	for i := low - 1; i >= 0; i = n[i].around {
		if s := n[i].span; s.contains(q) {
			now := time.Now().UnixNano()
			if e := s.entry(); !e.endedAt(now) {
				e.touch(now)
				return e
			}
		}
	}
	return nil
}

// A networkRange is the span of a network.
type networkRange struct {
	network netip.Prefix
	e       *Entry
}

func (r networkRange) compare(o networkRange) int {
	return cmp.Or(r.network.Addr().Compare(o.network.Addr()), cmp.Compare(r.network.Bits(), o.network.Bits()))
}

func (r networkRange) includes(o networkRange) bool {
	return r.network.Bits() <= o.network.Bits() && r.network.Contains(o.network.Addr())
}

func (r networkRange) startsAfter(a address) bool { return r.network.Addr().Compare(a.addr) > 0 }

func (r networkRange) contains(a address) bool {
	return r.network.Bits() <= a.bits && r.network.Contains(a.addr)
}

func (r networkRange) entry() *Entry { return r.e }

// A prefixRange is the span of the keys with a prefix.
type prefixRange struct{ e *Entry }

func (r prefixRange) compare(o prefixRange) int { return strings.Compare(r.text(), o.text()) }

func (r prefixRange) includes(o prefixRange) bool { return strings.HasPrefix(o.text(), r.text()) }

func (r prefixRange) startsAfter(key string) bool { return r.text() > key }

func (r prefixRange) contains(key string) bool { return strings.HasPrefix(key, r.text()) }

func (r prefixRange) entry() *Entry { return r.e }

func (r prefixRange) text() string { return r.e.pattern.text }
