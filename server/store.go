package server

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/regions"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/hitlimit"
	"github.com/penstock-io/penstock/server/requestlimits"
	"github.com/penstock-io/penstock/server/storepolicy"
)

// openStore opens the store, and the engine on top of it.
func (s *Server) openStore(ctx context.Context) error {
	open := s.openRedis
	if s.config.Store == memoryURL {
		open = s.openMemory
	} else if _, ok := s.config.sqlScheme(); ok {
		open = s.openSQL
	}
	store, err := open(ctx)
	if err != nil {
		return err
	}
	if store, err = s.withRegions(ctx, store); err != nil {
		return err
	}
	s.unmatched = newUnmatchedLog(s.log, "--unmatched="+s.config.Unmatched)
	if s.config.TopKeys > 0 {
		s.topKeys = topkeys.New(&topkeys.Options{Counters: s.config.TopKeys})
	}
	record, err := s.openRecording()
	if err != nil {
		return err
	}
	o := s.engineOptions()
	o.OnDecided = record
	s.engine = engine.New(store, o)
	s.statistics = s.newStatistics()
	s.metrics.registry.MustRegister(engineCollector(s.engine), candidateCollector(s.engine), overridesCollector(s.overrides, s.engine))
	s.observer = s.newObserver()
	s.background = append(s.background, s.observer.Run, s.observer.Publish)
	s.keepHistory()
	if !s.config.TrustLocal && !s.engine.HasToken() {
		s.log.Warn("no caller may refund, reset or use the admin API beyond health: --trust-local=false needs a token")
	}
	return nil
}

func (s *Server) engineOptions() *engine.Options {
	return &engine.Options{
		TopKeys: s.topKeys, OnResult: s.onResult(), OnTaken: s.onTaken(),
		Token: s.config.Token, Tokens: s.config.Tokens, DistrustLocal: !s.config.TrustLocal, Shadow: s.config.Shadow,
		DenyUnmatched: s.config.Unmatched == "deny", OnUnmatched: s.unmatched.report,
		RequestLimits: s.requestLimits(),
		CompatEnvoy:   s.config.Compat == "envoy", OnFailure: s.onStoreFailure,
		MaxDescriptors: s.config.MaxDescriptors, MaxEntries: s.config.MaxEntries,
		OverLimitKeys: s.config.overLimitKeys(), OverLimitAge: s.config.overLimitAge(),
		CacheDenials: s.config.role().LocalCacheBytes > 0, QuotaMode: s.config.role().QuotaMode, StopIncrement: s.config.role().StopIncrement,
		CountHits: s.config.role().Stats.IsOn(), NearLimitRatio: s.config.role().Stats.NearLimitRatio,
		OnMetricValues: s.warnOfMetricValues,
		Overrides:      s.overrides,
	}
}

// overLimitKeys returns how many keys over their limit are remembered, beside the deny cache,
// which knows them only where the store denies. In memory the store is as fast.
func (c *Config) overLimitKeys() int {
	const (
		most        = 1 << 16
		bytesPerKey = 100 // of the cache that LOCAL_CACHE_SIZE_IN_BYTES is about
	)
	switch {
	case c.Store == memoryURL || !c.DenyCache:
		return 0
	case c.role().LocalCacheBytes > 0:
		return int(min(max(c.Ratelimit.LocalCacheBytes/bytesPerKey, 1<<10), 1<<20))
	}
	return most
}

// overLimitAge returns for how long they are remembered: as in envoyproxy/ratelimit until the
// window ends, and otherwise as long as by the deny cache.
func (c *Config) overLimitAge() time.Duration {
	if c.role().LocalCacheBytes > 0 {
		return maxOverLimitAge
	}
	return 0
}

// maxOverLimitAge is longer than any window.
const maxOverLimitAge = 366 * 24 * time.Hour

var requestLimitModes = map[string]requestlimits.Mode{
	"on": requestlimits.On, "local": requestlimits.Local, "off": requestlimits.Off,
}

