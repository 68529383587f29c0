// Package rediscluster starts a Redis Cluster for a benchmark.
package rediscluster

import (
	"fmt"
	"testing"

	"github.com/penstock-io/penstock/internal/redistest"
)

// Start starts a Cluster of three shards with a replica each, and returns a function that
// stops it.
func Start() (c *redistest.Cluster, stop func(), err error) {
	h := &harness{}
	defer func() {
		if failed, ok := recover().(failure); ok {
			h.stop()
			err = fmt.Errorf("starting a Redis Cluster: %s", failed)
		}
	}()
	return redistest.StartCluster(h), h.stop, nil
}

// A harness is what redistest needs of a test, for a program: it panics where a test fails.
type harness struct {
	testing.TB
	cleanups []func()
}

type failure string

func (h *harness) stop() {
	for i := len(h.cleanups) - 1; i >= 0; i-- {
		h.cleanups[i]()
	}
	h.cleanups = nil
}

func (h *harness) Helper()                      {}
func (h *harness) Cleanup(f func())             { h.cleanups = append(h.cleanups, f) }
func (h *harness) Fatal(args ...any)            { panic(failure(fmt.Sprint(args...))) }
func (h *harness) Fatalf(f string, args ...any) { panic(failure(fmt.Sprintf(f, args...))) }
