package server

import (
	"context"
	"fmt"
	"net"
	"net/http"
	rtmetrics "runtime/metrics"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/connlimit"
	"github.com/penstock-io/penstock/server/internal/httpserver"
	"github.com/penstock-io/penstock/server/internal/requestlog"
	"github.com/penstock-io/penstock/server/rules"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// openStats serves statistics in the names of envoyproxy/ratelimit, without a token, as its
// scrapers expect. Labels are parts of rules, and values of requests where rules ask for them.
func (s *Server) openStats(ctx context.Context) error {
	stats := s.config.role().Stats
	if stats.PrometheusAddr == "" {
		return nil
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), newGCFraction(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registerer := prometheus.WrapRegistererWith(stats.labels(), registry)
	registerer.MustRegister(ratelimitCollector{s, &labelTotals{}}, s.metrics.ratelimitTime)
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

// newGCFraction returns a metric that the dashboard of Envoy Gateway asks for, and that the
// collector of Go's own metrics no longer has.
func newGCFraction() prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "go_memstats_gc_cpu_fraction",
		Help: "Part of the available processor time that garbage collection has used since the start.",
	}, func() float64 {
		times := []rtmetrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/cpu/classes/total:cpu-seconds"}}
		rtmetrics.Read(times)
		if times[1].Value.Float64() == 0 { // before the first collection
			return 0
		}
		return times[0].Value.Float64() / times[1].Value.Float64()
	})
}

// labels returns the tags as labels.
func (r *RatelimitStats) labels() prometheus.Labels {
	labels := prometheus.Labels{}
	for _, tag := range r.Tags {
		labels[tag.Name] = tag.Value
	}
	return labels
}

// ratelimitLabelNames are the labels that metrics have without tags.
var ratelimitLabelNames = []string{"domain", "key1", "key2", "err_type", "grpc_method", "le"}

// warnOfMetricValues is the engine's OnMetricValues.
func (s *Server) warnOfMetricValues(rule string) {
	s.log.Warn("metrics tell no further values: hits with other values are those of the rule",
		"rule", rule, "values", engine.MaxMetricValues)
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

	// The default mapping has no names for these, so they have those of statsd with underscores.
	localCacheDescs = map[string]*prometheus.Desc{
		"hitCount":    prometheus.NewDesc("ratelimit_localcache_hitCount", "Descriptors denied without asking Redis.", nil, nil),
		"missCount":   prometheus.NewDesc("ratelimit_localcache_missCount", "Descriptors for which Redis was asked.", nil, nil),
		"lookupCount": prometheus.NewDesc("ratelimit_localcache_lookupCount", "Descriptors looked up in the local cache.", nil, nil),
	}
)

func init() {
	for _, kind := range hitKinds {
		hitDescs[kind.name] = ratelimitDesc("rate_limit_"+kind.name, "Hits by rule, as envoyproxy/ratelimit counts them.", "domain", "key1", "key2")
	}
}

// A ratelimitCollector exports statistics in the names of envoyproxy/ratelimit.
type ratelimitCollector struct {
	server   *Server
	byLabels *labelTotals // for Prometheus; nil for statsd, which has all nodes
}

