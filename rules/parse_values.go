package rules

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/penstock-io/penstock"
	"go.yaml.in/yaml/v3"
)

// texts returns a text, or a list of texts.
func (r *reader) texts(f field) (all []string) {
	if f.value.Kind != yaml.SequenceNode {
		return []string{r.text(f)}
	}
	for _, n := range f.value.Content {
		all = append(all, r.text(field{name: f.name, line: n.Line, value: r.resolveAlias(n)}))
	}
	return all
}

// text returns the text of a field. A value that YAML reads as another type, such as a
// number, is returned as it is written.
func (r *reader) text(f field) (s string) {
	switch {
	case f.value.Kind != yaml.ScalarNode:
		r.failType(f, "text")
	case f.value.Tag == "!!str" && utf8.ValidString(f.value.Value): // most are; decoding takes longer
		return f.value.Value
	case f.value.ShortTag() == "!!float":
		r.failFloat(f)
	case f.value.Decode(&s) != nil || strings.ToValidUTF8(s, "") != s:
		r.failType(f, "text")
	}
	return s
}

// flag returns a boolean field, in any of the spellings of YAML 1.1.
func (r *reader) flag(f field) bool {
	n := f.value
	if n.ShortTag() == "!!float" {
		r.failFloat(f)
		return false
	}
	if n.Kind == yaml.ScalarNode && n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0 {
		switch strings.ToLower(n.Value) {
		case "true", "yes", "on", "y":
			return true
		case "false", "no", "off", "n":
			return false
		}
	}
	r.failType(f, "true or false")
	return false
}

// requests returns the number in requests_per_unit.
func (r *reader) requests(f field) int64 {
	if f.value.ShortTag() == "!!float" {
		r.failFloat(f)
		return 0
	}
	return r.whole(f, 0, math.MaxUint32)
}

func (r *reader) whole(f field, least, most int64) (n int64) {
	if f.value.ShortTag() != "!!int" || f.value.Decode(&n) != nil || n < least || n > most {
		r.failType(f, fmt.Sprintf("a whole number from %d to %d", least, most))
	}
	return n
}

func (r *reader) fraction(f field) (x float64) {
	tag := f.value.ShortTag()
	if tag != "!!int" && tag != "!!float" || f.value.Decode(&x) != nil || !(x > 0 && x <= 1) {
		r.failType(f, "a number above 0 and at most 1, such as 0.25")
	}
	return x
}

// oneOf returns the index of a field's value among words, or -1.
func (r *reader) oneOf(f field, words ...string) int {
	i := slices.Index(words, f.value.Value)
	if i < 0 && !isNull(f.value) {
		r.failType(f, orList(words))
	}
	return i
}

func (r *reader) algorithm(f field) penstock.Algorithm {
	all := algorithmsThat(func(penstock.Limit) bool { return true })
	return penstock.Algorithm(max(0, r.oneOf(f, all...)))
}

func (r *reader) onStoreFailure(f field) OnStoreFailure {
	return FailLocal + OnStoreFailure(max(0, r.oneOf(f, failureNames[FailLocal:]...)))
}

// keptUnits reads a number of units, or a whole percentage.
func (r *reader) keptUnits(f field) keptUnits {
	text, percent := strings.CutSuffix(f.value.Value, "%")
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 0 || percent && n > 99 {
		r.failType(f, "a number of units, or a part of the limit from 0% to 99%, such as 20%")
	}
	return keptUnits{number: n, percent: percent}
}

// poolShare reads the part of a limit that regions may hold.
func (r *reader) poolShare(f field) float64 {
	text, ok := strings.CutSuffix(f.value.Value, "%")
	n, err := strconv.ParseFloat(text, 64)
	if !ok || err != nil || !(n > 0 && n <= 90) {
		r.failType(f, "a part of the limit above 0% and at most 90%, such as 12%")
		return 0
	}
	return n / 100
}

// duration reads a period in the syntax of a limit's text.
func (r *reader) duration(f field) time.Duration {
	l, ok := parseFixedWindow("1/", f)
	if !ok {
		r.failType(f, "a duration such as 30s, 1h30m or 7d, of at most 366 days")
	}
	return l.Period
}

// denials reads how many denials within which time are too many.
func (r *reader) denials(f field) (int64, time.Duration) {
	l, ok := parseFixedWindow("", f)
	if !ok || l.Count < 1 {
		r.failType(f, "denials per time, such as 100/1m")
	}
	return l.Count, l.Period
}

// parseFixedWindow parses a field, after a prefix, as a count per period.
func parseFixedWindow(prefix string, f field) (penstock.Limit, bool) {
	l, err := penstock.ParseLimit(prefix + f.value.Value + " fixed-window")
	return l, err == nil && !strings.ContainsAny(f.value.Value, " \t\r\n")
}

// maxHold is the longest time for which a store remembers an ID.
const maxHold = 24 * time.Hour

// hold reads how long an ID is remembered.
func (r *reader) hold(f field) time.Duration {
	d := r.duration(f)
	if d > maxHold {
		r.failType(f, "at most 24h")
	}
	return d
}

// failFloat reports a fractional number, which Envoy's service rejects everywhere.
func (r *reader) failFloat(f field) {
	r.fail(f.line, "%s: %s is not a whole number: put it in quotes if it is text",
		f.name, excerpt(f.value.Value))
}

func (r *reader) failType(f field, want string) {
	r.fail(f.line, "%s: want %s, got %s", f.name, want, r.kindText(f.value))
}

// kindText describes a value for messages: its kind or, if it is a scalar, its text.
func (r *reader) kindText(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	if isNull(n) {
		return "null"
	}
	return "'" + excerpt(n.Value) + "'"
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }
