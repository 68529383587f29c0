package server

import (
	"context"
	"fmt"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/rulesource"
	"github.com/penstock-io/penstock/server/candidates"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/prometheus/client_golang/prometheus"
)

// openCandidateRules loads the rules that are tried as a whole, where an error is fatal, and follows them.
func (s *Server) openCandidateRules(ctx context.Context) error {
	path := s.config.CandidateRules
	if path == "" {
		return nil
	}
	source, err := rulesource.Open(path, &rulesource.Options{MergeDomains: s.config.MergeDomains, Credentials: s.config.readRulesCredentials})
	if err == nil {
		var set *rules.Set
		set, err = source.Load(ctx)
		err = s.tryRules(set, err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.config.origin("candidate-rules"), err)
	}
	s.background = append(s.background, func(ctx context.Context) {
		source.Watch(ctx, func(set *rules.Set, err error) error {
			if err = s.tryRules(set, err); err != nil {
				s.log.Error("candidate rules not reloaded, trying the old ones", "err", err)
			}
			return err
		})
	})
	return nil
}

// tryRules tries loaded rules beside those in force.
func (s *Server) tryRules(set *rules.Set, err error) error {
	if err != nil {
		return err
	}
	if s.config.role().CalendarMonth {
		set.UseCalendarMonths()
	}
	left := set.AsCandidates()
	if s.claimLimits != nil {
		if err := claimRules(set.Rules(), s.claimLimits); err != nil {
			return err
		}
	}
	for _, w := range left {
		s.log.Warn("candidate rule has no effect", "file", w.File, "line", w.Line, "reason", w.Reason)
	}
	s.engine.Trials.TryRules(set)
	compared := 0
	for _, c := range s.engine.Candidates() {
		if c.Origin == candidates.FromFile {
			compared++
		}
	}
	s.log.Info("candidate rules loaded", "path", s.config.CandidateRules, "rules", len(set.Rules()), "compared", compared)
	return nil
}

var comparedDesc = prometheus.NewDesc("penstock_candidate_requests_total",
	"Requests of rules with a candidate, by what the limit in force and the candidate said of them.", []string{"rule", "limit", "candidate"}, nil)

// candidateCollector exports what candidates were compared with.
func candidateCollector(e *engine.Engine) collector {
	outcome := map[bool]string{false: "allowed", true: "denied"}
	return func(to exporter) {
		all := e.Candidates()
		for _, c := range all[:min(len(all), maxRuleSeries)] {
			for _, limit := range []bool{false, true} {
				for _, candidate := range []bool{false, true} {
					to.counter(comparedDesc, c.Of(limit, candidate), c.Rule, outcome[limit], outcome[candidate])
				}
			}
		}
	}
}
