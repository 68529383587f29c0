package storetest

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
)

// An answer is what a transcript expects of a request: the decision, or, for a
// request that is asked several times over, the last of them.
type answer struct {
	times   int // how often it was asked
	allowed int // how many of those were allowed
	last    penstock.Decision
}

// String returns the answer as transcripts have it behind the arrow.
func (a answer) String() string {
	if a.times == 1 {
		return decisionText(a.last)
	}
	return fmt.Sprintf("%d allowed, last %s", a.allowed, decisionText(a.last))
}

// parseAnswer reads what String returns, about a request asked so many times.
func parseAnswer(s string, times int) (answer, error) {
	if times == 1 {
		d, err := parseDecision(s)
		return answer{times: 1, allowed: count(d.Allowed), last: d}, err
	}
	allowed, last, ok := strings.Cut(s, " allowed, last ")
	if !ok {
		return answer{}, fmt.Errorf("want \"N allowed, last DECISION\", got %q", s)
	}
	n, err := strconv.Atoi(allowed)
	if err != nil {
		return answer{}, fmt.Errorf("want how many were allowed, got %q", allowed)
	}
	d, err := parseDecision(last)
	return answer{times: times, allowed: n, last: d}, err
}

func count(allowed bool) int {
	if allowed {
		return 1
	}
	return 0
}

// decisionText returns a decision in the words of transcripts, without what is
// zero.
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
			return d, fmt.Errorf("%q: said before", word)
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
	for source := penstock.SourceStore; source <= penstock.SourceFallback; source++ {
		if source.String() == s {
			return source, nil
		}
	}
	return 0, fmt.Errorf("nobody of that name decides")
}

const day = 24 * time.Hour

// durationText returns a duration as people write it: 1d2h, 90ms, never.
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

// parseDuration reads what durationText returns, and refuses what is not in
// whole ticks.
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
