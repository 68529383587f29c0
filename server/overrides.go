package server

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/overrides"
	"github.com/penstock-io/penstock/server/overrides/redishash"
	"github.com/prometheus/client_golang/prometheus"
)

// overridesFile is the file of the overrides in the data directory.
const overridesFile = "overrides.log"

// openOverrides opens the overrides of keys: in Redis, or nil for those of this process. With
// a data directory they are in a file, too.
func (s *Server) openOverrides(ctx context.Context, redis *redisstore.Store) error {
	o := &overrides.Options{Log: s.log}
	if redis != nil {
		o.Shared = redishash.New(redis, s.log)
	}
	if s.data != nil {
		o.File = s.data.Path(overridesFile)
	}
	all, err := overrides.Open(o)
	if err != nil {
		return fmt.Errorf("%s: %w", s.config.origin("data"), err)
	}
	s.overrides = all
	s.closers = append(s.closers, func(context.Context) error { return all.Close() })
	s.background = append(s.background, all.Run)
	limited, cancel := context.WithTimeout(ctx, s.config.connectTimeout())
	defer cancel()
	all.Refresh(limited) // so that bans are in force for the first request
	return nil
}

var (
	overridesDesc = prometheus.NewDesc("penstock_overrides", "Overrides by kind, with those that ended within a day.", []string{"kind"}, nil)
	bannedDesc    = prometheus.NewDesc("penstock_banned_requests_total", "Requests denied by a ban, by rule.", []string{"rule"}, nil)
	skippedDesc   = prometheus.NewDesc("penstock_penalties_skipped_total", "Bans of penalties that could not be set.", nil, nil)
)

// overridesCollector exports the overrides and what bans did.
func overridesCollector(all *overrides.Set, e *engine.Engine) collector {
	return func(to exporter) {
		for _, k := range overrides.Kinds {
			to.gauge(overridesDesc, int64(all.Count(k)), k.String())
		}
		for _, n := range e.StatsOfRules() {
			to.counter(bannedDesc, n.Banned.Load(), n.Rule)
		}
		to.counter(skippedDesc, all.Skipped())
	}
}
