package server

import (
	"net/http"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/audit"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/envoy/rlqs"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are the Prometheus metrics of the server. Keys are never labels, because their
// number is not bounded.
type metrics struct {
	registry         *prometheus.Registry
	decisionDuration *prometheus.HistogramVec
	storeDuration    *prometheus.HistogramVec
	storeErrors      *prometheus.CounterVec
	configLoads      *prometheus.CounterVec
	lastLoadOK       prometheus.Gauge
	rules            prometheus.Gauge
	invalidRequests  *prometheus.CounterVec
	actions          *prometheus.CounterVec
	auditErrors      prometheus.Counter

	// Of stores on the network:
	decisionsBySource *prometheus.CounterVec
	leaseUnits        prometheus.Counter
	storeTransitions  *prometheus.CounterVec
	stateLosses       *prometheus.CounterVec

	// Of a durable store:
	snapshots    *prometheus.CounterVec
	snapshotTime prometheus.Gauge
}

// decisionBuckets are the bounds of decision latencies, in seconds: to 260 ms.
var decisionBuckets = prometheus.ExponentialBuckets(1e-6, 4, 10)

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		decisionDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "penstock_decision_duration_seconds",
			Help:    "Latency of calls with decisions by listener: gRPC calls, HTTP requests, RESP pipelines.",
			Buckets: decisionBuckets,
		}, []string{"listener"}),
		storeDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "penstock_store_duration_seconds",
			Help:    "Latency of store calls by store and operation.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 12), // to 100 ms
		}, []string{"store", "op"}),
		storeErrors:       newCounterVec("penstock_store_errors_total", "Store calls without a decision, because the store was unavailable, or busy.", "store"),
		configLoads:       newCounterVec("penstock_config_loads_total", "Loads of the rule files by result, success or failure.", "result"),
		lastLoadOK:        newGauge("penstock_config_last_load_successful", "0 while the last load of the rules is one that failed, else 1."),
		rules:             newGauge("penstock_rules", "Rules in force."),
		invalidRequests:   newCounterVec("penstock_invalid_requests_total", "Requests that make no sense, by API and reason.", "api", "reason"),
		actions:           newCounterVec("penstock_admin_actions_total", "Actions that undo a limit, on any API, by action and result: done, refused, failed or unknown.", "action", "result"),
		auditErrors:       newCounter("penstock_audit_errors_total", "Lines that could not be written to the audit log."),
		decisionsBySource: newCounterVec("penstock_decisions_by_source_total", "Decisions by source.", "source"),
		leaseUnits:        newCounter("penstock_lease_units_total", "Leased units that were spent locally."),
		storeTransitions:  newCounterVec("penstock_store_transitions_total", "Transitions of store shards to down and up.", "store", "state"),
		stateLosses:       newCounterVec("penstock_store_state_losses_total", "Losses of state that were detected in the store, by reason.", "store", "reason"),
		snapshots:         newCounterVec("penstock_snapshots_total", "Snapshots by result, success or failure.", "result"),
		snapshotTime:      newGauge("penstock_snapshot_timestamp_seconds", "Unix time of the last successful snapshot."),
	}
	m.begin()
	m.registry.MustRegister(m.decisionDuration, m.storeDuration, m.storeErrors, m.configLoads, m.lastLoadOK, m.rules, m.invalidRequests,
		m.actions, m.auditErrors,
		collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// begin gives metrics their first values, so that a counter begins at 0 and the first failure is an increase.
func (m *metrics) begin() {
	m.lastLoadOK.Set(1)
	for _, result := range []string{"success", "failure"} {
		m.configLoads.WithLabelValues(result)
	}
	for _, action := range audit.Actions {
		for _, result := range audit.Results {
			m.actions.WithLabelValues(action, string(result))
		}
	}
}

func newGauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

func newCounter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func newCounterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// handler serves the metrics.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry, EnableOpenMetrics: true}) // which has exemplars
}

// observeLatency returns a function that records decision latencies of a listener.
func (m *metrics) observeLatency(listener string) func(time.Duration) {
	durations := m.decisionDuration.WithLabelValues(listener)
	return func(d time.Duration) { durations.Observe(d.Seconds()) }
}