// requestLimits returns the bounds of limits in requests. A memory store bounds what they
// leave behind itself.
func (s *Server) requestLimits() requestlimits.Options {
	c := s.config
	r := requestlimits.Options{
		Mode:        requestLimitModes[c.RequestLimits],
		MaxPeriod:   c.RequestLimitsMaxPeriod,
		MaxKeyBytes: c.RequestLimitsMaxKeyBytes,
		Claim:       s.claimLimits,
	}
	if c.Store != memoryURL {
		r.MaxStoreBytes, r.StorePrefix = c.RequestLimitsMaxRedisBytes, c.RedisPrefix
	}
	if strings.HasPrefix(c.Store, "redis-cluster:") {
		r.TakeAllMemory = 40*c.RedisTimeout + 10*time.Second // see redisstore.Store.TakeAll
	}
	return r
}

// minConnectTimeout is long enough for a name server and a TLS handshake.
const minConnectTimeout = 2 * time.Second

// connectTimeout is how long the server waits for its store at startup, before it starts degraded. One
// that may take longer for a call may also take longer for its first answer.
func (c *Config) connectTimeout() time.Duration { return max(minConnectTimeout, c.storeTimeout()) }

// storeTimeout is how long a call to the store may take.
func (c *Config) storeTimeout() time.Duration {
	if _, ok := c.sqlScheme(); ok {
		return c.SQLTimeout
	}
	return c.RedisTimeout
}

// openRedis returns a store on Redis that also decides while Redis is unavailable.
func (s *Server) openRedis(ctx context.Context) (penstock.Store, error) {
	c := s.config
	limited, cancel := context.WithTimeout(ctx, c.connectTimeout())
	defer cancel()
	redis, err := redisstore.Open(limited, c.Store, &redisstore.Options{
		Prefix: c.RedisPrefix, Timeout: c.RedisTimeout, AllowUnavailable: true, EndEarly: true, OnBatch: s.onBatch(),
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.origin("store"), err)
	}
	s.closers = append(s.closers, func(context.Context) error {
		redis.Close()
		return nil
	})
	s.claimLimits = redis.Claim
	s.pools = regions.RedisPools(redis, c.RedisTimeout)
	if err := s.openOverrides(ctx, redis); err != nil {
		return nil, err
	}
	s.board = redisBoard{redis}
	return s.wrapStore(ctx, redis, "Redis"), nil
}

// wrapStore adds the wrappers to a store on the network, from the inside out: metrics, fallback, lease,
// deny cache. The fallback is next to the store, so that the others never see an error, and
// know by the source of a decision whether to cache it. The lease is above it, because it
// leases units of the store. The deny cache is outermost, where a denial costs the least.
func (s *Server) wrapStore(ctx context.Context, remote monitoredStore, name string) penstock.Store {
	c := s.config
	s.monitor = newMonitor(remote, name, s.metrics, s.log)
	local := penstock.NewMemory(c.memoryOptions())
	fallback := penstock.WithFallback(newTimedStore(remote, s.monitor.label, s.metrics, s.tracer), local, &penstock.FallbackOptions{
		Timeout:   c.storeTimeout(),
		OnFailure: s.onStoreFailure,
		OnChange:  s.monitor.onChange,
	})
	s.monitor.start(ctx, fallback)
	s.background = append(s.background, s.monitor.run)

	lease := penstock.WithLease(fallback, &penstock.LeaseOptions{Nodes: c.Nodes, Only: s.storePolicies.Leased})
	s.lease = lease
	s.closers = append(s.closers, func(ctx context.Context) error {
		if err := lease.Close(ctx); err != nil {
			s.log.Warn("leased units were not returned, they refill over time", "err", err)
		}
		return nil
	})
	denyCache := penstock.WithDenyCache(lease, &penstock.DenyCacheOptions{MaxAge: s.config.DenyCacheAge, Only: s.denyCached})
	return countSources(denyCache, s.metrics)
}

// defaultStorePolicy returns the policy of limits without settings in a rule. Its share follows the number
// of daemons.
func (c *Config) defaultStorePolicy() storepolicy.Policy {
	return storepolicy.Policy{
		OnFailure: storepolicy.FailureModes[c.OnStoreFailure],
		Lease:     c.Lease,
		DenyCache: c.DenyCache,
	}
}

// denyCached selects the limits of the deny cache: not those whose denials the engine caches.
func (s *Server) denyCached(l penstock.Limit) bool {
	if s.config.role().LocalCacheBytes > 0 && hitlimit.Has(&l) {
		return false
	}
	return s.storePolicies.DenyCached(l)
}

// redisLabel is the label of Redis in metrics.
const redisLabel = "redis"
