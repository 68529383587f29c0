package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/prometheus/client_golang/prometheus"
)

// A monitoredStore tells more of its servers than whether they answer.
type monitoredStore interface {
	remoteStore
	Refusals() (count uint64, last error)
	Warnings() []string
	RunIDs(context.Context) (map[string]string, error)
}

// A monitor watches whether the store is available. It checks the store once a second, and is
// notified when the fallback gives up a shard. Logging happens in its own goroutine, so
// decisions never wait for it.
type monitor struct {
	remote    monitoredStore
	name      string // of the store in messages …
	label     string // … and in metrics
	fallback  *penstock.Fallback
	metrics   *metrics
	log       *slog.Logger
	canaries  []canary
	runIDs    map[string]string // of the servers, by their addresses
	wake      chan struct{}     // signals run to log a change of state
	warned    bool              // the store's warnings were logged
	downSince time.Time         // when the outage was logged; zero if the store is up
	refusing  bool              // that the store refuses calls was logged

	mu        sync.Mutex
	down      map[int]error // shards that are down, and why
	lastError error         // of the last check; nil if the store answered
	failures  int           // checks without an answer in a row
}

func newMonitor(remote monitoredStore, name string, m *metrics, log *slog.Logger) *monitor {
	mon := &monitor{remote: remote, name: name, label: strings.ToLower(name), metrics: m, log: log, wake: make(chan struct{}, 1), down: map[int]error{}}
	m.registry.MustRegister(collector(mon.export), m.decisionsBySource, m.leaseUnits, m.storeTransitions, m.stateLosses)
	for _, state := range []string{stateDown, stateUp} {
		m.storeTransitions.WithLabelValues(mon.label, state)
	}
	for _, reason := range []string{reasonKeysGone, reasonNewRun} {
		m.stateLosses.WithLabelValues(mon.label, reason)
	}
	return mon
}

// start checks the store once, so that the log reports at startup if it is unavailable.
func (m *monitor) start(ctx context.Context, f *penstock.Fallback) {
	m.fallback = f
	m.canaries = newCanaries(m.remote)
	m.failures = maxFailures // so the first failure counts
	if m.checkCanaries(ctx); !m.failing() {
		m.checkRunIDs(ctx)
	}
	m.logState()
}

const (
	// checkInterval is the time between two checks of the store.
	checkInterval = time.Second

	// maxFailures is how many checks in a row must fail before the store is reported
	// unavailable; until then, each failed call has its own fallback.
	maxFailures = 2

	// runIDInterval is the number of checks between two checks of the run IDs, which
	// are more expensive for the store.
	runIDInterval = 10
)

// run logs changes until ctx ends. The checks have a goroutine of their own: while one waits for a
// server that does not answer, an outage that callers noticed is logged nevertheless.
func (m *monitor) run(ctx context.Context) {
	var checks sync.WaitGroup
	checks.Go(func() { m.check(ctx) })
	defer checks.Wait()
	for {
		select {
		case <-m.wake:
			m.logState()
		case <-ctx.Done():
			return
		}
	}
}

// check checks the store until ctx ends.
func (m *monitor) check(ctx context.Context) {
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		failed := m.failing()
		m.checkCanaries(ctx)
		m.probe(ctx)
		if n%runIDInterval == 0 || failed && !m.failing() {
			m.checkRunIDs(ctx)
		}
		m.wakeUp()
	}
}

// wakeUp makes run log what changed.
func (m *monitor) wakeUp() {
	select {
	case m.wake <- struct{}{}:
	default: // a signal is already pending
	}
}

// onChange records that a shard is down or up again, and wakes run to log it.
func (m *monitor) onChange(c penstock.FallbackChange) {
	m.mu.Lock()
	defer m.mu.Unlock()
	state := stateUp
	if delete(m.down, c.Shard); c.Down {
		m.down[c.Shard], state = c.Err, stateDown
	}
	m.metrics.storeTransitions.WithLabelValues(m.label, state).Inc()
	m.wakeUp()
}

// recordCheck records the result of a check.
func (m *monitor) recordCheck(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failures++
	if m.lastError = err; err == nil {
		m.failures = 0
	}
}

func (m *monitor) failing() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.failures > 0
}

// reason returns why decisions are made without the store, or nil if they are not.
func (m *monitor) reason() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, refused := m.remote.Refusals()
	switch all := m.remote.Shards(); {
	case refused != nil:
		return fmt.Errorf("%s answers, but refuses calls: %w", m.label, refused)
	case len(m.down) > 0 && all > 1:
		return fmt.Errorf("%s unavailable, %d of %d shards down: %w", m.label, len(m.down), all, m.firstError())
	case len(m.down) > 0:
		return fmt.Errorf("%s unavailable: %w", m.label, m.firstError())
	case m.failures >= maxFailures && m.lastError != nil:
		return fmt.Errorf("%s unavailable, no answer: %w", m.label, m.lastError)
	}
	return nil
}

