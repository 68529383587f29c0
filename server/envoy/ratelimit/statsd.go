package ratelimit

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"regexp"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/penstock-io/penstock/server/internal/histogram"
)

// A statsdSink sends statistics, and only what was counted since it sent them last.
type statsdSink struct {
	*Statistics
	log     *slog.Logger
	sent    map[string]uint64
	times   map[float64]uint64 // how many were sent of each length
	failing bool
}

// SendStatsd sends statistics to statsd until ctx ends, and then once more.
func (s *Statistics) SendStatsd(ctx context.Context, log *slog.Logger) {
	k := &statsdSink{
		Statistics: s, log: log.With("addr", s.role.Stats.StatsdAddr),
		sent: map[string]uint64{}, times: map[float64]uint64{},
	}
	tick := time.NewTicker(s.role.Stats.FlushInterval)
	defer tick.Stop()
	for last := false; !last; {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		last = ctx.Err() != nil // before the counters are read: what is counted later needs another turn
		k.report(k.send())
	}
}

// report logs when sending begins to fail, and when it works again.
func (k *statsdSink) report(err error) {
	switch failing := err != nil; {
	case failing && !k.failing:
		k.log.Warn("statistics are not sent to statsd", "err", err)
	case !failing && k.failing:
		k.log.Warn("statistics are sent to statsd again")
	}
	k.failing = err != nil
}

// send sends what was counted since. What cannot be sent is sent the next time, but for the packet
// that failed: it may have arrived.
func (k *statsdSink) send() error {
	w, err := dialStatsd(&k.role.Stats)
	if err != nil {
		return err
	}
	return cmp.Or(k.sendTo(w), w.close())
}

func (k *statsdSink) sendTo(w *statsdWriter) error {
	counters := k.statsdCounters()
	maps.DeleteFunc(k.sent, func(name string, _ uint64) bool { _, ok := counters[name]; return !ok })
	for name, value := range counters {
		last := k.sent[name]
		k.sent[name] = value
		if n := since(last, value); n > 0 {
			if err := w.count(name, n); err != nil {
				return err
			}
		}
	}
	for name, value := range k.localCache() {
		if err := w.gauge("ratelimit.localcache."+name, value); err != nil {
			return err
		}
	}
	return k.sendTimes(w, k.histogram())
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
func (k *statsdSink) sendTimes(w *statsdWriter, times *dto.Histogram) error {
	const name = "ratelimit_server." + method + ".response_time"
	bounds, counts := histogram.Counts(times)
	last := 0.
	for i, bound := range bounds {
		last = bound
		if err := k.sendTime(w, name, bound, counts[i]); err != nil {
			return err
		}
	}
	return k.sendTime(w, name, last*2, counts[len(bounds)])
}

func (k *statsdSink) sendTime(w *statsdWriter, name string, seconds float64, count uint64) error {
	last := k.times[seconds]
	k.times[seconds] = count
	if n := since(last, count); n > 0 {
		return w.time(name, seconds*1000, n)
	}
	return nil
}

// statsdCounters returns the counters in the names of envoyproxy/ratelimit.
func (s *Statistics) statsdCounters() map[string]uint64 {
	all := map[string]uint64{}
	for _, t := range totals {
		all[t.statsd] = t.of(s)
	}
	for path, sums := range s.hits() {
		name := "ratelimit.service.rate_limit." + statsdName(path)
		for i, kind := range hitKinds {
			all[name+"."+kind.name] += sums[i]
		}
	}
	return all
}

var ipv4 = regexp.MustCompile(`\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}`)

// statsdName returns a path in the form of names: with dots between its parts, and none in addresses.
func statsdName(path string) string {
	return withoutAddresses(cleanName(strings.ReplaceAll(path, "\x00", ".")))
}

// withoutAddresses replaces the dots of IPv4 addresses.
func withoutAddresses(name string) string {
	return ipv4.ReplaceAllStringFunc(name, func(addr string) string { return strings.ReplaceAll(addr, ".", "_") })
}

// labelOf returns a part of a path in the form of a label: as there, with what separates the parts of a
// line of statsd as underscores. Other dots stay, although they end a label there.
func labelOf(part string) string {
	return withoutAddresses(strings.NewReplacer(":", "_", "|", "_").Replace(part))
}
