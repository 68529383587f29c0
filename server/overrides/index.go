package overrides

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gaissmai/bart"
)

// An Index finds the overrides of one rule. Looking up is safe at any time; the [Set]
// makes one change after the other.
type Index struct {
	keys     table[Entry]
	networks table[bart.Table[*Entry]] // by what precedes the address; each is immutable
	prefixes table[Entry]

	lengths atomic.Pointer[[]*prefixLength] // of prefixes, longest first; each is immutable
}

// A prefixLength is a length of prefixes, and with which bytes they end: often with a separator
// that most keys have elsewhere, which spares them a search.
type prefixLength struct {
	length   int
	prefixes int        // that have it
	last     [256]int32 // how many of them end with a byte
}

// Empty reports whether the rule has no overrides. It is so cheap that a decision can ask
// every time.
func (x *Index) Empty() bool { return x.keys.empty() && x.networks.empty() && x.prefixes.empty() }

// Find returns the override of a key, or nil: that of the key itself or else that of the
// smallest network or else that of the longest prefix. If an override of the key has ended
// and its units were not carried over yet, it is returned as well. Find does not keep the
// key.
func (x *Index) Find(key string) (found, before *Entry) {
	if found, before = x.Peek(key); found != nil {
		found.touch(time.Now().UnixNano())
	}
	return found, before
}

// Peek returns what [Index.Find] would, and does not record a use, because inspecting a key is
// none.
func (x *Index) Peek(key string) (found, before *Entry) {
	if e := x.keys.find(key); e != nil {
		switch {
		case !e.hasEnded():
			return e, nil
		case e.owes():
			before = e
		}
	}
	if found = x.findNetwork(key); found == nil {
		found = x.findPrefix(key)
	}
	return found, before
}

// findNetwork returns the override of the smallest network that contains the last value of a key,
// and skips those that have ended.
func (x *Index) findNetwork(key string) *Entry {
	if x.networks.empty() {
		return nil
	}
	value := strings.LastIndexByte(key, '=') + 1
	networks := x.networks.find(key[:value])
	if networks == nil {
		return nil
	}
	within, ok := parseNetwork(key[value:])
	ok = ok && networks.Contains(within.Addr()) // most are in none, and this says so sooner
	for ok {
		e, found := networks.LookupPrefix(within)
		if !found || !e.hasEnded() {
			return e
		}
		within = netip.PrefixFrom(within.Addr(), e.pattern.network.Bits()-1)
		ok = within.IsValid()
	}
	return nil
}

// parseNetwork parses the value of a key: an address, or a network as proxies name an address that
// they have masked.
func parseNetwork(value string) (network netip.Prefix, ok bool) {
	value, length, masked := strings.Cut(value, "/")
	if strings.Count(value, ".") != 3 && !strings.Contains(value, ":") {
		return network, false // an error of package netip would cost an allocation
	}
	address, err := netip.ParseAddr(value)
	if err != nil || address.Zone() != "" {
		return network, false
	}
	address = address.Unmap()
	bits := address.BitLen()
	if masked {
		n, err := strconv.ParseUint(length, 10, 8)
		if err != nil {
			return network, false
		}
		bits = min(bits, int(n))
	}
	return netip.PrefixFrom(address, bits), true
}

// findPrefix returns the override of the longest prefix of a key, and skips those that have ended.
func (x *Index) findPrefix(key string) *Entry {
	lengths := x.lengths.Load()
	if lengths == nil {
		return nil
	}
	for _, l := range *lengths {
		if l.length > len(key) || l.last[lastByte(key[:l.length])] == 0 {
			continue
		}
		if e := x.prefixes.find(key[:l.length]); e != nil && !e.hasEnded() {
			return e
		}
	}
	return nil
}

// set sets the entry of a pattern, or removes it if it is nil.
func (x *Index) set(p Pattern, e *Entry) {
	switch {
	case p.network.IsValid():
		x.setNetwork(p, e)
	case p.prefix:
		if added := x.prefixes.set(p.text, e); added != 0 {
			x.countLength(p.text, added)
		}
	default:
		x.keys.set(p.text, e)
	}
}

func (x *Index) setNetwork(p Pattern, e *Entry) {
	networks := cmp.Or(x.networks.find(p.text), &bart.Table[*Entry]{})
	if e != nil {
		networks = networks.InsertPersist(p.network, e)
	} else {
		networks = networks.DeletePersist(p.network)
	}
	if networks.Size() == 0 {
		networks = nil
	}
	x.networks.set(p.text, networks)
}

// countLength keeps the list of lengths when a prefix was added or, with -1, removed.
func (x *Index) countLength(prefix string, added int) {
	var lengths []*prefixLength
	if old := x.lengths.Load(); old != nil {
		lengths = slices.Clone(*old)
	}
	at, known := slices.BinarySearchFunc(lengths, len(prefix), func(l *prefixLength, n int) int { return cmp.Compare(n, l.length) })
	if !known {
		lengths = slices.Insert(lengths, at, &prefixLength{length: len(prefix)})
	}
	l := *lengths[at]
	l.prefixes += added
	l.last[lastByte(prefix)] += int32(added)
	if lengths[at] = &l; l.prefixes == 0 {
		lengths = slices.Delete(lengths, at, at+1)
	}
	x.lengths.Store(&lengths)
}

// lastByte returns the last byte of a text, or 0 if it is empty, as the prefix of all keys is.
func lastByte(text string) byte {
	if text == "" {
		return 0
	}
	return text[len(text)-1]
}
