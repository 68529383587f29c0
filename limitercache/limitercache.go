// Package limitercache finds the limiters of keys whose limits are elsewhere, such as the plans
// of customers in a database.
package limitercache

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/defaults"
	"github.com/penstock-io/penstock/internal/lograte"
)

// Options configure a [Cache]. The zero value has all defaults.
type Options struct {
	// MaxAge is how long a limit is used before load is called again. Meanwhile the
	// old one stays in use, also while load fails. Default: ten seconds.
	MaxAge time.Duration

	// MaxKeys bounds the keys in the cache. Beyond it, any of them is dropped for a
	// new one. Default: 100,000.
	MaxKeys int

	// Timeout bounds each call of load. Default: a second.
	Timeout time.Duration

	// OnError is called for each load that failed or panicked, or returned an invalid limit. It is
	// called concurrently. Default: the errors are logged by [slog.Default], at most once per second:
	// a key that was never loaded is not limited meanwhile.
	OnError func(key string, err error)
}

// A Cache finds the limiter of a key whose limit is elsewhere, such as the plan of a
// customer in a database, and can change at any time. Its [Cache.For] is made for the
// LimiterFor of packages httplimit and grpclimit. It is safe for concurrent use.
type Cache struct {
	store   penstock.Store
	load    func(ctx context.Context, key string) (penstock.Limit, error)
	options Options

	mu       sync.Mutex
	keys     map[string]*cachedLimiter            // by cachedName
	limiters map[penstock.Limit]*penstock.Limiter // keys of one plan share a limiter
}

// A cachedLimiter is what the cache knows about a key.
type cachedLimiter struct {
	limiter *penstock.Limiter // nil if the key has none
	until   time.Time         // when it is loaded again
	loading chan struct{}     // closed when the load in progress ends; nil without one
	known   bool              // a load has succeeded
}

// New returns a cache. Load returns the limit of a key, or the zero [penstock.Limit] if the
// key has none of its own. Give the limits of all plans one name, so that a key keeps what it
// has used when its plan changes. Nil options are all defaults.
func New(s penstock.Store, load func(ctx context.Context, key string) (penstock.Limit, error), o *Options) (*Cache, error) {
	if s == nil {
		return nil, errors.New("limitercache: no store")
	}
	if _, err := penstock.New(s, penstock.PerSecond(1000)); err != nil { // or else no limit that is loaded would be in force
		return nil, fmt.Errorf("limitercache: %w", err)
	}
	if load == nil {
		return nil, errors.New("limitercache: no load function")
	}
	c := &Cache{store: s, load: load, keys: map[string]*cachedLimiter{}, limiters: map[penstock.Limit]*penstock.Limiter{}}
	c.options = *cmp.Or(o, &Options{})
	c.options.setDefaults()
	return c, nil
}

func (o *Options) setDefaults() {
	o.MaxAge = defaults.Duration(o.MaxAge, 10*time.Second)
	o.MaxKeys = defaults.Or(o.MaxKeys, 100_000)
	o.Timeout = defaults.Duration(o.Timeout, time.Second)
	if o.OnError == nil {
		lines := lograte.PerSecond()
		o.OnError = func(_ string, err error) {
			lines.LogError(context.Background(), fmt.Errorf("limitercache: a limit cannot be loaded: %w", err))
		}
	}
}

// For returns the limiter of a key, or nil if the key has no limit of its own. It waits only
// for the first load of a key, and at most until ctx ends. If that load fails, For returns
// nil too: give the middleware a Limiter for this case.
func (c *Cache) For(ctx context.Context, key string) *penstock.Limiter {
	name := cachedName(key)
	c.mu.Lock()
	e := c.keys[name]
	if e == nil {
		e = c.add(name)
	}
	if e.loading == nil && !time.Now().Before(e.until) {
		e.loading = make(chan struct{})
		go c.refresh(context.WithoutCancel(ctx), key, e, e.loading)
	}
	limiter, known, loading := e.limiter, e.known, e.loading
	c.mu.Unlock()
	if known || loading == nil {
		return limiter
	}
	select {
	case <-loading:
		c.mu.Lock()
		defer c.mu.Unlock()
		return e.limiter
	case <-ctx.Done():
		return limiter
	}
}

// Invalidate makes the next For of a key wait for its limit to be loaded again. If that fails,
// the old one stays in use. Call it where the program itself changes a limit.
func (c *Cache) Invalidate(key string) {
	name := cachedName(key)
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.keys[name]; e != nil {
		c.keys[name] = &cachedLimiter{limiter: e.limiter} // a load in progress may return the old limit
	}
}

// maxCachedKey is the longest key that is kept as it is.
const maxCachedKey = 256

// cachedName returns the name of a key in the cache: the key, or its beginning and its hash, which
// is longer than any key that is kept. A remote client may choose keys of a megabyte.
func cachedName(key string) string {
	if len(key) <= maxCachedKey {
		return key
	}
	sum := sha256.Sum256([]byte(key))
	return key[:maxCachedKey] + string(sum[:])
}

// add adds a key by its name, in place of another if the cache is full.
func (c *Cache) add(name string) *cachedLimiter {
	if len(c.keys) >= c.options.MaxKeys {
		for other := range c.keys { // in random order
			delete(c.keys, other)
			break
		}
	}
	e := &cachedLimiter{}
	c.keys[name] = e
	return e
}

// retryPause is how long a load that failed is not repeated.
const retryPause = time.Second

// errLoadExited is the error of a load that called runtime.Goexit.
var errLoadExited = errors.New("limitercache: load ended its goroutine")

// refresh loads the limit of a key. If that fails, the old one stays. A panic is an error too: it would
// end the process, while a server would recover from one of its handlers.
func (c *Cache) refresh(ctx context.Context, key string, e *cachedLimiter, done chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, c.options.Timeout)
	defer cancel()
	limit, err := penstock.Limit{}, errLoadExited
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("limitercache: load panicked: %v\n\n%s", p, debug.Stack())
		}
		c.finish(key, e, done, limit, err)
	}()
	limit, err = c.load(ctx, key)
}

// finish stores what a load returned, and lets its callers go on.
func (c *Cache) finish(key string, e *cachedLimiter, done chan struct{}, limit penstock.Limit, err error) {
	c.mu.Lock()
	var limiter *penstock.Limiter
	if err == nil && limit != (penstock.Limit{}) {
		limiter, err = c.limiterOf(limit)
	}
	e.loading = nil
	if err == nil {
		e.limiter, e.known, e.until = limiter, true, time.Now().Add(c.options.MaxAge)
	} else {
		e.until = time.Now().Add(min(retryPause, c.options.MaxAge))
	}
	c.mu.Unlock()
	close(done)
	if err != nil {
		c.options.OnError(key, err)
	}
}

// maxSharedLimiters bounds the limiters that keys share. A program with more plans than that
// makes some of them again.
const maxSharedLimiters = 1024

func (c *Cache) limiterOf(limit penstock.Limit) (*penstock.Limiter, error) {
	if known := c.limiters[limit]; known != nil {
		return known, nil
	}
	limiter, err := penstock.New(c.store, limit)
	if err != nil {
		return nil, err
	}
	if len(c.limiters) >= maxSharedLimiters {
		clear(c.limiters)
	}
	c.limiters[limit] = limiter
	return limiter, nil
}
