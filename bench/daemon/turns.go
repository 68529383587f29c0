package main

import (
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// callers is the number of concurrent calls, as of a busy proxy.
const callers = 64

// keyCount is the number of keys that are used in turn.
const keyCount = 10_000

// A subject is a server under load. Its figures are the rate, the p99 in milliseconds, and the
// processor time of a call in microseconds: of the server, of its backend, of the load, and of all.
type subject struct {
	harness.Contender
	server  *process
	backend *process // the server's own server, such as redis-server; or nil
	turn    func(length time.Duration)
}

// A load makes calls until the time is up, and returns how long each took, or an error if a response
// is wrong.
type load func(until time.Time) ([]time.Duration, error)

// newSubject returns a server under a load.
func newSubject(server, backend *process, l load) *subject {
	s := &subject{server: server, backend: backend}
	s.Name = server.name
	s.turn = func(length time.Duration) { harness.Check(s.measure(length, l)) }
	return s
}

// measure runs a load for a while.
func (s *subject) measure(length time.Duration, l load) error {
	before, begin := s.processors(), time.Now()
	latencies, err := l(begin.Add(length))
	if err != nil {
		return fmt.Errorf("%s: %w", s.server.name, err)
	}
	s.AddCalls(len(latencies), time.Since(begin), s.processors, before)
	s.Add("p99", harness.Millis(harness.Quantile(latencies, 0.99)))
	return nil
}

// processors returns the processor time of the load, the server and its backend so far, in microseconds.
func (s *subject) processors() map[string]float64 {
	load := &process{pids: []int{os.Getpid()}}
	times := map[string]float64{"load": load.processor(), "server": s.server.processor()}
	if s.backend != nil {
		times["backend"] = s.backend.processor()
	}
	return times
}

// takeTurns measures the subjects in turns, after a warm-up, and adds rows to the table.
func (b *bench) takeTurns(title string, subjects ...*subject) {
	b.Logf("%s: %d turns of %s for each of %d", title, b.Rounds, b.Turn, len(subjects))
	for _, s := range subjects {
		s.turn(b.Turn / 4)
		s.Forget()
		s.Measure = func(*harness.Contender) { s.turn(b.Turn) }
	}
	harness.TakeTurns(b.Rounds, subjects...)
	t := b.Table("Rates: medians of the turns, in brackets the 10th to the 90th percentile of the pairs",
		"case", "server", "thousand a second", "to the first row", "p99, ms", "server µs a call", "redis-server", "load")
	for _, c := range subjects {
		row := []any{title, c.Name, harness.Decimals(1)(c.Median("rate") / 1000), c.To(subjects[0], "rate")}
		t.Row(append(row, c.Medians(2, "p99", "server", "backend", "load")...)...)
	}
}

// loadByCallers returns a load of concurrent callers, each of which makes one call after the other, at
// least one. send makes the n-th call.
func loadByCallers(send func(n int) error) load {
	var sent atomic.Int64
	return func(until time.Time) ([]time.Duration, error) {
		return harness.CallUntil(callers, until, func(int) error { return send(int(sent.Add(1))) })
	}
}
