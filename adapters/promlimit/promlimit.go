// Package promlimit exports the decisions of a program's limits and rules to Prometheus:
//
//	metrics := promlimit.New()
//	prometheus.MustRegister(metrics)
//	store := penstock.WithObserver(penstock.NewMemory(nil), metrics.Observe)
//	lim, err := rulelimit.Open(ctx, "rules.yaml", store, &rulelimit.Options{Observe: metrics.ObserveRules})
//
// One of the two is enough: the store sees each limit, the rules each request.
//
//	penstock_limit_decisions_total{limit, outcome, source}   outcome: allowed, denied, error
//	penstock_limit_units_total{limit}                        units that were granted
//	penstock_rule_decisions_total{rule, outcome}             outcome: allowed, denied, shadow, error
//	penstock_decision_duration_seconds{by}                   by: store, rules
package promlimit

import (
	"sync"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/rulelimit"
	"github.com/prometheus/client_golang/prometheus"
)

// maxNames is how many limits and rules have series of their own. The others share those of
// otherNames: programs make limits of what their users choose.
const (
	maxNames   = 1000
	otherNames = "(others)"
)

// Metrics counts decisions. It is a [prometheus.Collector], and safe for concurrent use.
type Metrics struct {
	all                     *prometheus.Registry // of these metrics only
	limits, units, rules    *prometheus.CounterVec
	durations               *prometheus.HistogramVec
	storeTime, decisionTime prometheus.Observer

	mu     sync.RWMutex
	series map[series]counters
	names  map[string]bool
}

// A series identifies what is counted together.
type series struct {
	rule          bool
	name, outcome string
	source        penstock.Source
}

// counters are those of one series: decisions, and units of a limit.
type counters struct{ decisions, units prometheus.Counter }

// New returns metrics to register.
func New() *Metrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	m := &Metrics{
		all:    prometheus.NewRegistry(),
		limits: vec("penstock_limit_decisions_total", "Decisions by limit, outcome and what decided.", "limit", "outcome", "source"),
		units:  vec("penstock_limit_units_total", "Units granted by limit.", "limit"),
		rules:  vec("penstock_rule_decisions_total", "Decisions about descriptors by rule and outcome; those without a rule have an empty one.", "rule", "outcome"),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "penstock_decision_duration_seconds", Help: "Duration of decisions, by a store or by rules.",
			Buckets: prometheus.ExponentialBuckets(1e-6, 4, 12),
		}, []string{"by"}),
		series: map[series]counters{}, names: map[string]bool{},
	}
	m.all.MustRegister(m.limits, m.units, m.rules, m.durations)
	m.storeTime, m.decisionTime = m.durations.WithLabelValues("store"), m.durations.WithLabelValues("rules")
	return m
}

// Observe is for [penstock.WithObserver].
func (m *Metrics) Observe(o penstock.Observation) {
	m.storeTime.Observe(o.Duration.Seconds())
	c := m.of(series{name: o.Request.Limit.Name, outcome: outcome(o.Decision.Allowed, o.Err), source: o.Decision.Source})
	c.decisions.Inc()
	if o.Decision.Granted > 0 {
		c.units.Add(float64(o.Decision.Granted))
	}
}

// ObserveRules is for [rulelimit.Options].
func (m *Metrics) ObserveRules(o rulelimit.Observation) {
	m.decisionTime.Observe(o.Duration.Seconds())
	if o.Err != nil {
		m.of(series{rule: true, outcome: "error"}).decisions.Inc()
	}
	for i := range o.Answers {
		a := &o.Answers[i]
		what := outcome(a.Decision.Allowed, nil)
		if !a.Decision.Allowed && o.Allowed || a.Shadow && a.Decision.RetryAfter > 0 {
			what = "shadow" // would be denied
		}
		m.of(series{rule: true, name: a.Rule, outcome: what}).decisions.Inc()
	}
}

func outcome(allowed bool, err error) string {
	switch {
	case err != nil:
		return "error"
	case allowed:
		return "allowed"
	}
	return "denied"
}

// of returns the counters of a series, which are made at its first use.
func (m *Metrics) of(s series) counters {
	m.mu.RLock()
	c, ok := m.series[s]
	m.mu.RUnlock()
	if ok {
		return c
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.names[s.name] && len(m.names) >= maxNames {
		s.name = otherNames
	} else {
		m.names[s.name] = true
	}
	if c, ok := m.series[s]; ok {
		return c
	}
	if s.rule {
		c.decisions = m.rules.WithLabelValues(s.name, s.outcome)
	} else {
		c.decisions = m.limits.WithLabelValues(s.name, s.outcome, s.source.String())
		c.units = m.units.WithLabelValues(s.name)
	}
	m.series[s] = c
	return c
}

// Describe implements [prometheus.Collector].
func (m *Metrics) Describe(to chan<- *prometheus.Desc) { m.all.Describe(to) }

// Collect implements [prometheus.Collector].
func (m *Metrics) Collect(to chan<- prometheus.Metric) { m.all.Collect(to) }
