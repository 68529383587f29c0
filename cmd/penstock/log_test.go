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
	log, flush := newLog(&server.Config{LogLevel: slog.LevelInfo}, writer)
	for i := range 3 * waitingLines {
		log.Info("a line", "n", i)
	}
	read := make(chan string)
	go func() {
		text, _ := io.ReadAll(reader)
		read <- string(text)
	}()
	flush()
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
	log, flush := newLog(&server.Config{LogFormat: "json"}, &text)
	log.Info("bye")
	flush()
	if !strings.Contains(text.String(), `"msg":"bye"`) {
		t.Errorf("got %q, want the last line", text.String())
	}
	_, deaf := io.Pipe()
	log, flush = newLog(&server.Config{}, deaf)
	log.Info("bye")
	flush()
}
