package engine

import (
	"hash/maphash"
	"strings"
	"sync/atomic"

	"github.com/penstock-io/penstock"
)

// A limitCache caches parsed limits by their text, because clients keep sending the same
// few. It is direct-mapped with a seeded hash: a flood of different texts uses bounded
// memory, and at worst the limits of other clients are parsed again.
type limitCache struct {
	store penstock.Store
	seed  maphash.Seed
	slots [1024]atomic.Pointer[cachedLimit]
}

type cachedLimit struct {
	text    string
	limiter *penstock.Limiter
}

func newLimitCache(store penstock.Store) *limitCache {
	return &limitCache{store: store, seed: maphash.MakeSeed()}
}

// RequestUnder returns a request for one unit, without a key, under a limit in the form of
// [penstock.ParseLimit]. APIs use it for every limit that a caller brings.
func (e *Engine) RequestUnder(limit string) (penstock.Request, error) { return e.limits.request(limit) }

func (c *limitCache) request(text string) (penstock.Request, error) {
	slot := &c.slots[maphash.String(c.seed, text)%uint64(len(c.slots))]
	cached := slot.Load()
	if cached == nil || cached.text != text {
		limit, err := penstock.ParseLimit(text)
		if err != nil {
			return penstock.Request{}, err
		}
		limiter, err := penstock.New(c.store, RequestLimit(limit))
		if err != nil {
			return penstock.Request{}, err
		}
		cached = &cachedLimit{strings.Clone(text), limiter}
		slot.Store(cached)
	}
	return cached.limiter.Request(""), nil
}
