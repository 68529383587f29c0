// Package lograte limits how many log lines are written about events that a remote caller
// or a failing store can cause any number of times.
package lograte

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/penstock-io/penstock"
)

// A Sampler decides which events are logged. It is safe for concurrent use.
type Sampler struct {
	limiter *penstock.Limiter
	skipped atomic.Int64
}

// NewSampler returns a sampler that allows as many lines as the limit. It returns an
// error if the limit is invalid.
func NewSampler(l penstock.Limit) (*Sampler, error) {
	limiter, err := penstock.New(penstock.NewMemory(&penstock.MemoryOptions{MaxKeys: 1}), l)
	if err != nil {
		return nil, err
	}
	return &Sampler{limiter: limiter}, nil
}

// PerSecond returns a sampler that allows one line per second.
func PerSecond() *Sampler {
	s, _ := NewSampler(penstock.PerSecond(1)) // no error: the limit is valid
	return s
}

// Allow reports whether an event may be logged now. If so, it returns how many events
// were not logged since the last one that was.
func (s *Sampler) Allow() (skipped int64, ok bool) {
	d, err := s.limiter.Allow(context.Background(), "line")
	if err != nil || !d.Allowed {
		s.skipped.Add(1)
		return 0, false
	}
	return s.skipped.Swap(0), true
}

// LogError logs an error of middleware to [slog.Default], unless the caller has canceled
// the request: then the error says nothing about the store.
func (s *Sampler) LogError(ctx context.Context, err error) {
	if errors.Is(ctx.Err(), context.Canceled) {
		return
	}
	if skipped, ok := s.Allow(); ok {
		slog.WarnContext(ctx, "rate limiting failed", "err", err, "not_logged", skipped)
	}
}
