package server

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/durable"
)

// memoryURL is what the store in this process is called.
const memoryURL = "memory:"

// openMemory returns a store in this process, which outlives it if there is a
// folder for that.
func (s *Server) openMemory(context.Context) (penstock.Store, error) {
	o := &penstock.MemoryOptions{MaxKeys: s.config.MaxKeys, MaxBytes: s.config.MaxBytes}
	memory := (*penstock.Memory)(nil)
	if s.config.Data == "" {
		memory = penstock.NewMemory(o)
	} else {
		kept, err := s.openDurable(o)
		if err != nil {
			return nil, fmt.Errorf("--data: %w", err)
		}
		memory = kept.Memory
	}
	s.metrics.registry.MustRegister(memoryCollector{memory})
	return memory, nil
}

// openDurable restores what was saved, and has it saved from now on.
func (s *Server) openDurable(o *penstock.MemoryOptions) (*durable.Store, error) {
	kept, err := durable.Open(s.config.Data, o)
	if err != nil {
		return nil, err
	}
	if err := kept.LoadError(); err != nil {
		s.log.Error("what was kept cannot be used", "err", err)
	}
	s.log.Info("counts are kept", "data", s.config.Data, "every", s.config.SnapshotInterval, "keys", kept.Stats().Keys)
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

// A snapshotLog tells how saving goes.
type snapshotLog struct {
	log     *slog.Logger
	metrics *metrics
	failing bool
}

// record takes note of one attempt to save. A disk that is full is told of once.
func (d *snapshotLog) record(err error) {
	switch {
	case err != nil && !d.failing:
		d.log.Error("counts cannot be saved; those saved before stay", "err", err)
	case err == nil && d.failing:
		d.log.Info("counts are saved again")
	}
	d.failing = err != nil
	d.metrics.countSnapshot(err)
}
