package overrides

import (
	"strings"
	"time"
)

// Peek returns what [Index.Find] would, and does not record a use, because inspecting a key is
// none. It compares the key with all ranges one by one.
func (x *Index) Peek(key string) (found, before *Entry) {
	now := time.Now().UnixNano()
	if t := x.exact.Load(); t != nil {
		switch e := t.find(hashOf(key), key); {
		case e == nil:
		case !e.endedAt(now):
			return e, nil
		case e.owes():
			before = e
		}
	}
	if r := x.ranges.Load(); r != nil {
		found = r.peek(key, now)
	}
	return found, before
}

// peek returns what find would.
func (t *rangeTable) peek(key string, now int64) *Entry {
	i := strings.LastIndexByte(key, '=') + 1
	if a, ok := parseAddress(key[i:]); ok {
		for j := range t.networks {
			if t.networks[j].before == key[:i] {
				if e := t.networks[j].peek(a, now); e != nil {
					return e
				}
			}
		}
	}
	spans := t.prefixes.spans
	for i := len(spans) - 1; i >= 0; i-- { // the smaller ones are behind those around them
		if r := &spans[i].span; strings.HasPrefix(key, r.text) && !r.e.endedAt(now) {
			return r.e
		}
	}
	return nil
}

func (g *networkGroup) peek(a address, now int64) *Entry {
	spans := g.v6.spans
	if a.v4 {
		spans = g.v4.spans
	}
	for i := len(spans) - 1; i >= 0; i-- {
		if r := &spans[i].span; r.contains(a) && !r.e.endedAt(now) {
			return r.e
		}
	}
	return nil
}
