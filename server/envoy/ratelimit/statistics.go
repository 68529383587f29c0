package ratelimit

import (
	"net/http"
	rtmetrics "runtime/metrics"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/hitcount"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/histogram"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// A Source is what statistics are read from.
type Source struct {
	Engine *engine.Engine

	ServiceErrors      []prometheus.Counter // calls that made no sense
	RedisErrors        prometheus.Counter
	Loads, FailedLoads prometheus.Counter // of the rules
}

// Statistics are those of the daemon in the names of envoyproxy/ratelimit.
type Statistics struct {
	role   *Role
	source Source
	times  prometheus.Histogram // of calls

	byLabels labelTotals // for Prometheus; statsd has all nodes
}

// NewStatistics returns the statistics of a role.
func NewStatistics(role *Role, source Source) *Statistics {
	return &Statistics{role: role, source: source, times: prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:        "ratelimit_service_response_time_seconds",
		Help:        "Time of calls by method.",
		Buckets:     prometheus.ExponentialBuckets(1e-4, 2.5, 12), // to 2.4 s
		ConstLabels: prometheus.Labels{"grpc_method": method},
	})}
}

const method = "ShouldRateLimit"

// ObserveCall records the time of a call.
func (s *Statistics) ObserveCall(d time.Duration) { s.times.Observe(d.Seconds()) }

// Handler serves the statistics for Prometheus. Labels are parts of rules, and values of requests
// where rules ask for them.
func (s *Statistics) Handler() http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), newGCFraction(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	tags := prometheus.Labels{}
	for _, tag := range s.role.Stats.Tags {
		tags[tag.label()] = strings.ToValidUTF8(tag.Value, "\uFFFD")
	}
	prometheus.WrapRegistererWith(tags, registry).MustRegister(collector{s}, s.times)
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
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

// labelNames are the labels that metrics have without tags.
var labelNames = []string{"domain", "key1", "key2", "err_type", "grpc_method", "le"}

// hitKinds are the counters of each rule.
var hitKinds = [...]struct {
	name string
	desc *prometheus.Desc
	of   func(*hitcount.Hits) uint64
}{
	{"total_hits", hitDesc("total_hits"), func(h *hitcount.Hits) uint64 { return h.Total.Load() }},
	{"over_limit", hitDesc("over_limit"), func(h *hitcount.Hits) uint64 { return h.OverLimit.Load() }},
	{"near_limit", hitDesc("near_limit"), func(h *hitcount.Hits) uint64 { return h.NearLimit.Load() }},
	{"within_limit", hitDesc("within_limit"), func(h *hitcount.Hits) uint64 { return h.WithinLimit.Load() }},
	{cachedKind, hitDesc(cachedKind), func(h *hitcount.Hits) uint64 { return h.OverLimitCached.Load() }},
	{"shadow_mode", hitDesc("shadow_mode"), func(h *hitcount.Hits) uint64 { return h.Shadow.Load() }},
}

func hitDesc(name string) *prometheus.Desc {
	return prometheus.NewDesc("ratelimit_service_rate_limit_"+name, "Hits by rule, as envoyproxy/ratelimit counts them.",
		[]string{"domain", "key1", "key2"}, nil)
}

// totals are the counters that are not those of a rule.
var totals = []struct {
	statsd string
	desc   *prometheus.Desc
	of     func(*Statistics) uint64
}{
	// Domains without rules are one, because callers choose their names.
	{"ratelimit.service.rate_limit.unknown.domain_not_found", totalDesc("rate_limit_domain_not_found", "Requests to domains without rules.", nil), (*Statistics).unknownDomains},
	{"ratelimit.service.call.should_rate_limit.service_error", callErrorDesc("service_error"), func(s *Statistics) uint64 { return sum(s.source.ServiceErrors...) }},
	{"ratelimit.service.call.should_rate_limit.redis_error", callErrorDesc("redis_error"), func(s *Statistics) uint64 { return sum(s.source.RedisErrors) }},
	{"ratelimit.service.global_shadow_mode", totalDesc("global_shadow_mode", "Requests allowed by SHADOW_MODE only.", nil), func(s *Statistics) uint64 { return s.source.Engine.Shadowed.Load() }},
	{"ratelimit_server." + method + ".total_requests", totalDesc("total_requests", "Calls by method.", prometheus.Labels{"grpc_method": method}), func(s *Statistics) uint64 { return s.histogram().GetSampleCount() }},
	{"ratelimit.service.config_load_success", totalDesc("config_load_success", "Loads of the rules.", nil), func(s *Statistics) uint64 { return sum(s.source.Loads) }},
	{"ratelimit.service.config_load_error", totalDesc("config_load_error", "Failed loads of the rules.", nil), func(s *Statistics) uint64 { return sum(s.source.FailedLoads) }},
}

func totalDesc(name, help string, labels prometheus.Labels) *prometheus.Desc {
	return prometheus.NewDesc("ratelimit_service_"+name, help, nil, labels)
}

func callErrorDesc(kind string) *prometheus.Desc {
	return totalDesc("should_rate_limit_error", "Calls without a decision of Redis, by kind.", prometheus.Labels{"err_type": kind})
}

// A collector exports statistics to Prometheus.
type collector struct{ *Statistics }

// Describe describes nothing: rules come and go.
func (c collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (c collector) Collect(ch chan<- prometheus.Metric) {
	for labels, sums := range c.byLabels.read(c.hits) {
		for i, kind := range hitKinds {
			ch <- prometheus.MustNewConstMetric(kind.desc, prometheus.CounterValue, float64(sums[i]), labels[:]...)
		}
	}
	for name, sum := range c.cachedByName() {
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, "Hits denied without asking Redis, by its name there.", nil, nil),
			prometheus.CounterValue, float64(sum))
	}
	for _, t := range totals {
		ch <- prometheus.MustNewConstMetric(t.desc, prometheus.CounterValue, float64(t.of(c.Statistics)))
	}
	for name, v := range c.localCache() {
		// The default mapping has no names for these, so they have those of statsd with underscores.
		desc := prometheus.NewDesc("ratelimit_localcache_"+name, localCacheHelp[name], nil, nil)
		ch <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(v))
	}
}

