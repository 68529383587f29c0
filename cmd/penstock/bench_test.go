package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// Bench fails if a server allows too much or too little.
func TestBenchReportsWrongCounts(t *testing.T) {
	for name, status := range map[string]int{"allows everything": http.StatusOK, "allows nothing": http.StatusTooManyRequests} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				w.WriteHeader(status)
			}))
			defer s.Close()
			o := benchOptions{ // each caller sends one request at least, more than a new day allows
				api: "http", addr: strings.TrimPrefix(s.URL, "http://"), duration: time.Millisecond,
				callers: 8, pipeline: 1, keys: 1, units: 2,
			}
			var out strings.Builder
			err := bench(t.Context(), o, &out, io.Discard)
			if !errors.Is(err, errNegative) || !strings.Contains(out.String(), "error: key bench:") {
				t.Errorf("got %v\n%s", err, &out)
			}
		})
	}
}

// An unexpected status ends the bench with an error, also if it comes when the time is over.
func TestBenchFailedRequestIsError(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	defer s.Close()
	for _, duration := range []time.Duration{time.Minute, 1} {
		o := benchOptions{api: "http", addr: strings.TrimPrefix(s.URL, "http://"), duration: duration, callers: 2, pipeline: 1, keys: 1, units: 2}
		if err := bench(t.Context(), o, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "418") {
			t.Errorf("%v: got %v, want the status", duration, err)
		}
	}
}

// The heap may grow by the same amount while it is small, and by half when it is
// large.
func TestGCPercentShrinksWithHeap(t *testing.T) {
	for live, want := range map[uint64]int{0: 800, 1 << 20: 800, 8 << 20: 400, 32 << 20: 100, 64 << 20: 50, 1 << 30: 50} {
		if got := gcPercent(live); got != want {
			t.Errorf("%d bytes: %d %%, want %d %%", live, got, want)
		}
	}
}

func TestBenchShowsProgress(t *testing.T) {
	b := newBenchRun(benchOptions{duration: time.Minute, callers: 1, keys: 1})
	b.requests[0].Add(7)
	b.latencies[0].add(time.Millisecond)
	reader, writer := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		b.showProgress(ctx, writer, 10*time.Millisecond)
		close(stopped)
	}()
	line := make([]byte, 100)
	n, err := reader.Read(line)
	_ = reader.Close() // later lines fail instead of blocking
	cancel()
	<-stopped
	if got, want := string(line[:n]), "s of 1m0s       700/s  p50 1ms      p99 1ms\n"; err != nil || !strings.HasSuffix(got, want) {
		t.Errorf("got %q, %v; want it to end in %q", got, err, want)
	}
}
