package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/regions"
	"github.com/penstock-io/penstock/server/durable"
)

// memoryURL selects the store in the memory of this process.
const memoryURL = "memory:"

// openMemory returns a store in this process. With a data directory it is durable.
func (s *Server) openMemory(ctx context.Context) (penstock.Store, error) {
	o := s.config.memoryOptions()
	memory := (*penstock.Memory)(nil)
	if s.data == nil {
		memory = penstock.NewMemory(o)
	} else {
		kept, err := s.openDurable(o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.config.origin("data"), err)
		}
		memory = kept.Memory
	}
	s.memory, s.pools = memory, regions.NewMemoryPools(nil)
	s.metrics.registry.MustRegister(memoryCollector(memory))
	return memory, s.openOverrides(ctx, nil)
}

// memoryOptions returns the bounds of a store in memory. Request limits may fill their share
// of it, and without rules all of it.
func (c *Config) memoryOptions() *penstock.MemoryOptions {
	o := &penstock.MemoryOptions{MaxKeys: c.MaxKeys, MaxBytes: c.MaxBytes, UntrustedShare: c.RequestLimitsShare}
	if !c.hasRules() {
		o.UntrustedShare = 1
	}
	return o
}

// openDurable restores the last snapshot, and saves new ones in the background.
func (s *Server) openDurable(o *penstock.MemoryOptions) (*durable.Store, error) {
	kept, err := s.data.OpenStore(o)
	if err != nil {
		return nil, err
	}
	switch err := kept.LoadError(); {
	case errors.Is(err, penstock.ErrSnapshotVersion):
		s.log.Warn("snapshot is of another version, counters start empty", "err", err)
	case err != nil:
		s.log.Error("snapshot is damaged, starting empty", "err", err)
	}
	s.log.Info("snapshots enabled", "data", s.config.Data, "interval", s.config.SnapshotInterval, "keys", kept.Stats().Keys)
	d := snapshotLog{log: s.log, metrics: s.metrics}
	s.metrics.registry.MustRegister(s.metrics.snapshots, s.metrics.snapshotTime)
	s.background = append(s.background, func(ctx context.Context) { kept.Run(ctx, s.config.SnapshotInterval, d.record) })
	s.closers = append(s.closers, func(context.Context) error {
		err := kept.Close()
		d.record(err)
		return err
	})
	return kept, nil
}

// A snapshotLog logs and counts the results of snapshots.
type snapshotLog struct {
	log     *slog.Logger
	metrics *metrics
	failing bool
}

// record logs the first failure, and the first success after it: a full disk must not
// flood the log.
func (d *snapshotLog) record(err error) {
	d.metrics.countSnapshot(err)
	switch {
	case err != nil && !d.failing:
		d.log.Error("snapshot failed, keeping the previous one", "err", err)
	case err == nil && d.failing:
		d.log.Info("snapshots succeed again")
	}
	d.failing = err != nil
}
