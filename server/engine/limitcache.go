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
	store  penstock.Store
	policy *requestPolicy
	claim  func(...penstock.Limit) error
	seed   maphash.Seed
	slots  [1024]atomic.Pointer[cachedLimit]
}

type cachedLimit struct {
	text    string
	limiter *penstock.Limiter
	refusal *LimitRefusal // for callers that are not exempt; nil if all may bring the limit
}

// newLimitCache returns an empty cache. Claim may be nil.
func newLimitCache(store penstock.Store, p *requestPolicy, claim func(...penstock.Limit) error) *limitCache {
	if claim == nil {
		claim = func(...penstock.Limit) error { return nil }
	}
	return &limitCache{store: store, policy: p, claim: claim, seed: maphash.MakeSeed()}
}

// RequestUnder returns a request for one unit, without a key, under a limit in the form of
// [penstock.ParseLimit]. APIs use it for every limit that a caller brings. It returns a
// [*LimitRefusal] if the caller may not bring the limit, and calls mayRefund only if that
// matters.
func (e *Engine) RequestUnder(limit string, mayRefund func() bool) (penstock.Request, error) {
	cached, err := e.limits.get(limit)
	if err == nil && cached.refusal != nil {
		err = e.RefuseLimit(cached.refusal, mayRefund)
	}
	if err != nil {
		return penstock.Request{}, err
	}
	return cached.limiter.Request(""), nil
}

// ParseLimit is [penstock.ParseLimit] with a cache, for limits that callers bring.
func (e *Engine) ParseLimit(limit string) (penstock.Limit, error) {
	cached, err := e.limits.get(limit)
	if err != nil {
		return penstock.Limit{}, err
	}
	return cached.limiter.Limit(), nil
}

func (c *limitCache) get(text string) (*cachedLimit, error) {
	slot := &c.slots[maphash.String(c.seed, text)%uint64(len(c.slots))]
	if cached := slot.Load(); cached != nil && cached.text == text {
		return cached, nil
	}
	limit, err := penstock.ParseLimit(text)
	if err != nil {
		return nil, err
	}
	limiter, err := penstock.New(c.store, RequestLimit(limit))
	if err == nil {
		err = c.claim(limiter.Limit())
	}
	if err != nil {
		return nil, err
	}
	cached := &cachedLimit{strings.Clone(text), limiter, c.policy.refusal(&limit)}
	slot.Store(cached)
	return cached, nil
}
