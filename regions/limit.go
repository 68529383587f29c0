package regions

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
)

// A globalLimit is a limit with its sizes, and the name that its pools have.
type globalLimit struct {
	Sizes
	limit    penstock.Limit
	settings Settings
	capacity int64
	keep     time.Duration
	name     string
}

// poolKey returns the name of the pool of a key.
func (g *globalLimit) poolKey(key string) string {
	const maxKey = 256
	if len(key) > maxKey {
		return g.name + "#" + hash(key) // which is no key of another caller
	}
	return g.name + ":" + key
}

// keptFree returns a request to home that leaves what regions may hold. Refunds, settlements and charges ignore it.
func (g *globalLimit) keptFree(r penstock.Request) penstock.Request {
	r.KeepFree = max(r.KeepFree, g.KeepFree)
	if r.Cost <= 0 || r.Limit.HasPermits() {
		r.KeepFree = 0
	}
	return r
}

func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// newClaim returns a name that no claim has had. A counter would not do: it would begin anew with a region's lost state.
func newClaim() string {
	return strconv.FormatUint(rand.Uint64(), 36) + strconv.FormatUint(rand.Uint64(), 36) //nolint:gosec // unique, not secret
}

// A limitCache has the global limits of the rules by what defines them.
type limitCache struct {
	known sync.Map // of limitKey, *globalLimit
	size  atomic.Int64
}

type limitKey struct {
	limit    penstock.Limit
	settings Settings
}

// maxLimits bounds the cache, which overrides and reloaded rules fill.
const maxLimits = 4096

func (c *limitCache) of(l penstock.Limit, s Settings, regions int, roundTrip time.Duration) (*globalLimit, error) {
	key := limitKey{l, s}
	if g, ok := c.known.Load(key); ok {
		return g.(*globalLimit), nil
	}
	s, err := s.withDefaults()
	if err != nil {
		return nil, err
	}
	g := &globalLimit{Sizes: SizesOf(l, s, regions, roundTrip), limit: l, settings: s, capacity: l.Capacity()}
	g.keep = max(poolIdle, l.Normal().Period) // what is forgotten stays charged: no more of it in a period than a pool holds
	// A limit that was lowered keeps its state at home, and must not spend what pools held before.
	g.name = hash(fmt.Sprintf("%+v %d", l.Normal(), g.Hold))[:12]
	if c.size.Add(1) > maxLimits {
		c.known.Clear()
		c.size.Store(1)
	}
	c.known.Store(key, g)
	return g, nil
}
