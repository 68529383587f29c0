package server

import (
	"context"
	"maps"
	"regexp"
	"strings"
	"time"

	"github.com/penstock-io/penstock/server/internal/statsd"
	dto "github.com/prometheus/client_model/go"
)

// A statsdSink sends the statistics of envoyproxy/ratelimit in that service's names, and only what
// was counted since it sent them last.
type statsdSink struct {
	server  *Server
	writer  *statsd.Writer
	sent    map[string]uint64
	times   map[float64]uint64 // how many were sent of each length
	failing bool
}

// openStatsd begins to send statistics, if that is asked for.
func (s *Server) openStatsd(context.Context) error {
	stats := &s.config.role().Stats
	if stats.StatsdAddr == "" {
		return nil
	}
	options := statsd.Options{Network: stats.StatsdNetwork, Addr: stats.StatsdAddr, DogTags: stats.DogStatsd}
	for _, tag := range stats.Tags {
		options.Tags = append(options.Tags, statsd.Tag(tag))
	}
	sink := &statsdSink{server: s, writer: statsd.NewWriter(options), sent: map[string]uint64{}, times: map[float64]uint64{}}
	s.background = append(s.background, sink.run)
	return nil
}

// run sends until the server ends, and then once more.
func (k *statsdSink) run(ctx context.Context) {
	tick := time.NewTicker(k.server.config.role().Stats.FlushInterval)
	defer tick.Stop()
	for last := false; !last; {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		last = ctx.Err() != nil // before the counters are read: what is counted later needs another turn
		k.report(k.send())
	}
	_ = k.writer.Close()
}

// report logs when sending begins to fail, and when it works again.
func (k *statsdSink) report(err error) {
	switch failing := err != nil; {
	case failing && !k.failing:
		k.server.log.Warn("statistics are not sent to statsd", "addr", k.server.config.role().Stats.StatsdAddr, "err", err)
	case !failing && k.failing:
		k.server.log.Warn("statistics are sent to statsd again", "addr", k.server.config.role().Stats.StatsdAddr)
	}
	k.failing = err != nil
}

// send sends what was counted since. What cannot be sent is sent the next time, but for the packet
// that failed: it may have arrived.
func (k *statsdSink) send() error {
	if err := k.writer.Connect(); err != nil {
		return err
	}
	collector := ratelimitCollector{server: k.server}
	counters := collector.statsdCounters()
	maps.DeleteFunc(k.sent, func(name string, _ uint64) bool { _, ok := counters[name]; return !ok })
	for name, value := range counters {
		last := k.sent[name]
		k.sent[name] = value
		if n := since(last, value); n > 0 {
			if err := k.writer.Count(name, n); err != nil {
				return err
			}
		}
	}
	for name, value := range collector.localCache() {
		if err := k.writer.Gauge("ratelimit.localcache."+name, value); err != nil {
			return err
		}
	}
	if err := k.sendTimes(collector.totals().times); err != nil {
		return err
	}
	return k.writer.Flush()
}

// since returns by how much a counter has grown. One that is smaller began anew, as those of rules
// do that were gone.
func since(last, now uint64) uint64 {
	if now < last {
		return now
	}
	return now - last
}

// sendTimes sends the times of calls as the upper bounds of the histogram's buckets: a line for each
// bucket and not for each call. Those above the last bound are taken to be twice that.
func (k *statsdSink) sendTimes(times *dto.Histogram) error {
	const name = "ratelimit_server." + ratelimitMethod + ".response_time"
	below, bound := uint64(0), 0.
	for _, b := range times.GetBucket() {
		bound = b.GetUpperBound()
		if err := k.sendTime(name, bound, b.GetCumulativeCount()-below); err != nil {
			return err
		}
		below = b.GetCumulativeCount()
	}
	return k.sendTime(name, bound*2, times.GetSampleCount()-below)
}

func (k *statsdSink) sendTime(name string, seconds float64, count uint64) error {
	last := k.times[seconds]
	k.times[seconds] = count
	if n := since(last, count); n > 0 {
		return k.writer.Time(name, seconds*1000, n)
	}
	return nil
}

// statsdCounters returns the counters in the names of envoyproxy/ratelimit. Domains without rules
// are one, because callers choose their names.
func (c ratelimitCollector) statsdCounters() map[string]uint64 {
	const service = "ratelimit.service."
	t := c.totals()
	all := map[string]uint64{
		service + "rate_limit.unknown.domain_not_found":           t.domainNotFound,
		service + "call.should_rate_limit.service_error":          t.serviceErrors,
		service + "call.should_rate_limit.redis_error":            t.redisErrors,
		service + "config_load_success":                           t.loads,
		service + "config_load_error":                             t.failedLoads,
		"ratelimit_server." + ratelimitMethod + ".total_requests": t.times.GetSampleCount(),
	}
	for path, sums := range c.hits() {
		name := service + "rate_limit." + statsdName(path)
		for i, kind := range hitKinds {
			all[name+"."+kind.name] += sums[i]
		}
	}
	return all
}

var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// statsdName returns a path in the form of names: with dots between its parts, and none in addresses.
func statsdName(path string) string {
	name := statsd.CleanName(strings.ReplaceAll(path, "\x00", "."))
	return ipv4.ReplaceAllStringFunc(name, func(addr string) string { return strings.ReplaceAll(addr, ".", "_") })
}