// countInvalid returns a function that counts invalid requests to an API.
func (m *metrics) countInvalid(api string) func(requestlog.Reason) {
	for _, reason := range requestlog.Reasons {
		m.invalidRequests.WithLabelValues(api, string(reason)) // so that it begins at 0
	}
	return func(reason requestlog.Reason) { m.invalidRequests.WithLabelValues(api, string(reason)).Inc() }
}

func (m *metrics) countAction(action string, result audit.Result) {
	m.actions.WithLabelValues(action, string(result)).Inc()
}

func (m *metrics) countConfigLoad(err error) {
	m.configLoads.WithLabelValues(resultOf(err)).Inc()
	m.lastLoadOK.Set(map[bool]float64{true: 1}[err == nil])
}

func (m *metrics) countSnapshot(err error) {
	m.snapshots.WithLabelValues(resultOf(err)).Inc()
	if err == nil {
		m.snapshotTime.SetToCurrentTime()
	}
}

func resultOf(err error) string {
	if err != nil {
		return "failure"
	}
	return "success"
}

var (
	decisionsDesc   = prometheus.NewDesc("penstock_decisions_total", "Decisions by rule, outcome and mode. In shadow mode, denials are not enforced.", []string{"rule", "outcome", "mode"}, nil)
	unitsDesc       = prometheus.NewDesc("penstock_cost_units_total", "Cost units by rule and outcome: granted if allowed, requested if denied.", []string{"rule", "outcome"}, nil)
	limitDesc       = prometheus.NewDesc("penstock_limit_units", "Maximum units that a rule grants in one request: its burst or count.", []string{"rule"}, nil)
	releasedDesc    = prometheus.NewDesc("penstock_permits_released_total", "Permits of concurrent limits that were released, by rule.", []string{"rule"}, nil)
	notHeldDesc     = prometheus.NewDesc("penstock_permit_releases_not_held_total", "Releases that found no permit under their ID, by rule: it had expired, or was never granted.", []string{"rule"}, nil)
	heldIDsDesc     = prometheus.NewDesc("penstock_permit_ids_refused_total", "Requests denied only because their ID held a permit already, by rule.", []string{"rule"}, nil)
	unmatchedDesc   = prometheus.NewDesc("penstock_unmatched_requests_total", "Requests that no rule matched in any descriptor, by domain; the empty domain stands for all without rules.", []string{"domain"}, nil)
	refusalsDesc    = prometheus.NewDesc("penstock_request_limits_refused_total", "Requests refused because of the limit that they brought, by reason.", []string{"reason"}, nil)
	storeBytesDesc  = prometheus.NewDesc("penstock_request_limits_redis_bytes", "Upper bound of the live state that limits in requests to this server left in Redis.", nil, nil)
	keysDesc        = prometheus.NewDesc("penstock_keys", "Keys in the memory store.", nil, nil)
	requestKeysDesc = prometheus.NewDesc("penstock_request_limits_keys", "Keys in the memory store under limits that requests brought.", nil, nil)
	bytesDesc       = prometheus.NewDesc("penstock_state_bytes", "Memory used by the state of sliding logs, rolling windows and concurrent limits.", nil, nil)
	overflowDesc    = prometheus.NewDesc("penstock_memory_overflow_decisions_total", "Decisions by an overflow bucket, because --max-keys was reached.", nil, nil)
	connectionsDesc = prometheus.NewDesc("penstock_connections", "Open connections by listener.", []string{"listener"}, nil)
	refusedDesc     = prometheus.NewDesc("penstock_connections_refused_total", "Connections refused over the connection limit, by listener.", []string{"listener"}, nil)
	streamsDesc     = prometheus.NewDesc("penstock_rlqs_streams", "Proxies that are connected to the rate limit quota service.", nil, nil)
	bucketsDesc     = prometheus.NewDesc("penstock_rlqs_buckets", "Buckets that these proxies have, each counted once.", nil, nil)
	assignedDesc    = prometheus.NewDesc("penstock_rlqs_assigned_units_total", "Units that were taken ahead of requests, and assigned to proxies.", nil, nil)
	expiryDesc      = prometheus.NewDesc("penstock_certificate_expiry_timestamp_seconds", "Unix time at which the TLS certificate expires, by listener.", []string{"listener"}, nil)
)

// A collector exports what is counted elsewhere when it is asked for. It describes nothing ahead.
type collector func(exporter)

// Describe implements [prometheus.Collector].
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (c collector) Collect(ch chan<- prometheus.Metric) { c(ch) }

