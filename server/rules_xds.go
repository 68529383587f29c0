package server

import (
	"context"
	"fmt"
	"time"

	"github.com/penstock-io/penstock/server/envoy/xds"
	"github.com/prometheus/client_golang/prometheus"
)

// startWait is how long a start waits for rules over xDS that it can do without.
const startWait = 2 * time.Second

// hasRules reports whether the server has a source of rules.
func (c *Config) hasRules() bool { return c.Rules != "" || c.RulesXDS != nil }

// ruleSource names the source of the rules in log lines.
func (s *Server) ruleSource() string {
	if s.source != nil {
		return s.source.String()
	}
	return "xds " + s.config.RulesXDS.Addr
}

// waitsForRules reports whether the server is unready without rules. Those over xDS are never
// there from the start; in place of envoyproxy/ratelimit, its setting decides.
func (c *Config) waitsForRules() bool {
	if c.Ratelimit != nil {
		return c.Ratelimit.HealthyWithRules
	}
	return c.RulesXDS != nil
}

// openXDSRules restores the rules of the last run, waits for those of the management server,
// and receives them in the background from then on.
func (s *Server) openXDSRules(ctx context.Context) error {
	client, err := xds.New(s.config.RulesXDS, &xds.Options{MergeDomains: s.config.MergeDomains, Data: s.data, Log: s.log})
	if err != nil {
		return fmt.Errorf("%s: %w", s.config.origin("rules-xds"), err)
	}
	s.closers = append(s.closers, func(context.Context) error {
		client.Close()
		return nil
	})
	s.metrics.registry.MustRegister(collector(func(to exporter) { to.flag(xdsConnectedDesc, client.Connected()) }))
	client.Restore(s.useOrLogRules)
	if err := s.awaitXDSRules(ctx, client); err != nil {
		return fmt.Errorf("%s: no rules received: %w", s.config.origin("rules-xds"), err)
	}
	s.background = append(s.background, func(ctx context.Context) { client.Run(ctx, s.useOrLogRules) })
	return nil
}

// awaitXDSRules waits for rules: as long as it takes if the server must not start without
// them, and otherwise for a moment. In place of envoyproxy/ratelimit, rules that are wrong end
// the wait too.
func (s *Server) awaitXDSRules(ctx context.Context, client *xds.Client) error {
	if s.engine.Rules() != nil || !s.config.RulesXDS.Wait {
		moment, cancel := context.WithTimeout(ctx, startWait)
		defer cancel()
		_ = client.Next(moment, s.useOrLogRules)
		return ctx.Err()
	}
	s.log.Info("waiting for the first rules", "from", s.ruleSource())
	for s.engine.Rules() == nil {
		if err := client.Next(ctx, s.useOrLogRules); err != nil {
			return err
		}
		if s.config.Ratelimit != nil {
			break
		}
	}
	return nil
}

var xdsConnectedDesc = prometheus.NewDesc("penstock_rules_xds_connected", "1 while there is a stream to the xDS server, 0 otherwise.", nil, nil)
