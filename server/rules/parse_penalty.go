package rules

import (
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"go.yaml.in/yaml/v3"
)

// maxPenalty is the longest ban of a penalty.
const maxPenalty = 366 * 24 * time.Hour

// readPenalty reads the penalty of a rule: {after: 100/1m, for: 10m, up_to: 24h}.
func (r *reader) readPenalty(f field) *Penalty {
	if f.value.Kind != yaml.MappingNode {
		r.failType(f, "a map such as {after: 100/1m, for: 10m, up_to: 24h}")
		return nil
	}
	p := &Penalty{}
	for _, f := range r.readFields(f.value, 0) {
		switch f.name {
		case "after":
			p.After, p.Within = r.denials(f)
		case "for":
			p.For = r.duration(f)
		case "up_to":
			p.UpTo = r.duration(f)
		default:
			r.misplaced(f)
		}
	}
	if p.UpTo == 0 {
		p.UpTo = max(p.For, defaultUpTo)
	}
	switch {
	case p.After == 0 || p.For == 0:
		r.fail(f.line, "penalty: needs after and for, such as {after: 100/1m, for: 10m, up_to: 24h}")
	case p.UpTo < p.For || p.UpTo > maxPenalty:
		r.fail(f.line, "penalty: up_to: want from %s to 366d, got %s", p.For, p.UpTo)
	}
	return p
}

// defaultUpTo is the longest ban of a penalty that does not say how long.
const defaultUpTo = 24 * time.Hour

// denials reads how many denials within which time are too many.
func (r *reader) denials(f field) (int64, time.Duration) {
	l, err := penstock.ParseLimit(f.value.Value + " fixed-window")
	if err != nil || l.Count < 1 || strings.ContainsAny(f.value.Value, " \t\r\n") {
		r.fail(f.line, "after: want denials per time, such as 100/1m, got %s", r.kindText(f.value))
	}
	return l.Count, l.Period
}
