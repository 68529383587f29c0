// Package rediscluster starts a Redis Cluster for a benchmark.
package rediscluster

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
)

// Start starts a Cluster of three shards with a replica each, and returns a function that
// stops it.
func Start() (c *redistest.Cluster, stop func(), err error) {
	h, done := &harness{}, make(chan struct{})
	go func() {
		defer close(done)
		c = redistest.StartCluster(h)
	}()
	if <-done; c == nil {
		h.stop()
		return nil, nil, fmt.Errorf("starting a Redis Cluster: %s", h.failure)
	}
	return c, h.stop, nil
}

// A harness is what redistest needs of a test, for a program: where a test would fail, it
// ends the goroutine.
type harness struct {
	testing.TB
	cleanups []func()
	failure  string
}

func (h *harness) stop() {
	for i := len(h.cleanups) - 1; i >= 0; i-- {
		h.cleanups[i]()
	}
	h.cleanups = nil
}

func (h *harness) Helper()          {}
func (h *harness) Cleanup(f func()) { h.cleanups = append(h.cleanups, f) }

func (h *harness) Fatal(args ...any) {
	h.failure = fmt.Sprint(args...)
	runtime.Goexit()
}

func (h *harness) Fatalf(format string, args ...any) { h.Fatal(fmt.Sprintf(format, args...)) }
