package main

import (
	"bytes"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/server"
)

// A logWriter writes log lines in the background, and drops lines while its output
// blocks. A daemon whose log is not read must still decide, and shut down on a signal.
type logWriter struct {
	to      io.Writer
	lines   chan []byte
	dropped atomic.Int64       // lines dropped since the last warning
	flushes chan chan struct{} // each is closed when all queued lines are written
	closing chan struct{}      // closed by close: write the queued lines and stop
	done    chan struct{}
}

const (
	maxQueuedLines = 1024
	flushTimeout   = 5 * time.Second // of an output that blocks, and not of a process that is held up
)

// newLog returns a logger with the configured level and format, and its writer, which
// must be closed.
func newLog(c *server.Config, to io.Writer) (*slog.Logger, *logWriter) {
	w := &logWriter{
		to: to, lines: make(chan []byte, maxQueuedLines),
		flushes: make(chan chan struct{}), closing: make(chan struct{}), done: make(chan struct{}),
	}
	o := &slog.HandlerOptions{Level: c.LogLevel}
	if c.Ratelimit != nil && c.LogFormat == "json" {
		o.ReplaceAttr = ratelimitFields
	}
	log := slog.New(slog.NewTextHandler(w, o))
	if c.LogFormat == "json" {
		log = slog.New(slog.NewJSONHandler(w, o))
	}
	go w.run(log)
	return log, w
}

// ratelimitFields names the fields of JSON lines as envoyproxy/ratelimit does.
func ratelimitFields(groups []string, a slog.Attr) slog.Attr {
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		a.Key = "@timestamp"
	case slog.MessageKey:
		a.Key = "@message"
	case slog.LevelKey:
		a.Value = slog.StringValue(strings.ToLower(a.Value.String()))
	}
	return a
}

// Write queues a line. It never blocks.
func (w *logWriter) Write(line []byte) (int, error) {
	select {
	case w.lines <- bytes.Clone(line):
	default:
		w.dropped.Add(1)
	}
	return len(line), nil
}

func (w *logWriter) run(log *slog.Logger) {
	defer close(w.done)
	for {
		select {
		case line := <-w.lines:
			w.write(log, line)
		case done := <-w.flushes:
			w.writeAll(log)
			close(done)
		case <-w.closing:
			w.writeAll(log)
			return
		}
	}
}

func (w *logWriter) writeAll(log *slog.Logger) {
	for len(w.lines) > 0 {
		w.write(log, <-w.lines)
	}
}

func (w *logWriter) write(log *slog.Logger, line []byte) {
	_, _ = w.to.Write(line) // an error cannot be logged
	if n := w.dropped.Swap(0); n > 0 {
		log.Warn("log output was blocked, lines were dropped", "lines", n)
	}
}

// flush waits until all queued lines are written, for at most flushTimeout.
func (w *logWriter) flush() {
	done, late := make(chan struct{}), time.After(flushTimeout)
	select {
	case w.flushes <- done:
	case <-late:
		return
	}
	select {
	case <-done:
	case <-late:
	}
}

// close writes the queued lines and stops, within flushTimeout.
func (w *logWriter) close() {
	close(w.closing)
	select {
	case <-w.done:
	case <-time.After(flushTimeout):
	}
}