// An exporter receives values.
type exporter chan<- prometheus.Metric

func (e exporter) counter(d *prometheus.Desc, v uint64, labels ...string) {
	e <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

func (e exporter) gauge(d *prometheus.Desc, v int64, labels ...string) {
	e <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), labels...)
}

// flag exports 1 or 0.
func (e exporter) flag(d *prometheus.Desc, is bool, labels ...string) {
	e.gauge(d, map[bool]int64{true: 1}[is], labels...)
}

// engineCollector exports the decision counters of the rules.
func engineCollector(e *engine.Engine) collector {
	return func(to exporter) {
		for reason, n := range e.RequestLimits().Refused() {
			to.counter(refusalsDesc, n, reason.String())
		}
		to.gauge(storeBytesDesc, e.RequestLimits().StoreBytes())
		for _, n := range e.UnmatchedCounters() {
			to.counter(unmatchedDesc, n.Count, n.Domain)
		}
		all := e.RuleStats()
		own := all[:min(len(all), maxRuleSeries)]
		for _, n := range own {
			to.rule(n)
		}
		if others := all[len(own):]; len(others) > 0 {
			to.decisions(otherRules, others...)
		}
	}
}

// maxRuleSeries is how many rules have series of their own: with many more, a scrape takes longer
// than its interval. The others share those of otherRules, which no rule is called.
const (
	maxRuleSeries = 10_000
	otherRules    = "(others)"
)

// decisions exports the sums of the counters of rules.
func (e exporter) decisions(rule string, all ...*engine.RuleStats) {
	var allowed, denied, shadowed, errors, allowedUnits, deniedUnits uint64
	for _, n := range all {
		allowed, denied, shadowed = allowed+n.Allowed(), denied+n.Denied.Load(), shadowed+n.Shadowed.Load()
		errors, allowedUnits, deniedUnits = errors+n.Errors.Load(), allowedUnits+n.AllowedUnits(), deniedUnits+n.DeniedUnits.Load()
	}
	e.counter(decisionsDesc, allowed, rule, "allowed", "enforce")
	e.counter(decisionsDesc, denied, rule, "denied", "enforce")
	e.counter(decisionsDesc, shadowed, rule, "denied", "shadow")
	e.counter(decisionsDesc, errors, rule, "error", "enforce")
	e.counter(unitsDesc, allowedUnits, rule, "allowed")
	e.counter(unitsDesc, deniedUnits, rule, "denied")
}

func (e exporter) rule(n *engine.RuleStats) {
	e.decisions(n.Rule, n)
	if n.Rule != "" { // ad-hoc limits differ by request
		e.gauge(limitDesc, n.Limit, n.Rule)
	}
	if n.HasPermits {
		e.counter(releasedDesc, n.Permits.Released.Load(), n.Rule)
		e.counter(notHeldDesc, n.Permits.NotHeld.Load(), n.Rule)
		e.counter(heldIDsDesc, n.Permits.HeldIDs.Load(), n.Rule)
	}
}

// memoryCollector exports the statistics of a memory store.
func memoryCollector(memory *penstock.Memory) collector {
	return func(to exporter) {
		stats := memory.Stats()
		to.gauge(keysDesc, int64(stats.Keys))
		to.gauge(requestKeysDesc, int64(stats.UntrustedKeys))
		to.gauge(bytesDesc, stats.Bytes)
		to.counter(overflowDesc, uint64(stats.OverflowDecisions))
	}
}

// listenerCollector exports the connections and certificates of the listeners.
func listenerCollector(listeners []*listener) collector {
	return func(to exporter) {
		for _, l := range listeners {
			to.gauge(connectionsDesc, int64(l.socket.Active()), l.name)
			to.counter(refusedDesc, uint64(l.socket.Refused()), l.name)
			if l.certificate != nil {
				to.gauge(expiryDesc, l.certificate.expires().Unix(), l.name)
			}
		}
	}
}

// quotaCollector exports what the rate limit quota service does.
func quotaCollector(quotas *rlqs.Service) collector {
	return func(to exporter) {
		stats := quotas.Stats()
		to.gauge(streamsDesc, int64(stats.Streams))
		to.gauge(bucketsDesc, int64(stats.Buckets))
		to.counter(assignedDesc, stats.Assigned)
	}
}
