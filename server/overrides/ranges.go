package overrides

import (
	"cmp"
	"encoding/binary"
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
	prefixes prefixList
}

// A networkGroup holds the networks of keys that have the same text before the address.
type networkGroup struct {
	before string
	v4, v6 networkList
}

// A networkList holds the networks of one family.
type networkList struct {
	spans  nested[networkRange]
	filter rangeFilter[addressMask]
}

// A prefixList holds prefixes.
type prefixList struct {
	spans  nested[prefixRange]
	filter rangeFilter[int]

	// What most keys are told from all prefixes by, before the filter: the beginning that
	// the prefixes have in common, and the bytes that follow it in one of them.
	common string
	next   [256]bool
	whole  bool // the common beginning is a prefix itself
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
			prefixes = append(prefixes, prefixRange{e.pattern.text, e})
		} else {
			networks[e.pattern.text] = append(networks[e.pattern.text], newNetworkRange(e))
		}
	}
	for before, list := range networks {
		v4, v6 := splitFamilies(list)
		t.networks = append(t.networks, networkGroup{before, newNetworkList(v4), newNetworkList(v6)})
	}
	slices.SortFunc(t.networks, func(a, b networkGroup) int { return strings.Compare(a.before, b.before) })
	t.prefixes = newPrefixList(prefixes)
	return t
}

// mayFind reports whether find may find something.
func (t *rangeTable) mayFind(key string) bool {
	l, a := t.networksOf(key)
	return l != nil && l.mayFind(a) || t.prefixes.mayFind(key)
}

// find returns the override of the smallest network that contains the key or else that of
// the longest prefix, and skips those that have ended.
func (t *rangeTable) find(key string) *Entry {
	if l, a := t.networksOf(key); l != nil {
		if e := l.find(a); e != nil {
			return e
		}
	}
	return t.prefixes.find(key)
}

// networksOf returns the networks that may contain a key, and its address; or nil.
func (t *rangeTable) networksOf(key string) (*networkList, address) {
	g := t.group(key)
	if g == nil {
		return nil, address{}
	}
	a, ok := parseAddress(key[len(g.before):])
	switch {
	case !ok:
		return nil, a
	case a.v4:
		return &g.v4, a
	}
	return &g.v6, a
}

// group returns the networks of keys with the same text before the address as this key, or
// nil. No address contains the equals sign that ends that text.
func (t *rangeTable) group(key string) *networkGroup {
	j := 0
	if len(t.networks) > 1 {
		before := key[:strings.LastIndexByte(key, '=')+1]
		j, _ = slices.BinarySearchFunc(t.networks, before, func(g networkGroup, before string) int {
			return strings.Compare(g.before, before)
		})
	}
	if j == len(t.networks) || !strings.HasPrefix(key, t.networks[j].before) {
		return nil
	}
	return &t.networks[j]
}

// An address is an address, or a network as proxies name one that they have masked.
type address struct {
	high, low uint64
	bits      int
	v4        bool
}

func newAddress(a netip.Addr, bits int) address {
	if a.Is4() {
		four := a.As4()
		return address{high: uint64(binary.BigEndian.Uint32(four[:])) << 32, bits: bits, v4: true}
	}
	all := a.As16()
	return address{high: binary.BigEndian.Uint64(all[:8]), low: binary.BigEndian.Uint64(all[8:]), bits: bits}
}

// parseAddress parses the value of a key. It rejects most values that are no address by
// their characters: an error of package netip would cost an allocation.
func parseAddress(value string) (a address, ok bool) {
	if a, ok := parseIPv4(value); ok {
		return a, true
	}
	value, length, masked := strings.Cut(value, "/")
	if len(value) < len("::") || len(value) > maxAddress || !hasAddressBytes(value) {
		return a, false
	}
	addr, err := netip.ParseAddr(value)
	if err != nil {
		return a, false
	}
	addr = addr.Unmap()
	bits := addr.BitLen()
	if masked {
		n, err := strconv.ParseUint(length, 10, 8)
		if err != nil {
			return a, false
		}
		bits = min(bits, int(n))
	}
	return newAddress(addr, bits), true
}

