package main

import (
	"bytes"
	"io"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/server"
)

// A logWriter writes lines in the background, and drops them when whoever should
// take them does not: a daemon whose log nobody reads must still decide, and end
// when it is told to.
type logWriter struct {
	to    io.Writer
	lines chan []byte
	lost  atomic.Int64       // lines that were dropped, and not told of yet
	asked chan chan struct{} // to be closed when all lines so far are written
	last  chan struct{}      // closed when there will be no more
	ended chan struct{}
}

const (
	waitingLines = 1024        // that may wait to be written
	lastLines    = time.Second // for what is left when somebody waits for that
)

// newLog returns the logger that the configuration wants, and its writer, which must
// be ended.
func newLog(c *server.Config, to io.Writer) (*slog.Logger, *logWriter) {
	w := &logWriter{
		to: to, lines: make(chan []byte, waitingLines),
		asked: make(chan chan struct{}), last: make(chan struct{}), ended: make(chan struct{}),
	}
	o := &slog.HandlerOptions{Level: c.LogLevel}
	log := slog.New(slog.NewTextHandler(w, o))
	if c.LogFormat == "json" {
		log = slog.New(slog.NewJSONHandler(w, o))
	}
	go w.run(log)
	return log, w
}

// Write never waits.
func (w *logWriter) Write(line []byte) (int, error) {
	select {
	case w.lines <- bytes.Clone(line):
	default:
		w.lost.Add(1)
	}
	return len(line), nil
}

func (w *logWriter) run(log *slog.Logger) {
	defer close(w.ended)
	for {
		select {
		case line := <-w.lines:
			w.write(log, line)
		case done := <-w.asked:
			w.writeAll(log)
			close(done)
		case <-w.last:
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
	_, _ = w.to.Write(line) // there is nobody to tell
	if n := w.lost.Swap(0); n > 0 {
		log.Warn("nobody read the log, and lines were lost", "lines", n)
	}
}

// flush writes what was logged so far, unless that takes too long.
func (w *logWriter) flush() {
	done, late := make(chan struct{}), time.After(lastLines)
	select {
	case w.asked <- done:
	case <-late:
		return
	}
	select {
	case <-done:
	case <-late:
	}
}

// end writes what is left, unless that takes too long.
func (w *logWriter) end() {
	close(w.last)
	select {
	case <-w.ended:
	case <-time.After(lastLines):
	}
}
