// Package requestlog logs and counts what is remarkable about the requests to an API:
// requests that make no sense, and a sample of the denials. Remote callers can cause any
// number of both, so the lines are limited, and texts of callers are cut. Handlers of slog
// quote them.
package requestlog

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"unicode/utf8"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/lograte"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
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
	panics    *lograte.Sampler
	onInvalid func(Reason)
}

// New returns a log. The limit of denials must be valid.
func New(o Options) (*Log, error) {
	l := &Log{log: o.Log.With("api", o.API), invalid: lograte.PerSecond(), panics: lograte.PerSecond(), onInvalid: o.OnInvalid}
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

// Panicked logs a panic with its stack, at most once a second. The function that recovers from it
// calls it. A nil Log logs it to [slog.Default]: a panic is a defect, of which there must be a trace.
func (l *Log) Panicked(value any, from string) {
	log, skipped, ok := slog.Default(), int64(0), true
	if l != nil {
		log = l.log
		skipped, ok = l.panics.Allow()
	}
	if ok {
		log.Error("panic", "value", Cut(fmt.Sprint(value)), "from", from, "stack", string(debug.Stack()), "not_logged", skipped)
	}
}

// Denied logs the denial of a request under a limit that it brought, if it is sampled.
func (l *Log) Denied(limit penstock.Limit, key string, d *penstock.Decision) {
	if skipped, ok := l.sampleDenial(); ok {
		l.logDenial(slog.String("limit", limit.String()), key, d, skipped)
	}
}

// DeniedByRules logs the descriptors that denied a request, if they are sampled.
func (l *Log) DeniedByRules(ds []engine.Descriptor, r *engine.Result) {
	if l == nil || l.denials == nil || !r.OverLimit {
		return
	}
	for i := range r.Statuses {
		if s := &r.Statuses[i]; s.OverLimit {
			l.DeniedByRule(s.Rule, ds[i].Entries, &s.Decision)
		}
	}
}

// DeniedByRule logs a descriptor that denied a request, if it is sampled. The rule is nil if
// no rule matched.
func (l *Log) DeniedByRule(rule *rules.Rule, entries []rules.Entry, by *penstock.Decision) {
	skipped, ok := l.sampleDenial()
	if !ok {
		return
	}
	name := "none matched"
	if rule != nil {
		name = rule.Name
	}
	l.logDenial(slog.String("rule", name), string(rules.AppendKey(nil, entries)), by, skipped)
}

// sampleDenial reports whether a denial is to be logged now, and how many were not since
// the last one. If denials are not logged, that takes no time.
func (l *Log) sampleDenial() (skipped int64, ok bool) {
	if l == nil || l.denials == nil {
		return 0, false
	}
	return l.denials.Allow()
}

// logDenial logs a denial that sampleDenial has chosen, under a rule or a limit.
func (l *Log) logDenial(under slog.Attr, key string, d *penstock.Decision, skipped int64) {
	retry := d.RetryAfter.String()
	if d.RetryAfter == penstock.Never {
		retry = "never"
	}
	attrs := []any{under, slog.String("key", Cut(key)), slog.String("retry_after", retry)}
	if d.Source == penstock.SourceOverride { // whatever is left of the limit
		attrs = append(attrs, slog.Bool("banned", true))
	}
	l.log.Info("denied", append(attrs, slog.Int64("not_logged", skipped))...)
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