// parseIPv4 parses the most frequent form, faster than package netip.
func parseIPv4(s string) (a address, ok bool) {
	const parts, most = 4, 255
	word, part, digits, dots := uint64(0), uint64(0), 0, 0
	for i := range len(s) {
		switch c := s[i]; {
		case '0' <= c && c <= '9' && digits < 3:
			if digits > 0 && part == 0 {
				return a, false // a leading zero could mean octal
			}
			part, digits = part*10+uint64(c-'0'), digits+1
		case c == '.' && digits > 0 && part <= most && dots < parts-1:
			word, part, digits, dots = word<<8|part, 0, 0, dots+1
		default:
			return a, false
		}
	}
	if dots != parts-1 || digits == 0 || part > most {
		return a, false
	}
	return address{high: (word<<8 | part) << 32, bits: 32, v4: true}, true
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
type span[S any] interface {
	compare(S) int
	includes(S) bool
}

// Nested spans are sorted, and each knows the smallest one around it. The one that contains
// a key is then the last that starts at or before the key, or one around that.
type nested[S any] []nestedSpan[S]

type nestedSpan[S any] struct {
	span   S
	around int // index of the smallest span that includes this one, or -1
}

func newNested[S span[S]](spans []S) nested[S] {
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

// use returns the override if it has not ended, and records the use.
func (e *Entry) use() *Entry {
	now := time.Now().UnixNano()
	if e.endedAt(now) {
		return nil
	}
	e.touch(now)
	return e
}

// A rangeFilter knows the lengths of all ranges, and answers for most keys that no range
// contains: a key of which no beginning of these lengths is in it. A search takes several
// times as long.
type rangeFilter[L comparable] struct {
	lengths []L
	words   []uint64
	open    bool // too many lengths: any key may be in a range
}

// maxRangeLengths is how many lengths a filter tries.
const maxRangeLengths = 16

// newRangeFilter returns a filter for n ranges, with at least eight bits for each.
func newRangeFilter[L comparable](n int) rangeFilter[L] {
	size := 1
	for size*8 < n {
		size *= 2
	}
	return rangeFilter[L]{words: make([]uint64, size)}
}

func (f *rangeFilter[L]) add(length L, hash uint64) {
	if f.open {
		return
	}
	if !slices.Contains(f.lengths, length) {
		f.lengths = append(f.lengths, length)
	}
	if f.open = len(f.lengths) > maxRangeLengths; f.open {
		f.lengths, f.words = nil, nil
		return
	}
	word, bits := f.place(hash)
	*word |= bits
}

func (f *rangeFilter[L]) has(hash uint64) bool {
	word, bits := f.place(hash)
	return *word&bits == bits
}

// place returns the word and the bits of a hash.
func (f *rangeFilter[L]) place(hash uint64) (word *uint64, bits uint64) {
	return &f.words[hash>>40&uint64(len(f.words)-1)], 1<<(hash>>34&63) | 1<<(hash>>28&63) | 1<<(hash>>22&63)
}

// A networkRange is the span of a network.
type networkRange struct {
	first address
	mask  addressMask
	e     *Entry
}

func newNetworkRange(e *Entry) networkRange {
	n := e.pattern.network
	return networkRange{first: newAddress(n.Addr(), n.Bits()), mask: newAddressMask(n.Bits()), e: e}
}

// An addressMask selects the bits of an address that name a network of some length.
type addressMask struct {
	high, low uint64
	bits      int
}

func newAddressMask(bits int) addressMask {
	return addressMask{
		high: ^uint64(0) << (64 - min(bits, 64)), // a shift by 64 is 0
		low:  ^uint64(0) << (64 - max(bits-64, 0)),
		bits: bits,
	}
}

// hash returns a hash of the network of an address.
func (m *addressMask) hash(a address) uint64 {
	const odd = 0x9e3779b97f4a7c15
	h := (a.high&m.high ^ uint64(m.bits)) * odd
	h = (h ^ h>>32 ^ a.low&m.low) * odd
	return h ^ h>>32
}

func splitFamilies(all []networkRange) (v4, v6 []networkRange) {
	for _, r := range all {
		if r.first.v4 {
			v4 = append(v4, r)
		} else {
			v6 = append(v6, r)
		}
	}
	return v4, v6
}

func (r networkRange) compare(o networkRange) int {
	return cmp.Or(cmp.Compare(r.first.high, o.first.high), cmp.Compare(r.first.low, o.first.low), cmp.Compare(r.first.bits, o.first.bits))
}

func (r networkRange) includes(o networkRange) bool { return r.contains(o.first) }

func (r *networkRange) contains(a address) bool {
	return r.mask.bits <= a.bits && a.high&r.mask.high == r.first.high && a.low&r.mask.low == r.first.low
}

func newNetworkList(all []networkRange) networkList {
	l := networkList{spans: newNested(all), filter: newRangeFilter[addressMask](len(all))}
	for i := range all {
		l.filter.add(all[i].mask, all[i].mask.hash(all[i].first))
	}
	return l
}

// mayFind reports whether a network of the list may contain an address.
func (l *networkList) mayFind(a address) bool {
	for i := range l.filter.lengths {
		if m := &l.filter.lengths[i]; m.bits <= a.bits && l.filter.has(m.hash(a)) {
			return true
		}
	}
	return l.filter.open
}

// find returns the override of the smallest network with an address that has not ended.
func (l *networkList) find(a address) *Entry {
	n := l.spans
	low, high := 0, len(n) // those before low start at or before the address
	for low < high {
		middle := int(uint(low+high) / 2)
		if first := &n[middle].span.first; first.high > a.high || first.high == a.high && first.low > a.low {
			high = middle
		} else {
			low = middle + 1
		}
	}
	for i := low - 1; i >= 0; i = n[i].around {
		if r := &n[i].span; r.contains(a) {
			if e := r.e.use(); e != nil {
				return e
			}
		}
	}
	return nil
}

// A prefixRange is the span of the keys with a prefix.
type prefixRange struct {
	text string
	e    *Entry
}

func (r prefixRange) compare(o prefixRange) int { return strings.Compare(r.text, o.text) }

func (r prefixRange) includes(o prefixRange) bool { return strings.HasPrefix(o.text, r.text) }

func newPrefixList(all []prefixRange) prefixList {
	l := prefixList{spans: newNested(all), filter: newRangeFilter[int](len(all))}
	if len(all) > 0 { // sorted now
		l.common = commonPrefix(all[0].text, all[len(all)-1].text)
	}
	for i := range all {
		text := all[i].text
		l.filter.add(len(text), hashOf(text))
		if rest := text[len(l.common):]; rest == "" {
			l.whole = true
		} else {
			l.next[rest[0]] = true
		}
	}
	return l
}

// commonPrefix returns the longest text that both begin with.
func commonPrefix(a, b string) string {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return a[:n]
}

// begins reports whether a key begins as a prefix of the list does.
func (l *prefixList) begins(key string) bool {
	rest, ok := strings.CutPrefix(key, l.common)
	return ok && (l.whole || rest != "" && l.next[rest[0]])
}

// mayFind reports whether a key may have a prefix of the list.
func (l *prefixList) mayFind(key string) bool {
	if !l.begins(key) {
		return false
	}
	for _, n := range l.filter.lengths {
		if n <= len(key) && l.filter.has(hashOf(key[:n])) {
			return true
		}
	}
	return l.filter.open
}

// find returns the override of the longest prefix of a key that has not ended.
func (l *prefixList) find(key string) *Entry {
	n := l.spans
	low, high := 0, len(n) // those before low are at or before the key
	for low < high {
		if middle := int(uint(low+high) / 2); n[middle].span.text > key {
			high = middle
		} else {
			low = middle + 1
		}
	}
	for i := low - 1; i >= 0; i = n[i].around {
		if r := &n[i].span; strings.HasPrefix(key, r.text) {
			if e := r.e.use(); e != nil {
				return e
			}
		}
	}
	return nil
}
