package main

import (
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/server"
)

// Nobody reads at first. Whoever logs is not held up, and who reads at last is told
// what is missing.
func TestLogThatNobodyReadsHoldsNobodyUp(t *testing.T) {
	reader, writer := io.Pipe()
	log, lines := newLog(&server.Config{LogLevel: slog.LevelInfo}, writer)
	for i := range 3 * waitingLines {
		log.Info("a line", "n", i)
	}
	read := make(chan string)
	go func() {
		text, _ := io.ReadAll(reader)
		read <- string(text)
	}()
	lines.end()
	_ = writer.Close()
	text := <-read
	if n := strings.Count(text, "a line"); n < waitingLines || n > waitingLines+1 {
		t.Errorf("%d lines were written, want those that may wait and one under way", n)
	}
	if !strings.Contains(text, "nobody read the log, and lines were lost") {
		t.Errorf("nothing was said of lines that were lost:\n%s", text[len(text)-200:])
	}
}

// The last lines are written before the process ends, unless nobody reads them.
func TestLogEndsWithItsReader(t *testing.T) {
	var text strings.Builder
	log, lines := newLog(&server.Config{LogFormat: "json"}, &text)
	log.Info("bye")
	lines.end()
	if !strings.Contains(text.String(), `"msg":"bye"`) {
		t.Errorf("got %q, want the last line", text.String())
	}
	_, deaf := io.Pipe()
	log, lines = newLog(&server.Config{}, deaf)
	log.Info("bye")
	lines.end()
}

// Who asks for what was logged so far has it, and the log goes on.
func TestLogIsWrittenOnDemand(t *testing.T) {
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
	lines.end()
	if !strings.Contains(text.String(), "bye") {
		t.Errorf("got %q, want the last line too", text.String())
	}
	_, deaf := io.Pipe()
	log, lines = newLog(&server.Config{}, deaf)
	log.Info("nobody reads this")
	lines.flush()
	lines.end()
}
