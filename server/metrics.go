package server

import (
	"net/http"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/judge"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// metrics are what the server tells about itself. No label is ever a key: there are
// as many keys as there are users.
type metrics struct {
	registry      *prometheus.Registry
	doorDuration  *prometheus.HistogramVec
	storeDuration *prometheus.HistogramVec
	storeErrors   *prometheus.CounterVec
	configLoads   *prometheus.CounterVec
}

func newMetrics() *metrics {
	m := &metrics{
		registry: prometheus.NewRegistry(),
		doorDuration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
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
	}
	m.registry.MustRegister(m.doorDuration, m.storeDuration, m.storeErrors, m.configLoads,
		collectors.NewGoCollector(), collectors.NewBuildInfoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// handler answers Prometheus.
func (m *metrics) handler() http.Handler {
	return promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{Registry: m.registry})
}

// took returns what a door is to call with the durations of its decisions.
func (m *metrics) took(door string) func(time.Duration) {
	durations := m.doorDuration.WithLabelValues(door)
	return func(d time.Duration) { durations.Observe(d.Seconds()) }
}

// loaded counts a reading of the rules.
func (m *metrics) loaded(err error) {
	result := "success"
	if err != nil {
		result = "failure"
	}
	m.configLoads.WithLabelValues(result).Inc()
}

var (
	decisionsDesc   = prometheus.NewDesc("penstock_decisions_total", "Decisions, by rule. In shadow, a denial is one that would have been.", []string{"policy", "outcome", "mode"}, nil)
	unitsDesc       = prometheus.NewDesc("penstock_cost_units_total", "Units that were asked for, by rule.", []string{"policy", "outcome"}, nil)
	limitDesc       = prometheus.NewDesc("penstock_limit_units", "The most that a rule grants at once.", []string{"policy"}, nil)
	keysDesc        = prometheus.NewDesc("penstock_keys", "Keys in memory.", nil, nil)
	bytesDesc       = prometheus.NewDesc("penstock_state_bytes", "Memory that sliding logs and rolling windows occupy.", nil, nil)
	sharedDesc      = prometheus.NewDesc("penstock_shared_decisions_total", "Decisions by a bucket that new keys share, because memory is full of keys.", nil, nil)
	connectionsDesc = prometheus.NewDesc("penstock_connections", "Open connections.", []string{"door"}, nil)
	refusedDesc     = prometheus.NewDesc("penstock_connections_refused_total", "Connections that were closed at once, because there were too many.", []string{"door"}, nil)
	expiryDesc      = prometheus.NewDesc("penstock_certificate_expiry_timestamp_seconds", "When a door's certificate expires.", []string{"door"}, nil)
)

// counts tells what a judge has decided.
type counts struct{ judge *judge.Judge }

func (c counts) Describe(ch chan<- *prometheus.Desc) {
	ch <- decisionsDesc
	ch <- unitsDesc
	ch <- limitDesc
}

func (c counts) Collect(ch chan<- prometheus.Metric) {
	for _, n := range c.judge.Counts() {
		counter := func(d *prometheus.Desc, v uint64, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), append([]string{n.Policy}, labels...)...)
		}
		counter(decisionsDesc, n.Allowed.Load(), "allowed", "enforce")
		counter(decisionsDesc, n.Denied.Load(), "denied", "enforce")
		counter(decisionsDesc, n.Shadowed.Load(), "denied", "shadow")
		counter(decisionsDesc, n.Errors.Load(), "error", "enforce")
		counter(unitsDesc, n.AllowedUnits.Load(), "allowed")
		counter(unitsDesc, n.DeniedUnits.Load(), "denied")
		if n.Policy != "" { // limits that requests bring are as many as they like
			ch <- prometheus.MustNewConstMetric(limitDesc, prometheus.GaugeValue, float64(n.Limit), n.Policy)
		}
	}
}

// memoryStats tells what a store in memory holds.
type memoryStats struct{ memory *penstock.Memory }

func (s memoryStats) Describe(ch chan<- *prometheus.Desc) {
	ch <- keysDesc
	ch <- bytesDesc
	ch <- sharedDesc
}

func (s memoryStats) Collect(ch chan<- prometheus.Metric) {
	stats := s.memory.Stats()
	ch <- prometheus.MustNewConstMetric(keysDesc, prometheus.GaugeValue, float64(stats.Keys))
	ch <- prometheus.MustNewConstMetric(bytesDesc, prometheus.GaugeValue, float64(stats.Bytes))
	ch <- prometheus.MustNewConstMetric(sharedDesc, prometheus.CounterValue, float64(stats.Shared))
}

// doorStats tells who is inside.
type doorStats struct{ doors []*opening }

func (s doorStats) Describe(ch chan<- *prometheus.Desc) {
	ch <- connectionsDesc
	ch <- refusedDesc
	ch <- expiryDesc
}

func (s doorStats) Collect(ch chan<- prometheus.Metric) {
	for _, o := range s.doors {
		ch <- prometheus.MustNewConstMetric(connectionsDesc, prometheus.GaugeValue, float64(o.entrance.Inside()), o.name)
		ch <- prometheus.MustNewConstMetric(refusedDesc, prometheus.CounterValue, float64(o.entrance.Refused()), o.name)
		if o.certificate != nil {
			expiry := float64(o.certificate.expires().Unix())
			ch <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, expiry, o.name)
		}
	}
}
