// Package requestlog logs and counts what is remarkable about the requests to an API:
// requests that make no sense, and a sample of the denials. Remote callers can cause any
// number of both, so the lines are limited, and texts of callers are cut. Handlers of slog
// quote them.
package requestlog

import (
	"log/slog"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/lograte"
)

// Options configure a [Log].
type Options struct {
	// API is the name of the API: grpc, http or resp.
	API string

	// Log receives the lines. Required.
	Log *slog.Logger

	// Denials limits the lines about denials. Default: there are none.
	Denials penstock.Limit

	// OnInvalid is called for each invalid request. Optional.
	OnInvalid func(Reason)
}

// A Log is safe for concurrent use. A nil Log does nothing.
type Log struct {
	log       *slog.Logger
	invalid   *lograte.Sampler
	denials   *lograte.Sampler // nil if denials are not logged
	onInvalid func(Reason)
}

// New returns a log. The limit of denials must be valid.
func New(o Options) (*Log, error) {
	l := &Log{log: o.Log.With("api", o.API), invalid: lograte.PerSecond(), onInvalid: o.OnInvalid}
	if l.onInvalid == nil {
		l.onInvalid = func(Reason) {}
	}
	if o.Denials == (penstock.Limit{}) {
		return l, nil
	}
	var err error
	l.denials, err = lograte.NewSampler(o.Denials)
	return l, err
}

// Invalid counts a request that makes no sense, and logs it, at most once a second. From is
// the address of the caller.
func (l *Log) Invalid(reason Reason, problem, from string) {
	if l == nil || reason == "" {
		return
	}
	l.onInvalid(reason)
	if skipped, ok := l.invalid.Allow(); ok {
		l.log.Warn("invalid request", "reason", string(reason), "problem", Cut(problem), "from", from, "not_logged", skipped)
	}
}

// A Denial is what is logged about a denied request.
type Denial struct {
	Rule       string         // "" for a limit from a request, or if no rule matched
	Limit      penstock.Limit // of a request without a rule; zero if no rule matched
	Key        string
	RetryAfter time.Duration
}

// SampleDenial reports whether a denial is to be logged now, by LogDenial. It takes next to
// no time if denials are not logged.
func (l *Log) SampleDenial() (skipped int64, ok bool) {
	if l == nil || l.denials == nil {
		return 0, false
	}
	return l.denials.Allow()
}

// LogDenial logs a denial that SampleDenial chose.
func (l *Log) LogDenial(d Denial, skipped int64) {
	by := slog.String("rule", d.Rule)
	switch {
	case d.Rule != "":
	case d.Limit != (penstock.Limit{}):
		by = slog.String("limit", d.Limit.String())
	default:
		by = slog.String("rule", "none matched")
	}
	retry := d.RetryAfter.String()
	if d.RetryAfter == penstock.Never {
		retry = "never"
	}
	l.log.Info("denied", by, slog.String("key", Cut(d.Key)), slog.String("retry_after", retry), slog.Int64("not_logged", skipped))
}

// maxText is how many bytes of a caller's text are logged.
const maxText = 200

// Cut returns the beginning of a text of a caller, as valid UTF-8, in memory of its own.
func Cut(text string) string {
	if len(text) <= maxText {
		return strings.ToValidUTF8(strings.Clone(text), "\uFFFD")
	}
	end := maxText
	for end > maxText-utf8.UTFMax && !utf8.RuneStart(text[end]) {
		end--
	}
	return strings.ToValidUTF8(text[:end], "\uFFFD") + "…"
}
