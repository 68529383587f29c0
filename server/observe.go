package server

import (
	"os"
	"strconv"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/internal/histogram"
	"github.com/penstock-io/penstock/server/observe"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// newObserver returns what answers questions about the traffic.
func (s *Server) newObserver() *observe.Observer {
	o := &observe.Options{
		Name: s.config.daemonName(), Version: Version(), TopKeys: s.topKeys, Store: s.storeState,
		Listeners: s.listenerStates, LatencyBounds: decisionBuckets, Log: s.log,
	}
	if s.board != nil {
		o.Board, o.OnDaemons = s.board, s.setDaemons
	}
	return observe.New(s.engine, o)
}

// daemonName returns a name that tells the daemon from others on the same Redis.
func (c *Config) daemonName() string {
	if c.Name != "" {
		return c.Name
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	pid := "/" + strconv.Itoa(os.Getpid())
	return host[:min(len(host), observe.MaxDaemonName-len(pid))] + pid
}

// listenerStates returns what the listeners count.
func (s *Server) listenerStates() []observe.ListenerState {
	all := make([]observe.ListenerState, 0, len(s.listeners))
	for _, l := range s.listeners {
		state := observe.ListenerState{Name: l.name, Connections: l.socket.Active(), Refused: uint64(l.socket.Refused())}
		if l.name != "admin" { // which decides nothing
			_, state.Latency = histogram.Counts(histogram.Read(s.metrics.decisionDuration.WithLabelValues(l.name)))
		}
		all = append(all, state)
	}
	return all
}

// storeState returns the state of the store for the admin API.
func (s *Server) storeState() observe.Store {
	state := observe.Store{Kind: "memory", Reasons: []string{}, Shards: []observe.Shard{}, StateLosses: []observe.StateLoss{}}
	if s.memory != nil {
		state.Memory = s.memoryState(s.memory.Stats())
	}
	if s.monitor != nil {
		state.Kind = s.monitor.label
		s.monitor.describe(&state)
	}
	if s.regions != nil {
		state.Home = homeState(s.regions.Stats())
	}
	return state
}

func (s *Server) memoryState(stats penstock.MemoryStats) *observe.Memory {
	return &observe.Memory{
		Keys: stats.Keys, MaxKeys: s.config.MaxKeys, RequestLimitKeys: stats.UntrustedKeys,
		Bytes: stats.Bytes, MaxBytes: s.config.MaxBytes, Overflow: uint64(stats.OverflowDecisions),
	}
}

// describe adds what the monitor knows to the state of the store.
func (m *monitor) describe(state *observe.Store) {
	if err := m.reason(); err != nil {
		state.Degraded, state.Reasons = true, []string{err.Error()}
	}
	for _, reason := range []string{reasonKeysGone, reasonNewRun} {
		count := counterValue(m.metrics.stateLosses.WithLabelValues(m.label, reason))
		state.StateLosses = append(state.StateLosses, observe.StateLoss{Reason: reason, Count: count})
	}
	state.Refusals, _ = m.remote.Refusals()
	state.Errors = counterValue(m.metrics.storeErrors.WithLabelValues(m.label))
	m.mu.Lock()
	defer m.mu.Unlock()
	for shard := range m.remote.Shards() {
		one := observe.Shard{Shard: shard, State: stateUp}
		if err, down := m.down[shard]; down {
			one.State, one.Error = stateDown, err.Error()
		}
		state.Shards = append(state.Shards, one)
	}
}

// counterValue returns the value of a metric that the daemon counts anyway.
func counterValue(c prometheus.Metric) uint64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		return 0
	}
	return uint64(m.GetCounter().GetValue())
}
