package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/rulesource"
	"github.com/penstock-io/penstock/server/adminapi"
)

// openRules loads the rules at startup, where an error is fatal. In place of
// envoyproxy/ratelimit it is not: as there, requests are answered with an error until the rules
// can be loaded.
func (s *Server) openRules(ctx context.Context) error {
	switch {
	case s.config.RulesXDS != nil:
		return s.openXDSRules(ctx)
	case s.config.Rules == "":
		s.log.Info("no rules configured, requests must name their limit")
		return nil
	}
	source, err := s.newRuleSource()
	if err != nil {
		return fmt.Errorf("%s: %w", s.config.origin("rules"), err)
	}
	s.source = source
	s.background = append(s.background, func(ctx context.Context) { source.Watch(ctx, s.useOrLogRules) })
	waiting := time.AfterFunc(time.Second/2, func() { s.log.Info("waiting until the rules can be read and are quiet", "path", s.ruleSource()) })
	set, err := source.Load(ctx)
	waiting.Stop()
	err = s.useRules(set, err)
	switch {
	case err == nil:
	case s.config.Ratelimit != nil && ctx.Err() == nil:
		s.log.Error("rules not loaded, all requests fail until they are", "path", s.ruleSource(), "err", err)
	default:
		return fmt.Errorf("%s: %w", s.config.origin("rules"), err)
	}
	return nil
}

// keptRules is the file of the last rules of a server in the data directory.
const keptRules = "rules"

func (s *Server) newRuleSource() (rules.Provider, error) {
	c := s.config
	o := &rulesource.Options{
		MergeDomains: c.MergeDomains, AllowEmpty: c.Ratelimit != nil, AllowDuplicates: c.Ratelimit != nil, Credentials: c.readRulesCredentials,
		OnKeepError: func(err error) { s.log.Warn("rules: not saved for a restart", "err", err) },
	}
	if s.data != nil {
		o.Keep = s.data.Path(keptRules)
	}
	return rulesource.Open(c.Rules, o)
}

// readRulesCredentials returns the credentials for the server of the rules.
func (c *Config) readRulesCredentials() (string, error) {
	if c.RulesCredentialsFile == "" {
		return c.RulesCredentials, nil
	}
	return ReadToken(c.RulesCredentialsFile)
}

// useRules puts loaded rules in use.
func (s *Server) useRules(set *rules.Set, err error) error {
	if err == nil && s.config.role().CalendarMonth {
		set.UseCalendarMonths()
	}
	if err == nil && s.claimLimits != nil {
		err = claimRules(set.Rules(), s.claimLimits)
	}
	if err == nil {
		err = s.checkGlobal(set.Rules())
	}
	s.metrics.countConfigLoad(err)
	s.lastReload.record(time.Now(), err)
	if err != nil {
		return err
	}
	for _, w := range set.Warnings() {
		s.log.Warn("rule file has a doubtful setting", "file", w.File, "line", w.Line, "reason", w.Reason)
	}
	s.logChanges(set)
	s.storePolicies.Set(set.Rules())
	s.unmatched.setRules(set)
	s.engine.SetRules(set)
	s.metrics.rules.Set(float64(len(set.Rules())))
	s.setServing()
	s.log.Info("rules loaded", "path", s.ruleSource(), "domains", len(set.Domains()), "rules", len(set.Rules()))
	return nil
}

// A reloadRecord remembers how the last load of the rules ended, for the admin API.
type reloadRecord struct {
	mu   sync.Mutex
	last adminapi.Reload
}

func (r *reloadRecord) record(now time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last.Time, r.last.Errors = now.UTC(), reloadErrors(err)
	if err == nil {
		r.last.Loaded = r.last.Time
	}
}

// maxReloadErrors bounds the errors of a load that are kept.
const maxReloadErrors = 100

func reloadErrors(err error) []adminapi.ReloadError {
	found := []adminapi.ReloadError{}
	var all rules.Errors
	switch {
	case err == nil:
	case errors.As(err, &all):
		for _, e := range all[:min(len(all), maxReloadErrors)] {
			found = append(found, adminapi.ReloadError{File: e.File, Line: e.Line, Reason: e.Reason})
		}
	default:
		found = append(found, adminapi.ReloadError{Reason: err.Error()})
	}
	return found
}

// reload returns how the last load of the rules ended, or nil without rules.
func (s *Server) reload() *adminapi.Reload {
	if !s.config.hasRules() {
		return nil
	}
	s.lastReload.mu.Lock()
	defer s.lastReload.mu.Unlock()
	last := s.lastReload.last
	last.OnStoreFailure = s.config.OnStoreFailure
	last.Kept = s.data != nil && rulesource.IsURL(s.config.Rules)
	return &last
}

// claimRules claims the states of the rules in the store before any request can use them, so
// that a rule that cannot be used is an error of its file.
func claimRules(all []*rules.Rule, claim func(...penstock.Limit) error) error {
	var limits []penstock.Limit
	byName := map[string]*rules.Rule{}
	for _, r := range all {
		if !r.Unlimited {
			limits = append(limits, r.Limit)
			byName[r.Limit.Name] = r
		}
		if c := r.Candidate; c != nil {
			limits = append(limits, c.Limit)
			byName[c.Limit.Name] = c
		}
	}
	err := claim(limits...)
	var bad *redisstore.ClaimError
	if !errors.As(err, &bad) {
		return err
	}
	r, reason := byName[bad.Limit.Name], bad.Error()
	if other := byName[bad.Other.Name]; other != nil {
		reason = fmt.Sprintf("rules %s and %s (%s:%d) would share their state in Redis: rename one of them",
			r.Name, other.Name, other.File, other.Line)
	}
	return rules.Errors{{File: r.File, Line: r.Line, Reason: reason}}
}

// useOrLogRules puts rules in use, or logs why they cannot be.
func (s *Server) useOrLogRules(set *rules.Set, err error) error {
	if err = s.useRules(set, err); err != nil {
		s.logRuleErrors(err)
	}
	return err
}

func (s *Server) reloadRules() {
	if source, ok := s.source.(interface{ Reload() }); ok {
		source.Reload()
	}
}

// logRuleErrors logs why a reload failed, one line per error.
func (s *Server) logRuleErrors(err error) {
	const message = "rules reload failed, keeping the old ones"
	var all rules.Errors
	var unstable *rules.UnstableError
	switch {
	case errors.As(err, &unstable):
		s.log.Warn("rules not reloaded, keeping the old ones", "err", err)
		return
	case !errors.As(err, &all):
		s.log.Error(message, "err", err)
		return
	}
	for _, e := range all {
		s.log.Error(message, "file", e.File, "line", e.Line, "reason", e.Reason)
	}
}
