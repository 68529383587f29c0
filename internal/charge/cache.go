package charge

import (
	"sync"

	"github.com/penstock-io/penstock"
)

// A Cache holds what middleware has prepared for limiters that it chose for a request, so
// that requests under the same limiters share it. The zero Cache is empty and ready to use.
type Cache[V any] struct {
	mu    sync.RWMutex
	found map[combination]*V
}

// A combination is the limiters of a request, nil where there is none.
type combination [maxCombined]*penstock.Limiter

const (
	// maxCombined is the most limiters that a cached value can be for.
	maxCombined = 4

	// maxCombinations bounds the cache: a program may make a limiter for each
	// request.
	maxCombinations = 256
)

// Get returns the value for the limiters, or nil.
func (c *Cache[V]) Get(limiters []*penstock.Limiter) *V {
	if len(limiters) > maxCombined {
		return nil
	}
	var key combination
	copy(key[:], limiters)
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.found[key]
}

// Put stores the value for the limiters. A full cache is emptied first, so that limiters
// that are no longer used can be freed.
func (c *Cache[V]) Put(limiters []*penstock.Limiter, v *V) {
	if len(limiters) > maxCombined {
		return
	}
	var key combination
	copy(key[:], limiters)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.found == nil || len(c.found) >= maxCombinations {
		c.found = map[combination]*V{}
	}
	c.found[key] = v
}
