package server

import (
	"net/http"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are what the server tells about itself. No label is ever a key: there are
// as many keys as there are users.
type metrics struct {
	registry         *prometheus.Registry
	decisionDuration *prometheus.HistogramVec
	storeDuration    *prometheus.HistogramVec
	storeErrors      *prometheus.CounterVec
	configLoads      *prometheus.CounterVec

	// Of stores that can be away:
	decisionsBySource *prometheus.CounterVec
	leaseUnits        prometheus.Counter
	storeTransitions  *prometheus.CounterVec
	stateLosses       *prometheus.CounterVec

	// Of a store that is kept in a file:
	snapshots    *prometheus.CounterVec
	snapshotTime prometheus.Gauge
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		decisionDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "penstock_decision_duration_seconds",
			Help:    "How long a door took to decide what came together.",
			Buckets: prometheus.ExponentialBuckets(1e-6, 4, 10), // to 260 ms
		}, []string{"door"}),
		storeDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "penstock_store_duration_seconds",
			Help:    "How long the store took for one call.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 2, 12), // to 100 ms
		}, []string{"store", "op"}),
		storeErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_store_errors_total",
			Help: "Calls that the store could not decide.",
		}, []string{"store"}),
		configLoads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_config_loads_total",
			Help: "How often the rules were read, and whether they could be used.",
		}, []string{"result"}),
		decisionsBySource: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_source_decisions_total",
			Help: "Decisions, by who made them.",
		}, []string{"source"}),
		leaseUnits: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "penstock_lease_units_total",
			Help: "Units that were taken ahead and spent here.",
		}),
		storeTransitions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_store_changes_total",
			Help: "How often a shard of the store was given up, and was back.",
		}, []string{"store", "state"}),
		stateLosses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_store_state_losses_total",
			Help: "How often the store was found to have lost what it counted, or some of it.",
		}, []string{"store", "reason"}),
		snapshots: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "penstock_snapshots_total",
			Help: "How often counts were saved, and whether they could be.",
		}, []string{"result"}),
		snapshotTime: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "penstock_snapshot_timestamp_seconds",
			Help: "When counts were last saved.",
		}),
	}
	m.registry.MustRegister(m.decisionDuration, m.storeDuration, m.storeErrors, m.configLoads,
		collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// handler answers Prometheus.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// observeLatency returns what a door is to call with the durations of its decisions.
func (m *metrics) observeLatency(door string) func(time.Duration) {
	durations := m.decisionDuration.WithLabelValues(door)
	return func(d time.Duration) { durations.Observe(d.Seconds()) }
}

// countConfigLoad counts a reading of the rules.
func (m *metrics) countConfigLoad(err error) {
	m.configLoads.WithLabelValues(resultOf(err)).Inc()
}

// countSnapshot counts an attempt to save what is in memory.
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
	decisionsDesc   = prometheus.NewDesc("penstock_decisions_total", "Decisions, by rule. In shadow, a denial is one that would have been.", []string{"policy", "outcome", "mode"}, nil)
	unitsDesc       = prometheus.NewDesc("penstock_cost_units_total", "Units that were asked for, by rule.", []string{"policy", "outcome"}, nil)
	limitDesc       = prometheus.NewDesc("penstock_limit_units", "The most that a rule grants at once.", []string{"policy"}, nil)
	keysDesc        = prometheus.NewDesc("penstock_keys", "Keys in memory.", nil, nil)
	bytesDesc       = prometheus.NewDesc("penstock_state_bytes", "Memory that sliding logs and rolling windows occupy.", nil, nil)
	overflowDesc    = prometheus.NewDesc("penstock_shared_decisions_total", "Decisions by a bucket that new keys share, because memory is full of keys.", nil, nil)
	connectionsDesc = prometheus.NewDesc("penstock_connections", "Open connections.", []string{"door"}, nil)
	refusedDesc     = prometheus.NewDesc("penstock_connections_refused_total", "Connections that were closed at once, because there were too many.", []string{"door"}, nil)
	expiryDesc      = prometheus.NewDesc("penstock_certificate_expiry_timestamp_seconds", "When a door's certificate expires.", []string{"door"}, nil)
)

// engineCollector tells what a judge has decided.
type engineCollector struct{ engine *engine.Engine }

func (c engineCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- decisionsDesc
	ch <- unitsDesc
	ch <- limitDesc
}

func (c engineCollector) Collect(ch chan<- prometheus.Metric) {
	for _, n := range c.engine.RuleCounters() {
		counter := func(d *prometheus.Desc, v uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{n.Rule}, labels...)...)
		}
		counter(decisionsDesc, n.Allowed.Load(), "allowed", "enforce")
		counter(decisionsDesc, n.Denied.Load(), "denied", "enforce")
		counter(decisionsDesc, n.Shadowed.Load(), "denied", "shadow")
		counter(decisionsDesc, n.Errors.Load(), "error", "enforce")
		counter(unitsDesc, n.AllowedUnits.Load(), "allowed")
		counter(unitsDesc, n.DeniedUnits.Load(), "denied")
		if n.Rule != "" { // limits that requests bring are as many as they like
			ch <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(n.Limit), n.Rule)
		}
	}
}

// memoryCollector tells what a store in memory holds.
type memoryCollector struct{ memory *penstock.Memory }

func (s memoryCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- keysDesc
	ch <- bytesDesc
	ch <- overflowDesc
}

func (s memoryCollector) Collect(ch chan<- prometheus.Metric) {
	stats := s.memory.Stats()
	ch <- prometheus.MustNewConstMetric(keysDesc, prometheus.GaugeValue, float64(stats.Keys))
	ch <- prometheus.MustNewConstMetric(bytesDesc, prometheus.GaugeValue, float64(stats.Bytes))
	ch <- prometheus.MustNewConstMetric(overflowDesc, prometheus.CounterValue, float64(stats.OverflowDecisions))
}

// listenerCollector tells who is inside.
type listenerCollector struct{ listeners []*listener }

func (s listenerCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- connectionsDesc
	ch <- refusedDesc
	ch <- expiryDesc
}

func (s listenerCollector) Collect(ch chan<- prometheus.Metric) {
	for _, o := range s.listeners {
		ch <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(o.socket.Active()), o.name)
		ch <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(o.socket.Refused()), o.name)
		if o.certificate != nil {
			expiry := float64(o.certificate.expires().Unix())
			ch <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, expiry, o.name)
		}
	}
}
