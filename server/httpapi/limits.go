package httpapi

import (
	"hash/maphash"
	"strings"
	"sync/atomic"

	"github.com/penstock-io/penstock"
)

// A limitCache remembers what the texts of limits mean: a program that asks
// writes the same few again and again. It holds at most one text a slot, so that
// texts made up by somebody hostile cost others no more than reading theirs anew.
type limitCache struct {
	store penstock.Store
	seed  maphash.Seed
	slots [1024]atomic.Pointer[knownLimit]
}

type knownLimit struct {
	text    string
	limiter *penstock.Limiter
}

func newLimitCache(store penstock.Store) *limitCache {
	return &limitCache{store: store, seed: maphash.MakeSeed()}
}

// request returns a request for one unit, of a key yet to be named, under the
// limit that the text says.
func (c *limitCache) request(text string) (penstock.Request, error) {
	slot := &c.slots[maphash.String(c.seed, text)%uint64(len(c.slots))]
	known := slot.Load()
	if known == nil || known.text != text {
		limit, err := penstock.ParseLimit(text)
		if err != nil {
			return penstock.Request{}, err
		}
		lim, err := penstock.New(c.store, limit)
		if err != nil {
			return penstock.Request{}, err
		}
		known = &knownLimit{strings.Clone(text), lim}
		slot.Store(known)
	}
	return known.limiter.Request(""), nil
}
