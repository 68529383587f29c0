package server

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server/engine"
)

// openStore opens the store, and the judge that asks it.
func (s *Server) openStore(ctx context.Context) error {
	open := s.openRedis
	if s.config.Store == memoryURL {
		open = s.openMemory
	}
	store, err := open(ctx)
	if err != nil {
		return err
	}
	s.engine = engine.New(store, &engine.Options{Token: s.config.Token, Shadow: s.config.Shadow})
	s.metrics.registry.MustRegister(engineCollector{s.engine})
	return nil
}

// connectTimeout is how long the start waits for Redis. After that it is made without.
const connectTimeout = 2 * time.Second

// openRedis returns a store on Redis that also decides while Redis is away. What is
// around it is in an order: the fallback is next to Redis, so that the others never
// see an error, and can tell by the source of a decision whether it is worth
// remembering; a lease is above, for it is Redis's units that are taken ahead; and
// denials are remembered above all, so that they cost the least.
func (s *Server) openRedis(ctx context.Context) (penstock.Store, error) {
	c := s.config
	limited, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	redis, err := redisstore.Open(limited, c.Store, &redisstore.Options{
		Prefix: c.RedisPrefix, Timeout: c.RedisTimeout, AllowUnavailable: true,
	})
	if err != nil {
		return nil, fmt.Errorf("--store: %w", err)
	}
	s.closers = append(s.closers, func(context.Context) error {
		redis.Close()
		return nil
	})
	return s.wrapStore(ctx, redis), nil
}

// wrapStore puts around Redis what goes on without it, and spares it work.
func (s *Server) wrapStore(ctx context.Context, redis *redisstore.Store) penstock.Store {
	c := s.config
	s.monitor = newMonitor(redis, s.metrics, s.log)
	local := penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: c.MaxKeys, MaxBytes: c.MaxBytes})
	fallback := penstock.WithFallback(newTimedStore(redis, redisName, s.metrics), local, &penstock.FallbackOptions{
		Timeout:   c.RedisTimeout,
		OnFailure: s.storePolicies.onFailure,
		OnChange:  s.monitor.onChange,
	})
	s.monitor.start(ctx, fallback)
	s.background = append(s.background, s.monitor.run)

	lease := penstock.WithLease(fallback, &penstock.LeaseOptions{Nodes: c.Nodes, Only: s.storePolicies.leased})
	s.closers = append(s.closers, func(ctx context.Context) error {
		if err := lease.Close(ctx); err != nil {
			s.log.Warn("units that were taken ahead could not be given back; they come back by themselves", "err", err)
		}
		return nil
	})
	return newSourceCounter(penstock.WithDenyCache(lease, &penstock.DenyCacheOptions{Only: s.storePolicies.denyCached}), s.metrics)
}

// redisName is what metrics call the store.
const redisName = "redis"
