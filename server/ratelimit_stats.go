package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/connlimit"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/penstock-io/penstock/server/rules"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// openStats serves statistics in the names of envoyproxy/ratelimit, without a token, as its
// scrapers expect. Labels are parts of rules, never values of requests.
func (s *Server) openStats(ctx context.Context) error {
	stats := s.config.role().Stats
	if stats.PrometheusAddr == "" {
		return nil
	}
	registry := prometheus.NewRegistry()
	registerer := prometheus.WrapRegistererWith(stats.labels(), registry)
	registerer.MustRegister(ratelimitCollector{s}, s.metrics.ratelimitTime)
	var tcp net.ListenConfig
	socket, err := tcp.Listen(ctx, "tcp", stats.PrometheusAddr)
	if err != nil {
		return fmt.Errorf("PROMETHEUS_ADDR: %w", err)
	}
	mux := http.NewServeMux()
	mux.Handle(stats.PrometheusPath, promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	l := &listener{name: "prometheus", socket: connlimit.New(socket, s.connLimits("prometheus", false)), api: httpserver.New(mux, httpserver.Options{Log: s.log})}
	l.listener = l.socket
	s.listeners = append(s.listeners, l)
	s.log.Info("listening", "listener", l.name, "addr", socket.Addr().String(), "tls", false)
	return nil
}

// labels returns the tags as labels.
func (r *RatelimitStats) labels() prometheus.Labels {
	labels := prometheus.Labels{}
	for _, tag := range r.Tags {
		labels[tag.Name] = tag.Value
	}
	return labels
}

const ratelimitMethod = "ShouldRateLimit"

func newRatelimitTime() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    "ratelimit_service_response_time_seconds",
		Help:    "Time of calls by method.",
		Buckets: prometheus.ExponentialBuckets(1e-4, 2.5, 12), // to 2.4 s
	}, []string{"grpc_method"})
}

// observeRPC records the time of a call, for both kinds of statistics.
func (m *metrics) observeRPC(listener string) func(time.Duration) {
	own, theirs := m.observeLatency(listener), m.ratelimitTime.WithLabelValues(ratelimitMethod)
	return func(d time.Duration) {
		own(d)
		theirs.Observe(d.Seconds())
	}
}

func ratelimitDesc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("ratelimit_service_"+name, help, labels, nil)
}

var (
	hitDescs = map[string]*prometheus.Desc{}

	hitKinds = []struct {
		name string
		of   func(*engine.Hits) uint64
	}{
		{"total_hits", func(h *engine.Hits) uint64 { return h.Total.Load() }},
		{"over_limit", func(h *engine.Hits) uint64 { return h.OverLimit.Load() }},
		{"near_limit", func(h *engine.Hits) uint64 { return h.NearLimit.Load() }},
		{"within_limit", func(h *engine.Hits) uint64 { return h.WithinLimit.Load() }},
		{"over_limit_with_local_cache", func(h *engine.Hits) uint64 { return h.OverLimitCached.Load() }},
		{"shadow_mode", func(h *engine.Hits) uint64 { return h.Shadow.Load() }},
	}

	domainNotFoundDesc = ratelimitDesc("rate_limit_domain_not_found", "Requests to domains without rules.")
	callErrorsDesc     = ratelimitDesc("should_rate_limit_error", "Calls without a decision of Redis, by kind.", "err_type")
	callsDesc          = ratelimitDesc("total_requests", "Calls by method.", "grpc_method")
	loadedDesc         = ratelimitDesc("config_load_success", "Loads of the rules.")
	notLoadedDesc      = ratelimitDesc("config_load_error", "Failed loads of the rules.")
)

func init() {
	for _, kind := range hitKinds {
		hitDescs[kind.name] = ratelimitDesc("rate_limit_"+kind.name, "Hits by rule, as envoyproxy/ratelimit counts them.", "domain", "key1", "key2")
	}
}

// A ratelimitCollector exports statistics in the names of envoyproxy/ratelimit.
type ratelimitCollector struct{ server *Server }

// Describe implements [prometheus.Collector].
func (c ratelimitCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range hitDescs {
		ch <- d
	}
	for _, d := range []*prometheus.Desc{domainNotFoundDesc, callErrorsDesc, callsDesc, loadedDesc, notLoadedDesc} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c ratelimitCollector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	m := c.server.metrics
	for key, sums := range c.hits() {
		for i, kind := range hitKinds {
			counter(hitDescs[kind.name], float64(sums[i]), key[:]...)
		}
	}
	for _, n := range c.server.engine.UnmatchedCounters() {
		if n.Domain == "" {
			counter(domainNotFoundDesc, float64(n.Count))
		}
	}
	service := 0.
	for _, reason := range []requestlog.Reason{requestlog.NoRules, requestlog.Descriptors, requestlog.Malformed} {
		service += valueOf(m.invalidRequests.WithLabelValues("grpc", string(reason)))
	}
	counter(callErrorsDesc, service, "service_error")
	counter(callErrorsDesc, valueOf(m.storeErrors.WithLabelValues(redisName)), "redis_error")
	var calls dto.Metric
	if h, ok := m.ratelimitTime.WithLabelValues(ratelimitMethod).(prometheus.Metric); ok && h.Write(&calls) == nil {
		counter(callsDesc, float64(calls.GetHistogram().GetSampleCount()), ratelimitMethod)
	}
	counter(loadedDesc, valueOf(m.configLoads.WithLabelValues("success")))
	counter(notLoadedDesc, valueOf(m.configLoads.WithLabelValues("failure")))
}

func valueOf(c prometheus.Counter) float64 {
	var m dto.Metric
	if c.Write(&m) != nil {
		return 0
	}
	return m.GetCounter().GetValue()
}

// hits returns the hits of all rules by domain and the first two nodes. As there, deeper nodes
// have no label, so their rules are added up.
func (c ratelimitCollector) hits() map[[3]string][6]uint64 {
	sums := map[[3]string][6]uint64{}
	set := c.server.engine.Rules()
	if set == nil {
		return sums
	}
	byName := map[string]*rules.Rule{}
	for _, r := range set.Rules() {
		byName[r.Name] = r
	}
	for _, n := range c.server.engine.RuleCounters() {
		r := byName[n.Rule]
		if r == nil {
			continue
		}
		key := ratelimitLabels(r)
		sum := sums[key]
		for i, kind := range hitKinds {
			sum[i] += kind.of(&n.Hits)
		}
		sums[key] = sum
	}
	return sums
}

// ratelimitLabels returns the labels of a rule: each node as its key, with an underscore before
// its value.
func ratelimitLabels(r *rules.Rule) (labels [3]string) {
	domain, nodes := r.Path()
	labels[0] = domain
	for i, n := range nodes[:min(len(nodes), 2)] {
		if labels[i+1] = n.Key; n.Value != "" {
			labels[i+1] += "_" + n.Value
		}
	}
	return labels
}
