package main

import (
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/penstock-io/penstock/server"
)

// The output blocks at first: logging does not. When the output continues, a warning has
// the number of dropped lines.
func TestLogDropsLinesWhenOutputBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, writer := io.Pipe()
		log, lines := newLog(&server.Config{LogLevel: slog.LevelInfo}, writer)
		for i := range 3 * maxQueuedLines {
			log.Info("a line", "n", i)
		}
		read := make(chan string)
		go func() {
			text, _ := io.ReadAll(reader)
			read <- string(text)
		}()
		lines.close()
		_ = writer.Close()
		text := <-read
		if n := strings.Count(text, "a line"); n < maxQueuedLines || n > maxQueuedLines+1 {
			t.Errorf("%d lines were written, want those in the queue and at most one being written", n)
		}
		if !strings.Contains(text, "log output was blocked, lines were dropped") {
			t.Errorf("no warning about dropped lines:\n%s", text[len(text)-200:])
		}
	})
}

// Close writes the last lines, and gives up if the output blocks.
func TestLogCloseWritesQueuedLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		log, lines := newLog(&server.Config{LogFormat: "json"}, &text)
		log.Info("bye")
		lines.close()
		if !strings.Contains(text.String(), `"msg":"bye"`) {
			t.Errorf("got %q, want the last line", text.String())
		}
		reader, blocked := io.Pipe()
		defer func() { _ = reader.Close() }()
		log, lines = newLog(&server.Config{}, blocked)
		log.Info("bye")
		lines.close()
	})
}

// Flush writes all lines so far and gives up if the output blocks; logging continues.
func TestLogFlushWritesQueuedLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		log, lines := newLog(&server.Config{}, &text)
		for range 100 {
			log.Info("here")
		}
		lines.flush()
		if n := strings.Count(text.String(), "here"); n != 100 {
			t.Errorf("%d lines were written, want all 100", n)
		}
		log.Info("bye")
		lines.close()
		if !strings.Contains(text.String(), "bye") {
			t.Errorf("got %q, want the last line too", text.String())
		}
		reader, blocked := io.Pipe()
		defer func() { _ = reader.Close() }()
		log, lines = newLog(&server.Config{}, blocked)
		log.Info("this blocks")
		lines.flush()
		lines.close()
	})
}