// firstError returns the error of the lowest shard that is down, so that the message is
// stable.
func (m *monitor) firstError() error {
	return m.down[slices.Min(slices.Collect(maps.Keys(m.down)))]
}

// logState logs when the store became unavailable, when it refuses calls, and when it is available again.
func (m *monitor) logState() {
	err, logged, refused := m.reason(), !m.downSince.IsZero(), (*redisstore.RefusedError)(nil)
	refusing := errors.As(err, &refused)
	switch {
	case refusing && !m.refusing:
		m.log.Error(m.name+" refuses calls, which is no outage, applying on_store_failure", "err", err)
	case err != nil && !logged:
		m.log.Error(m.name+" unavailable, applying on_store_failure", "err", err)
	}
	m.refusing = refusing
	switch {
	case err != nil && !logged:
		m.downSince = time.Now()
	case err == nil && logged:
		m.log.Info(m.name+" available again", "after", time.Since(m.downSince).Round(time.Millisecond))
		m.downSince = time.Time{}
	}
	if warnings := m.remote.Warnings(); err == nil && !m.warned {
		m.warned = true
		for _, w := range warnings {
			m.log.Warn(w)
		}
	}
}

// probe sends a request to each shard that is down, so that recovery is noticed without
// traffic. No shard waits for another: each may take as long as the timeout.
func (m *monitor) probe(ctx context.Context) {
	m.mu.Lock()
	shards := slices.Collect(maps.Keys(m.down))
	m.mu.Unlock()
	var probes sync.WaitGroup
	for _, shard := range shards {
		peek := m.canaries[shard%len(m.canaries)].request(0)
		probes.Go(func() { _, _ = m.fallback.Take(ctx, peek) }) // the fallback calls onChange if the shard is up
	}
	probes.Wait()
}

// checkRunIDs logs servers that were restarted or replaced. A server that joins a Cluster
// loses nothing and is not logged.
func (m *monitor) checkRunIDs(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, max(checkInterval, m.remote.Timeout()))
	defer cancel()
	runs, err := m.remote.RunIDs(ctx)
	if err != nil || len(runs) == 0 {
		return
	}
	var fresh []string
	m.runIDs, fresh = diffRunIDs(m.runIDs, runs, m.remote.Shards() > 1)
	for _, address := range fresh {
		m.metrics.stateLosses.WithLabelValues(m.label, reasonNewRun).Inc()
		m.log.Warn(m.name+" was restarted or replaced, unsaved counters are lost",
			"addr", address, "run_id", runs[address])
	}
}

// diffRunIDs returns the addresses of servers that were restarted or have replaced others,
// and the run IDs to compare with next time. A Cluster node that is missing is down; its
// old run ID is kept until it is up again.
func diffRunIDs(before, runs map[string]string, cluster bool) (next map[string]string, fresh []string) {
	next = maps.Clone(runs)
	for address, run := range before {
		if _, up := runs[address]; cluster && !up {
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

// The states of a shard, and the reasons of lost state, in metrics.
const (
	stateDown = "down"
	stateUp   = "up"

	reasonKeysGone = "keys_gone"
	reasonNewRun   = "new_run"
)

var (
	degradedDesc      = prometheus.NewDesc("penstock_degraded", "Whether some decisions are made without the store (1) or none (0).", nil, nil)
	storeRefusalsDesc = prometheus.NewDesc("penstock_store_refusals_total", "Store calls that the store refused, though it is available.", []string{"store"}, nil)
	storeRefusingDesc = prometheus.NewDesc("penstock_store_refusing", "Whether the store refused a call within the last ten seconds (1) or not (0).", []string{"store"}, nil)
	unavailableDesc   = prometheus.NewDesc("penstock_store_unavailable", "Whether a shard of the store is unavailable (1) or not (0).", []string{"store", "shard"}, nil)
)

// export exports which shards are unavailable.
func (m *monitor) export(to exporter) {
	to.flag(degradedDesc, m.reason() != nil)
	count, refused := m.remote.Refusals()
	to.counter(storeRefusalsDesc, count, m.label)
	to.flag(storeRefusingDesc, refused != nil, m.label)
	m.mu.Lock()
	defer m.mu.Unlock()
	for shard := range m.remote.Shards() {
		_, down := m.down[shard]
		to.flag(unavailableDesc, down, m.label, strconv.Itoa(shard))
	}
}
