package server

import (
	"context"
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/recording"
	"github.com/prometheus/client_golang/prometheus"
)

// openRecording returns what the engine calls to record a request, or nil.
func (s *Server) openRecording() (func(domain string, ds []engine.Descriptor, denied bool), error) {
	c := s.config
	if c.Record == "" {
		return nil, nil
	}
	r, err := recording.Open(recording.Options{
		Dir: c.Record, MaxBytes: c.RecordMaxBytes, Sample: c.RecordSample, Hash: c.RecordHash, Log: s.log,
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.origin("record"), err)
	}
	s.background = append(s.background, r.Run)
	s.closers = append(s.closers, func(context.Context) error { return r.Close() })
	s.metrics.registry.MustRegister(
		counterOf("penstock_recorded_requests_total", "Requests that were recorded.", r.Recorded.Load),
		counterOf("penstock_recording_dropped_total", "Requests that were not recorded, because the disk is full or too slow.", r.Dropped.Load),
	)
	return func(domain string, ds []engine.Descriptor, denied bool) {
		r.Record(s.engine.Rules(), domain, ds, denied)
	}, nil
}

func counterOf(name, help string, load func() uint64) prometheus.Collector {
	return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help}, func() float64 { return float64(load()) })
}

// parseNames parses names with commas between them.
func parseNames(text string) (names []string, err error) {
	for name := range strings.SplitSeq(text, ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names, nil
}