// cachedKind is the counter of hits that the local cache denied.
const cachedKind = "over_limit_with_local_cache"

// cachedByName returns the hits that the local cache denied by the names that they have there: the
// default mapping has no line for those of one key, so each has a metric, which is there once it counts. Those
// of more keys fall under the line for over_limit there, which counts them twice, and have none.
func (s *Statistics) cachedByName() map[string]uint64 {
	cached := map[string]uint64{}
	for path, sums := range s.hits() {
		name := statsdName(path)
		for i, kind := range hitKinds {
			if kind.name == cachedKind && sums[i] > 0 && strings.Count(name, ".") == 1 {
				cached[metricName("ratelimit.service.rate_limit."+name+"."+cachedKind)] += sums[i]
			}
		}
	}
	return cached
}

var localCacheHelp = map[string]string{
	"hitCount":    "Descriptors denied without asking Redis.",
	"missCount":   "Descriptors for which Redis was asked.",
	"lookupCount": "Descriptors looked up in the local cache.",
}

// localCache returns the gauges of the local cache by their names, as there only if it is on.
func (s *Statistics) localCache() map[string]uint64 {
	if s.role.LocalCacheBytes == 0 {
		return nil
	}
	hits, misses := s.source.Engine.Denials.CacheLookups()
	return map[string]uint64{"hitCount": hits, "missCount": misses, "lookupCount": hits + misses}
}

func (s *Statistics) unknownDomains() uint64 {
	for _, n := range s.source.Engine.UnmatchedCounters() {
		if n.Domain == "" {
			return n.Count
		}
	}
	return 0
}

func (s *Statistics) histogram() *dto.Histogram { return histogram.Read(s.times) }

func sum(counters ...prometheus.Counter) (total uint64) {
	for _, c := range counters {
		total += uint64(read(c).GetCounter().GetValue())
	}
	return total
}

// read returns the values of a metric, which are zero if it cannot be read.
func read(m prometheus.Metric) *dto.Metric {
	var values dto.Metric
	_ = m.Write(&values)
	return &values
}

// hitSums are hits of each kind, in the order of hitKinds.
type hitSums [len(hitKinds)]uint64

func (s hitSums) plus(h *hitcount.Hits) hitSums {
	for i, kind := range hitKinds {
		s[i] += kind.of(h)
	}
	return s
}

// hits returns the hits of all rules by domain and nodes, with zero bytes between them. Where rules
// ask for values of requests, nodes have those.
func (s *Statistics) hits() map[string]hitSums {
	sums := map[string]hitSums{}
	set := s.source.Engine.Rules()
	if set == nil {
		return sums
	}
	byName := map[string]*rules.Rule{}
	for _, r := range set.Rules() {
		byName[r.Name] = r
	}
	add := func(domain, path string, h *hitcount.Hits) {
		if s.role.Stats.SanitizeDots {
			path = strings.ReplaceAll(path, ".", "_")
		}
		key := domain + "\x00" + path
		sums[key] = sums[key].plus(h)
	}
	addValues := func(domain string, hits *hitcount.ByValue) {
		for values, h := range hits.All() {
			add(domain, strings.ToValidUTF8(values, "\uFFFD"), h)
		}
	}
	for _, n := range s.source.Engine.RuleStats() {
		r := byName[n.Rule]
		if r == nil {
			continue
		}
		path := pathOf(r)
		add(path[0], strings.Join(path[1:], "\x00"), &n.Hits)
		addValues(path[0], &n.HitsByValue)
	}
	for domain, hits := range s.source.Engine.OwnHits.All() {
		addValues(domain, hits)
	}
	return sums
}

// labelTotals are the hits by domain and the first two nodes. As there, deeper nodes have no label, so
// their rules are added up: by what they have grown, so that the sum does not fall when a reload removes
// one of them, which Prometheus would take for a restart and count anew.
type labelTotals struct {
	mu     sync.Mutex
	last   map[string]hitSums // by path, as in Statistics.hits
	totals map[[3]string]hitSums
}

// read returns the totals of all labels that have rules.
func (t *labelTotals) read(hits func() map[string]hitSums) map[[3]string]hitSums {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, totals := hits(), map[[3]string]hitSums{}
	for path, sums := range now {
		var labels [3]string
		for i, part := range strings.SplitN(path, "\x00", len(labels)+1) {
			if i < len(labels) {
				labels[i] = labelOf(part)
			}
		}
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

// pathOf returns the domain of a rule and its nodes: each as its key, with an underscore before
// its value.
func pathOf(r *rules.Rule) []string {
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
