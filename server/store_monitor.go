package server

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/prometheus/client_golang/prometheus"
)

// An monitor is what is known of a Redis that may be away. Decisions never wait for
// what is told about it: they leave a note, and the watch tells.
type monitor struct {
	redis     *redisstore.Store
	fallback  *penstock.Fallback
	metrics   *metrics
	log       *slog.Logger
	canaries  []canary
	runIDs    map[string]string // of the servers, by their addresses
	wake      chan struct{}     // that something has changed
	warned    bool              // whether what the servers lack was told
	downSince time.Time         // when it was told that Redis is away; zero if it is not

	mu        sync.Mutex
	down      map[int]error // shards that are given up, and why
	lastError error         // why Redis did not answer when it was last looked at
	failures  int           // looks in a row that it did not answer
}

func newMonitor(redis *redisstore.Store, m *metrics, log *slog.Logger) *monitor {
	o := &monitor{redis: redis, metrics: m, log: log, wake: make(chan struct{}, 1), down: map[int]error{}}
	m.registry.MustRegister(o, m.decisionsBySource, m.leaseUnits, m.storeTransitions, m.stateLosses)
	for _, state := range []string{"away", "back"} {
		m.storeTransitions.WithLabelValues(redisName, state)
	}
	for _, reason := range []string{reasonKeysGone, reasonNewRun} {
		m.stateLosses.WithLabelValues(redisName, reason)
	}
	return o
}

// start looks at Redis for the first time, so that the log says in the beginning if
// it is not there.
func (o *monitor) start(ctx context.Context, f *penstock.Fallback) {
	o.fallback = f
	o.canaries = newCanaries(o.redis)
	o.failures = maxFailures // there was never an answer
	if o.checkCanaries(ctx); !o.failing() {
		o.checkRunIDs(ctx)
	}
	o.logState()
}

const (
	// checkInterval is the time between two looks at Redis.
	checkInterval = time.Second

	// maxFailures is how many looks in a row may be without an answer before that
	// means anything; a call that comes meanwhile has its own fallback.
	maxFailures = 2

	// runIDInterval is how many looks there are to one at the servers' runs, which costs
	// them more.
	runIDInterval = 10
)

// run looks at Redis once in a while, and tells of changes, until ctx ends.
func (o *monitor) run(ctx context.Context) {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for n := 0; ; {
		select {
		case <-tick.C:
			n++
			missed := o.failing()
			o.checkCanaries(ctx)
			o.probe(ctx)
			if n%runIDInterval == 0 || missed && !o.failing() {
				o.checkRunIDs(ctx)
			}
		case <-o.wake:
		case <-ctx.Done():
			return
		}
		o.logState()
	}
}

// onChange is called when a shard was given up, or is back. It leaves a note.
func (o *monitor) onChange(c penstock.FallbackChange) {
	o.mu.Lock()
	defer o.mu.Unlock()
	state := "back"
	if delete(o.down, c.Shard); c.Down {
		o.down[c.Shard], state = c.Err, "away"
	}
	o.metrics.storeTransitions.WithLabelValues(redisName, state).Inc()
	select {
	case o.wake <- struct{}{}:
	default: // there is a note already
	}
}

// recordCheck takes note of a look.
func (o *monitor) recordCheck(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failures++
	if o.lastError = err; err == nil {
		o.failures = 0
	}
}

func (o *monitor) failing() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.failures > 0
}

// reason says why decisions are made without Redis, or nil if they are not.
func (o *monitor) reason() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch all := o.redis.Shards(); {
	case len(o.down) > 0 && all > 1:
		return fmt.Errorf("redis is away with %d of %d shards: %w", len(o.down), all, o.firstError())
	case len(o.down) > 0:
		return fmt.Errorf("redis is away: %w", o.firstError())
	case o.failures >= maxFailures && o.lastError != nil:
		return fmt.Errorf("redis does not answer: %w", o.lastError)
	}
	return nil
}

// firstError returns why one of the shards is away: the first, so that it stays the same.
func (o *monitor) firstError() error {
	return o.down[slices.Min(slices.Collect(maps.Keys(o.down)))]
}

// logState tells the log when Redis went away, and when it came back.
func (o *monitor) logState() {
	err, told := o.reason(), !o.downSince.IsZero()
	switch {
	case err != nil && !told:
		o.downSince = time.Now()
		o.log.Error("deciding without Redis, as the rules and --on-store-failure say", "err", err)
	case err == nil && told:
		o.log.Info("deciding by Redis again", "after", time.Since(o.downSince).Round(time.Millisecond))
		o.downSince = time.Time{}
	}
	if warnings := o.redis.Warnings(); err == nil && !o.warned {
		o.warned = true
		for _, w := range warnings {
			o.log.Warn(w)
		}
	}
}

// probe asks for shards that are away, for when nobody else does.
func (o *monitor) probe(ctx context.Context) {
	o.mu.Lock()
	shards := slices.Collect(maps.Keys(o.down))
	o.mu.Unlock()
	for _, shard := range shards {
		look := o.canaries[shard%len(o.canaries)].request(0)
		_, _ = o.fallback.Take(ctx, look) // what matters is that it was asked
	}
}

// checkRunIDs finds out whether servers were started again, or replaced. In a Cluster
// another server may have joined, which loses nothing.
func (o *monitor) checkRunIDs(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, checkInterval)
	defer cancel()
	runs, err := o.redis.RunIDs(ctx)
	if err != nil || len(runs) == 0 {
		return
	}
	var fresh []string
	o.runIDs, fresh = diffRunIDs(o.runIDs, runs, o.redis.Shards() > 1)
	for _, address := range fresh {
		o.metrics.stateLosses.WithLabelValues(redisName, reasonNewRun).Inc()
		o.log.Warn("Redis was started again or replaced: what it had not saved or replicated is lost",
			"addr", address, "run", runs[address])
	}
}

// diffRunIDs returns which servers were started again, or have replaced others, and what
// to compare with next time. A node of a Cluster that does not tell its run is away, and
// will be compared when it is back.
func diffRunIDs(before, runs map[string]string, cluster bool) (next map[string]string, fresh []string) {
	next = maps.Clone(runs)
	for address, run := range before {
		if _, tells := runs[address]; cluster && !tells {
			next[address] = run
		}
	}
	old := slices.Collect(maps.Values(before))
	for address, run := range runs {
		was, known := before[address]
		joined := !known && (cluster || len(before) == 0)
		if was != run && !joined && !slices.Contains(old, run) {
			fresh = append(fresh, address)
		}
	}
	return next, fresh
}

// The reasons for which state is taken for lost.
const (
	reasonKeysGone = "keys_gone"
	reasonNewRun   = "new_run"
)

var (
	degradedDesc    = prometheus.NewDesc("penstock_degraded", "Whether some decisions are made without the store.", nil, nil)
	unavailableDesc = prometheus.NewDesc("penstock_store_away", "Whether a shard of the store is given up for now.", []string{"store", "shard"}, nil)
)

// Describe and Collect tell how things are.
func (o *monitor) Describe(ch chan<- *prometheus.Desc) {
	ch <- degradedDesc
	ch <- unavailableDesc
}

func (o *monitor) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, is bool, labels ...string) {
		value := 0.0
		if is {
			value = 1
		}
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	gauge(degradedDesc, o.reason() != nil)
	o.mu.Lock()
	defer o.mu.Unlock()
	for shard := range o.redis.Shards() {
		_, away := o.down[shard]
		gauge(unavailableDesc, away, redisName, strconv.Itoa(shard))
	}
}
