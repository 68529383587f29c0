package overload

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"

	"github.com/penstock-io/penstock/internal/breaker"
	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/monotime"
)

// BreakerGroupOptions are the settings of a [BreakerGroup].
type BreakerGroupOptions struct {
	// BreakerOptions apply to every breaker of the group.
	BreakerOptions

	// MaxKeys bounds the breakers that are kept. Beyond it, a healthy breaker
	// without calls in flight makes room. If there is none among a few, calls of
	// new keys are admitted without a breaker. Default: 1,000.
	MaxKeys int
}

const defaultMaxKeys = 1000

// A BreakerGroup has a [Breaker] for each key, such as the host that is called. It
// is safe for concurrent use, and bounded.
type BreakerGroup struct {
	options BreakerOptions
	maxKeys int
	rules   *breaker.Options
	clock   monotime.Clock

	mu       sync.RWMutex
	breakers map[string]*groupBreaker
}

// A groupBreaker is the breaker of one key.
type groupBreaker struct {
	Breaker
	inFlight atomic.Int64
}

// NewBreakerGroup returns a group without breakers. Nil options mean all defaults.
func NewBreakerGroup(o *BreakerGroupOptions) *BreakerGroup {
	o = cmp.Or(o, &BreakerGroupOptions{})
	return &BreakerGroup{
		options: o.BreakerOptions, maxKeys: defaults.Or(o.MaxKeys, defaultMaxKeys),
		rules: o.rules(), clock: monotime.New(o.Now), breakers: map[string]*groupBreaker{},
	}
}

// A GroupCall is an admitted call of a [BreakerGroup]. Its caller must report how
// it ended, exactly once, with Done.
type GroupCall struct {
	call  Call
	entry *groupBreaker // nil if the call has no breaker
}

// Allow admits a call for a key, or returns an [OpenError].
func (g *BreakerGroup) Allow(key string) (GroupCall, error) {
	b := g.acquire(key)
	if b == nil {
		return GroupCall{}, nil
	}
	c, retryAfter := b.allow(b.clock.Now())
	if c.breaker == nil {
		b.inFlight.Add(-1)
		return GroupCall{}, &OpenError{Key: key, RetryAfter: retryAfter}
	}
	return GroupCall{call: c, entry: b}, nil
}

// Done reports how the call ended.
func (c GroupCall) Done(o Outcome) {
	if c.entry != nil {
		c.call.Done(o)
		c.entry.inFlight.Add(-1)
	}
}

// Do is [Breaker.Do] for the breaker of a key.
func (g *BreakerGroup) Do(ctx context.Context, key string, f func(context.Context) error) error {
	c, err := g.Allow(key)
	if err != nil {
		return err
	}
	return do(ctx, f, g.options.IsFailure, c.Done)
}

// acquire returns the breaker of a key with one more call in flight, so that it is
// not evicted. It returns nil if there is no room for another breaker.
func (g *BreakerGroup) acquire(key string) *groupBreaker {
	g.mu.RLock()
	b := g.breakers[key]
	if b != nil {
		b.inFlight.Add(1)
	}
	g.mu.RUnlock()
	if b != nil {
		return b
	}
	return g.acquireNew(key)
}

func (g *BreakerGroup) acquireNew(key string) *groupBreaker {
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.breakers[key]
	if b == nil {
		if len(g.breakers) >= g.maxKeys && !g.evict() {
			return nil
		}
		b = &groupBreaker{}
		b.init(key, &g.options, g.rules, g.clock)
		g.breakers[key] = b
	}
	b.inFlight.Add(1)
	return b
}

// maxSearched is how many breakers evict looks at: every call of a new key pays for it while
// all breakers are in use.
const maxSearched = 64

// evict removes a breaker that no caller would miss, and reports whether it found one.
func (g *BreakerGroup) evict() bool {
	searched := 0
	for key, b := range g.breakers { // in random order
		if searched++; searched > maxSearched {
			break
		}
		if b.inFlight.Load() == 0 && b.state.IsHealthy() {
			delete(g.breakers, key)
			return true
		}
	}
	return false
}

// Open returns the keys whose breakers are open, in no order.
func (g *BreakerGroup) Open() (keys []string) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	for key, b := range g.breakers {
		if b.IsOpen() {
			keys = append(keys, key)
		}
	}
	return keys
}
