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
		storeErrors: newCounterVec("penstock_store_errors_total", "Store calls that failed because the store was unavailable.", "store"),
		configLoads: newCounterVec("penstock_config_loads_total", "Loads of the rule files by result, success or failure.", "result"),
		rules: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_rules",
			Help: "Rules in force.",
		}),
		invalidRequests: newCounterVec("penstock_invalid_requests_total", "Requests that make no sense, by API and reason.", "api", "reason"),
		actions:         newCounterVec("penstock_admin_actions_total", "Actions that undo a limit, on any API, by action and result: done, refused or failed.", "action", "result"),
		auditErrors: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_audit_errors_total",
			Help: "Lines that could not be written to the audit log.",
		}),
		decisionsBySource: newCounterVec("penstock_decisions_by_source_total", "Decisions by source.", "source"),
		leaseUnits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_lease_units_total",
			Help: "Leased units that were spent locally.",
		}),
		storeTransitions: newCounterVec("penstock_store_transitions_total", "Transitions of store shards to down and up.", "store", "state"),
		stateLosses:      newCounterVec("penstock_store_state_losses_total", "Losses of state that were detected in the store, by reason.", "store", "reason"),
		snapshots:        newCounterVec("penstock_snapshots_total", "Snapshots by result, success or failure.", "result"),
		snapshotTime: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_snapshot_timestamp_seconds",
			Help: "Unix time of the last successful snapshot.",
		}),
	}
	for _, result := range []string{"success", "failure"} {
		m.configLoads.WithLabelValues(result) // so that it begins at 0, and the first failure is an increase
	}
	for _, action := range audit.Actions {
		for _, result := range audit.Results {
			m.actions.WithLabelValues(action, string(result)) // so that it begins at 0
		}
	}
	m.registry.MustRegister(m.decisionDuration, m.storeDuration, m.storeErrors, m.configLoads, m.rules, m.invalidRequests,
		m.actions, m.auditErrors,
		collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func newCounterVec(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
}

// handler serves the metrics.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
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

// engineCollector exports the decision counters of the rules.
type engineCollector struct{ engine *engine.Engine }

func (c engineCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- decisionsDesc
	ch <- unitsDesc
	ch <- limitDesc
	ch <- releasedDesc
	ch <- notHeldDesc
	ch <- heldIDsDesc
	ch <- unmatchedDesc
	ch <- refusalsDesc
	ch <- storeBytesDesc
}

func (c engineCollector) Collect(ch chan<- prometheus.Metric) {
	c.collectRequestLimits(ch)
	for _, n := range c.engine.UnmatchedCounters() {
		ch <- prometheus.MustNewConstMetric(unmatchedDesc, prometheus.CounterValue, float64(n.Count), n.Domain)
	}
	for _, n := range c.engine.RuleCounters() {
		counter := func(d *prometheus.Desc, v uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{n.Rule}, labels...)...)
		}
		counter(decisionsDesc, n.Allowed(), "allowed", "enforce")
		counter(decisionsDesc, n.Denied.Load(), "denied", "enforce")
		counter(decisionsDesc, n.Shadowed.Load(), "denied", "shadow")
		counter(decisionsDesc, n.Errors.Load(), "error", "enforce")
		counter(unitsDesc, n.AllowedUnits(), "allowed")
		counter(unitsDesc, n.DeniedUnits.Load(), "denied")
		if n.Rule != "" { // ad-hoc limits differ by request
			ch <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(n.Limit), n.Rule)
		}
		if n.HasPermits {
			counter(releasedDesc, n.Permits.Released.Load())
			counter(notHeldDesc, n.Permits.NotHeld.Load())
			counter(heldIDsDesc, n.Permits.HeldIDs.Load())
		}
	}
}

func (c engineCollector) collectRequestLimits(ch chan<- prometheus.Metric) {
	for reason, n := range c.engine.RequestLimits().Refused() {
		ch <- prometheus.MustNewConstMetric(refusalsDesc, prometheus.CounterValue, float64(n), reason.String())
	}
	ch <- prometheus.MustNewConstMetric(storeBytesDesc, prometheus.GaugeValue, float64(c.engine.RequestLimits().StoreBytes()))
}

// memoryCollector exports the statistics of a memory store.
type memoryCollector struct{ memory *penstock.Memory }

func (s memoryCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- keysDesc
	ch <- requestKeysDesc
	ch <- bytesDesc
	ch <- overflowDesc
}

func (s memoryCollector) Collect(ch chan<- prometheus.Metric) {
	stats := s.memory.Stats()
	ch <- prometheus.MustNewConstMetric(keysDesc, prometheus.GaugeValue, float64(stats.Keys))
	ch <- prometheus.MustNewConstMetric(requestKeysDesc, prometheus.GaugeValue, float64(stats.UntrustedKeys))
	ch <- prometheus.MustNewConstMetric(bytesDesc, prometheus.GaugeValue, float64(stats.Bytes))
	ch <- prometheus.MustNewConstMetric(overflowDesc, prometheus.CounterValue, float64(stats.OverflowDecisions))
}

// listenerCollector exports the connections and certificates of the listeners.
type listenerCollector struct{ listeners []*listener }

func (s listenerCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- connectionsDesc
	ch <- refusedDesc
	ch <- expiryDesc
}

func (s listenerCollector) Collect(ch chan<- prometheus.Metric) {
	for _, l := range s.listeners {
		ch <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(l.socket.Active()), l.name)
		ch <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(l.socket.Refused()), l.name)
		if l.certificate != nil {
			expiry := float64(l.certificate.expires().Unix())
			ch <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, expiry, l.name)
		}
	}
}

// quotaCollector exports what the rate limit quota service does.
type quotaCollector struct{ quotas *rlqs.Service }

func (c quotaCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- streamsDesc
	ch <- bucketsDesc
	ch <- assignedDesc
}

func (c quotaCollector) Collect(ch chan<- prometheus.Metric) {
	stats := c.quotas.Stats()
	ch <- prometheus.MustNewConstMetric(streamsDesc, prometheus.GaugeValue, float64(stats.Streams))
	ch <- prometheus.MustNewConstMetric(bucketsDesc, prometheus.GaugeValue, float64(stats.Buckets))
	ch <- prometheus.MustNewConstMetric(assignedDesc, prometheus.CounterValue, float64(stats.Assigned))
}
