package main

import (
	"bytes"
	"io"
	standard "log"
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
	queue   chan logLine
	dropped atomic.Int64  // lines dropped since the last warning
	closed  chan struct{} // nothing more is written
}

// A logLine is a line to write, or else a channel to close, because all lines before it are written.
type logLine struct {
	text    []byte
	written chan struct{}
}

const (
	maxQueuedLines = 1024
	flushTimeout   = 5 * time.Second // of an output that blocks, and not of a process that is held up
)

// newLog returns a logger with the configured level and format, and its writer, which
// must be closed.
func newLog(c *server.Config, to io.Writer) (*slog.Logger, *logWriter) {
	w := &logWriter{to: to, queue: make(chan logLine, maxQueuedLines), closed: make(chan struct{})}
	o := &slog.HandlerOptions{Level: c.LogLevel}
	if c.Ratelimit != nil && c.LogFormat == "json" {
		o.ReplaceAttr = ratelimitFields
	}
	logTo := func(to io.Writer) *slog.Logger {
		if c.LogFormat == "json" {
			return slog.New(slog.NewJSONHandler(to, o))
		}
		return slog.New(slog.NewTextHandler(to, o))
	}
	go w.run(logTo(to))
	return logTo(w), w
}

// A packageLog makes lines of the log of what packages write to the standard one. Of what a server sends that nobody has
// asked for, net/http writes all, and it may be a request that the server repeats, with its credentials.
type packageLog struct{ to *slog.Logger }

func (p packageLog) Write(line []byte) (int, error) {
	text, _, _ := strings.Cut(string(line), " starting with ")
	p.to.Warn("a package logs", "text", strings.TrimSpace(text))
	return len(line), nil
}

// useForPackages replaces the standard log.
func useForPackages(to *slog.Logger) {
	standard.SetFlags(0)               //nolint:forbidigo // nothing is logged here
	standard.SetOutput(packageLog{to}) //nolint:forbidigo // nor here
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
	case w.queue <- logLine{text: bytes.Clone(line)}:
	default:
		w.dropped.Add(1)
	}
	return len(line), nil
}

// run writes the queued lines, and warnings by a log without the queue.
func (w *logWriter) run(direct *slog.Logger) {
	for {
		select {
		case line := <-w.queue:
			if line.written != nil {
				close(line.written)
				continue
			}
			_, _ = w.to.Write(line.text) // an error cannot be logged
			if n := w.dropped.Swap(0); n > 0 {
				direct.Warn("log output was blocked, lines were dropped", "lines", n)
			}
		case <-w.closed:
			return
		}
	}
}

// flush waits until all queued lines are written, for at most flushTimeout.
func (w *logWriter) flush() {
	written, late := make(chan struct{}), time.After(flushTimeout)
	select {
	case w.queue <- logLine{written: written}:
	case <-late:
		return
	}
	select {
	case <-written:
	case <-late:
	}
}

// close writes the queued lines and stops, within flushTimeout.
func (w *logWriter) close() {
	w.flush()
	close(w.closed)
}
