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

// An outage is what is known of a Redis that may be away. Decisions never wait for
// what is told about it: they leave a note, and the watch tells.
type outage struct {
	redis    *redisstore.Store
	fallback *penstock.Fallback
	metrics  *metrics
	log      *slog.Logger
	canaries []canary
	runs     map[string]string // of the servers, by their addresses
	news     chan struct{}     // that something has changed
	warned   bool              // whether what the servers lack was told
	left     time.Time         // when it was told that Redis is away; zero if it is not

	mu     sync.Mutex
	away   map[int]error // shards that are given up, and why
	silent error         // why Redis did not answer when it was last looked at
	misses int           // looks in a row that it did not answer
}

func newOutage(redis *redisstore.Store, m *metrics, log *slog.Logger) *outage {
	o := &outage{redis: redis, metrics: m, log: log, news: make(chan struct{}, 1), away: map[int]error{}}
	m.registry.MustRegister(o, m.sources, m.leaseUnits, m.storeChanges, m.stateLosses)
	for _, state := range []string{"away", "back"} {
		m.storeChanges.WithLabelValues(redisName, state)
	}
	for _, reason := range []string{keysGone, newRun} {
		m.stateLosses.WithLabelValues(redisName, reason)
	}
	return o
}

// begin looks at Redis for the first time, so that the log says in the beginning if
// it is not there.
func (o *outage) begin(ctx context.Context, f *penstock.Fallback) {
	o.fallback = f
	o.canaries = newCanaries(o.redis)
	o.misses = mostMisses // there was never an answer
	if o.look(ctx); !o.missed() {
		o.compareRuns(ctx)
	}
	o.tell()
}

const (
	// lookGap is the time between two looks at Redis.
	lookGap = time.Second

	// mostMisses is how many looks in a row may be without an answer before that
	// means anything; a call that comes meanwhile has its own fallback.
	mostMisses = 2

	// runsGap is how many looks there are to one at the servers' runs, which costs
	// them more.
	runsGap = 10
)

// watch looks at Redis once in a while, and tells of changes, until ctx ends.
func (o *outage) watch(ctx context.Context) {
	tick := time.NewTicker(lookGap)
	defer tick.Stop()
	for n := 0; ; {
		select {
		case <-tick.C:
			n++
			missed := o.missed()
			o.look(ctx)
			o.probe(ctx)
			if n%runsGap == 0 || missed && !o.missed() {
				o.compareRuns(ctx)
			}
		case <-o.news:
		case <-ctx.Done():
			return
		}
		o.tell()
	}
}

// changed is called when a shard was given up, or is back. It leaves a note.
func (o *outage) changed(c penstock.FallbackChange) {
	o.mu.Lock()
	defer o.mu.Unlock()
	state := "back"
	if delete(o.away, c.Shard); c.Down {
		o.away[c.Shard], state = c.Err, "away"
	}
	o.metrics.storeChanges.WithLabelValues(redisName, state).Inc()
	select {
	case o.news <- struct{}{}:
	default: // there is a note already
	}
}

// answered takes note of a look.
func (o *outage) answered(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.misses++
	if o.silent = err; err == nil {
		o.misses = 0
	}
}

func (o *outage) missed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.misses > 0
}

// reason says why decisions are made without Redis, or nil if they are not.
func (o *outage) reason() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch all := o.redis.Shards(); {
	case len(o.away) > 0 && all > 1:
		return fmt.Errorf("redis is away with %d of %d shards: %w", len(o.away), all, o.cause())
	case len(o.away) > 0:
		return fmt.Errorf("redis is away: %w", o.cause())
	case o.misses >= mostMisses && o.silent != nil:
		return fmt.Errorf("redis does not answer: %w", o.silent)
	}
	return nil
}

// cause returns why one of the shards is away: the first, so that it stays the same.
func (o *outage) cause() error {
	return o.away[slices.Min(slices.Collect(maps.Keys(o.away)))]
}

// tell tells the log when Redis went away, and when it came back.
func (o *outage) tell() {
	err, told := o.reason(), !o.left.IsZero()
	switch {
	case err != nil && !told:
		o.left = time.Now()
		o.log.Error("deciding without Redis, as the rules and --on-store-failure say", "err", err)
	case err == nil && told:
		o.log.Info("deciding by Redis again", "after", time.Since(o.left).Round(time.Millisecond))
		o.left = time.Time{}
	}
	if warnings := o.redis.Warnings(); err == nil && !o.warned {
		o.warned = true
		for _, w := range warnings {
			o.log.Warn(w)
		}
	}
}

// probe asks for shards that are away, for when nobody else does.
func (o *outage) probe(ctx context.Context) {
	o.mu.Lock()
	shards := slices.Collect(maps.Keys(o.away))
	o.mu.Unlock()
	for _, shard := range shards {
		look := o.canaries[shard%len(o.canaries)].request(0)
		_, _ = o.fallback.Take(ctx, look) // what matters is that it was asked
	}
}

// compareRuns finds out whether servers were started again, or replaced. In a Cluster
// another server may have joined, which loses nothing.
func (o *outage) compareRuns(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookGap)
	defer cancel()
	runs, err := o.redis.RunIDs(ctx)
	if err != nil || len(runs) == 0 {
		return
	}
	var fresh []string
	o.runs, fresh = compare(o.runs, runs, o.redis.Shards() > 1)
	for _, address := range fresh {
		o.metrics.stateLosses.WithLabelValues(redisName, newRun).Inc()
		o.log.Warn("Redis was started again or replaced: what it had not saved or replicated is lost",
			"addr", address, "run", runs[address])
	}
}

// compare returns which servers were started again, or have replaced others, and what
// to compare with next time. A node of a Cluster that does not tell its run is away, and
// will be compared when it is back.
func compare(before, runs map[string]string, cluster bool) (next map[string]string, fresh []string) {
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
	keysGone = "keys_gone"
	newRun   = "new_run"
)

var (
	degradedDesc = prometheus.NewDesc("penstock_degraded", "Whether some decisions are made without the store.", nil, nil)
	awayDesc     = prometheus.NewDesc("penstock_store_away", "Whether a shard of the store is given up for now.", []string{"store", "shard"}, nil)
)

// Describe and Collect tell how things are.
func (o *outage) Describe(ch chan<- *prometheus.Desc) {
	ch <- degradedDesc
	ch <- awayDesc
}

func (o *outage) Collect(ch chan<- prometheus.Metric) {
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
		_, away := o.away[shard]
		gauge(awayDesc, away, redisName, strconv.Itoa(shard))
	}
}
