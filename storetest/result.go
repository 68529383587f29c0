package storetest

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
)

// A result is what a transcript expects of a request: the decision, or, for a request
// that is repeated, the last decision and how many were allowed.
type result struct {
	times   int // the request was sent
	allowed int // how many of the times
	last    penstock.Decision

	unknownID bool // whether the error was ErrUnknownID
}

// unknownID is how transcripts write that error.
const unknownID = "unknown id"

// String returns the result as transcripts write it after the arrow.
func (a result) String() string {
	if a.unknownID {
		return unknownID
	}
	if a.times == 1 {
		return decisionText(a.last)
	}
	return fmt.Sprintf("%d allowed, last %s", a.allowed, decisionText(a.last))
}

// parseResult reads what String returns, for a request that was sent so many times.
func parseResult(s string, times int) (result, error) {
	if s == unknownID {
		return result{times: times, unknownID: true}, nil
	}
	if times == 1 {
		d, err := parseDecision(s)
		return result{times: 1, allowed: count(d.Allowed), last: d}, err
	}
	allowed, last, ok := strings.Cut(s, " allowed, last ")
	if !ok {
		return result{}, fmt.Errorf("want \"N allowed, last DECISION\", got %q", s)
	}
	n, err := strconv.Atoi(allowed)
	if err != nil {
		return result{}, fmt.Errorf("want the number of allowed requests, got %q", allowed)
	}
	d, err := parseDecision(last)
	return result{times: times, allowed: n, last: d}, err
}

func count(allowed bool) int {
	if allowed {
		return 1
	}
	return 0
}

// decisionText returns a decision as transcripts write it, without zero fields.
func decisionText(d penstock.Decision) string {
	var b strings.Builder
	if d.Allowed {
		b.WriteString("allowed")
	} else {
		b.WriteString("denied")
	}
	if d.Granted != 0 {
		fmt.Fprintf(&b, " granted=%d", d.Granted)
	}
	fmt.Fprintf(&b, " remaining=%d/%d", d.Remaining, d.Limit)
	for _, field := range durationFields(&d) {
		if *field.value != 0 {
			fmt.Fprintf(&b, " %s=%s", field.name, durationText(*field.value))
		}
	}
	if d.Source != penstock.SourceStore {
		fmt.Fprintf(&b, " source=%s", d.Source)
	}
	return b.String()
}

// parseDecision reads what decisionText returns.
func parseDecision(s string) (penstock.Decision, error) {
	var d penstock.Decision
	words := strings.Fields(s)
	if len(words) == 0 || words[0] != "allowed" && words[0] != "denied" {
		return d, fmt.Errorf("want a decision that begins with allowed or denied, got %q", s)
	}
	d.Allowed = words[0] == "allowed"
	seen := map[string]bool{}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		if seen[name] {
			return d, fmt.Errorf("%q: duplicate field", word)
		}
		seen[name] = true
		if err := setField(&d, name, value); err != nil {
			return d, fmt.Errorf("%q: %w", word, err)
		}
	}
	if !seen["remaining"] {
		return d, fmt.Errorf("want remaining=N/LIMIT in %q", s)
	}
	return d, nil
}

func setField(d *penstock.Decision, name, value string) (err error) {
	switch name {
	case "granted":
		d.Granted, err = strconv.ParseInt(value, 10, 64)
		return err
	case "remaining":
		left, limit, _ := strings.Cut(value, "/")
		if d.Remaining, err = strconv.ParseInt(left, 10, 64); err == nil {
			d.Limit, err = strconv.ParseInt(limit, 10, 64)
		}
		return err
	case "source":
		d.Source, err = parseSource(value)
		return err
	}
	for _, field := range durationFields(d) {
		if field.name == name {
			*field.value, err = parseDuration(value)
			return err
		}
	}
	return fmt.Errorf("a decision has no %q", name)
}

type durationField struct {
	name  string
	value *time.Duration
}

func durationFields(d *penstock.Decision) []durationField {
	return []durationField{
		{"retry", &d.RetryAfter}, {"reset", &d.ResetAfter}, {"delay", &d.Delay},
	}
}

func parseSource(s string) (penstock.Source, error) {
	for source := penstock.SourceStore; source <= penstock.SourceOverride; source++ {
		if source.String() == s {
			return source, nil
		}
	}
	return 0, fmt.Errorf("unknown source")
}

const day = 24 * time.Hour

// durationText returns a duration such as 1d2h, 90ms or never.
func durationText(d time.Duration) string {
	if d == penstock.Never {
		return "never"
	}
	if d < 0 {
		return "-" + durationText(-d)
	}
	days, rest := d/day, d%day
	s := rest.String()
	for _, zero := range []struct{ unit, zeroes string }{{"m", "0s"}, {"h", "0m"}} {
		if strings.HasSuffix(s, zero.unit+zero.zeroes) {
			s = strings.TrimSuffix(s, zero.zeroes)
		}
	}
	switch {
	case days == 0:
		return s
	case rest == 0:
		return fmt.Sprintf("%dd", days)
	}
	return fmt.Sprintf("%dd%s", days, s)
}

// parseDuration reads what durationText returns. A fraction of a tick is an error.
func parseDuration(s string) (time.Duration, error) {
	if s == "never" {
		return penstock.Never, nil
	}
	if positive, ok := strings.CutPrefix(s, "-"); ok {
		d, err := parseDuration(positive)
		return -d, err
	}
	var d time.Duration
	rest := s
	if days, after, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseInt(days, 10, 32)
		if err != nil {
			return 0, fmt.Errorf("want a number of days, got %q", days)
		}
		d, rest = time.Duration(n)*day, after
	}
	if rest != "" || d == 0 {
		more, err := time.ParseDuration(rest)
		if err != nil {
			return 0, fmt.Errorf("want a duration such as 1d2h or 1.5s, got %q", s)
		}
		d += more
	}
	if d%tick != 0 {
		return 0, fmt.Errorf("want whole milliseconds, got %q", s)
	}
	return d, nil
}
