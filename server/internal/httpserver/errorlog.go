package httpserver

import (
	"bytes"
	"log"
	"log/slog"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/lograte"
)

// errorLines is how many lines a second net/http may log. A client causes one by each connection that
// breaks off its TLS handshake, as port scanners do.
const errorLines = 10

// An errorLog passes lines of net/http on, up to errorLines a second.
type errorLog struct {
	log     *slog.Logger
	sampler *lograte.Sampler
}

func newErrorLog(to *slog.Logger) *log.Logger { //nolint:forbidigo // net/http takes no other
	sampler, _ := lograte.NewSampler(penstock.PerSecond(errorLines)) // no error: the limit is valid
	return log.New(&errorLog{to, sampler}, "", 0)                    //nolint:forbidigo // as above
}

// Write logs one line.
func (l *errorLog) Write(line []byte) (int, error) {
	if skipped, ok := l.sampler.Allow(); ok {
		l.log.Warn(string(bytes.TrimSpace(line)), "not_logged", skipped)
	}
	return len(line), nil
}