// Describe implements [prometheus.Collector].
func (c ratelimitCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range hitDescs {
		ch <- d
	}
	for _, d := range []*prometheus.Desc{domainNotFoundDesc, callErrorsDesc, callsDesc, loadedDesc, notLoadedDesc} {
		ch <- d
	}
	for _, d := range localCacheDescs {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c ratelimitCollector) Collect(ch chan<- prometheus.Metric) {
	counter := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	for labels, sums := range c.byLabels.read(c.hits) {
		for i, kind := range hitKinds {
			counter(hitDescs[kind.name], sums[i], labels[:]...)
		}
	}
	t := c.totals()
	counter(domainNotFoundDesc, t.domainNotFound)
	counter(callErrorsDesc, t.serviceErrors, "service_error")
	counter(callErrorsDesc, t.redisErrors, "redis_error")
	counter(callsDesc, t.times.GetSampleCount(), ratelimitMethod)
	counter(loadedDesc, t.loads)
	counter(notLoadedDesc, t.failedLoads)
	for name, v := range c.localCache() {
		ch <- prometheus.MustNewConstMetric(localCacheDescs[name], prometheus.GaugeValue, float64(v))
	}
}

// localCache returns the gauges of the local cache by their names, as there only if it is on.
func (c ratelimitCollector) localCache() map[string]uint64 {
	if c.server.config.role().LocalCacheBytes == 0 {
		return nil
	}
	hits, misses := c.server.engine.CacheLookups()
	return map[string]uint64{"hitCount": hits, "missCount": misses, "lookupCount": hits + misses}
}

// ratelimitTotals are the statistics that are not those of a rule.
type ratelimitTotals struct {
	domainNotFound, serviceErrors, redisErrors, loads, failedLoads uint64

	times *dto.Histogram // of calls
}

func (c ratelimitCollector) totals() (t ratelimitTotals) {
	m := c.server.metrics
	for _, n := range c.server.engine.UnmatchedCounters() {
		if n.Domain == "" {
			t.domainNotFound = n.Count
		}
	}
	for _, reason := range []requestlog.Reason{requestlog.NoRules, requestlog.Descriptors, requestlog.Malformed} {
		t.serviceErrors += valueOf(m.invalidRequests.WithLabelValues("grpc", string(reason)))
	}
	t.redisErrors = valueOf(m.storeErrors.WithLabelValues(redisName))
	t.loads, t.failedLoads = valueOf(m.configLoads.WithLabelValues("success")), valueOf(m.configLoads.WithLabelValues("failure"))
	var calls dto.Metric
	if h, ok := m.ratelimitTime.WithLabelValues(ratelimitMethod).(prometheus.Metric); ok && h.Write(&calls) == nil {
		t.times = calls.GetHistogram()
	}
	return t
}

func valueOf(c prometheus.Counter) uint64 {
	var m dto.Metric
	if c.Write(&m) != nil {
		return 0
	}
	return uint64(m.GetCounter().GetValue())
}

// hitSums are hits of each kind, in the order of hitKinds.
type hitSums [6]uint64

func (s hitSums) plus(h *engine.Hits) hitSums {
	for i, kind := range hitKinds {
		s[i] += kind.of(h)
	}
	return s
}

// hits returns the hits of all rules by domain and nodes, with zero bytes between them. Where rules
// ask for values of requests, nodes have those.
func (c ratelimitCollector) hits() map[string]hitSums {
	sums := map[string]hitSums{}
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
		path := ratelimitPath(r)
		key := strings.Join(path, "\x00")
		sums[key] = sums[key].plus(&n.Hits)
		for values, h := range n.HitsByValue.All() {
			key := path[0] + "\x00" + strings.ToValidUTF8(values, "\uFFFD")
			sums[key] = sums[key].plus(h)
		}
	}
	return sums
}

// labelTotals are the hits by domain and the first two nodes. As there, deeper nodes have no label, so
// their rules are added up: by what they have grown, so that the sum does not fall when a reload removes
// one of them, which Prometheus would take for a restart and count anew.
type labelTotals struct {
	mu     sync.Mutex
	last   map[string]hitSums // by path, as in ratelimitCollector.hits
	totals map[[3]string]hitSums
}

// read returns the totals of all labels that have rules.
func (t *labelTotals) read(hits func() map[string]hitSums) map[[3]string]hitSums {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, totals := hits(), map[[3]string]hitSums{}
	for path, sums := range now {
		var labels [3]string
		copy(labels[:], strings.Split(path, "\x00"))
		total, ok := totals[labels]
		if !ok {
			total = t.totals[labels]
		}
		for i := range total {
			total[i] += since(t.last[path][i], sums[i])
		}
		totals[labels] = total
	}
	t.last, t.totals = now, totals
	return totals
}

// ratelimitPath returns the domain of a rule and its nodes: each as its key, with an underscore before
// its value.
func ratelimitPath(r *rules.Rule) []string {
	domain, nodes := r.Path()
	path := []string{domain}
	for _, n := range nodes {
		text := n.Key
		if n.Value != "" {
			text += "_" + n.Value
		}
		path = append(path, text)
	}
	return path
}
