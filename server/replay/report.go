package replay

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/penstock-io/penstock/server/accesslog"
)

// A Report is what a replay has found out.
type Report struct {
	Logs     []accesslog.Report `json:"logs"`
	From     time.Time          `json:"from"`
	To       time.Time          `json:"to"`
	Requests int64              `json:"requests"`
	Denied   Denials            `json:"denied"`

	// Unmatched requests have no rule.
	Unmatched int64 `json:"unmatched"`

	Rules    []Rule      `json:"rules"`
	Column   float64     `json:"column_seconds"` // the length of a column of a timeline
	Compared *Comparison `json:"compared,omitempty"`
	Recorded *Changes    `json:"recorded,omitempty"` // against what the recorded daemon decided

	Assumed  []string `json:"assumed"`
	Failures []string `json:"failures"` // the conditions that are met, and why
}

// Denials are how many requests are denied. If the times of a log are whole seconds, Count is for requests that
// came evenly spread over their second, and AtOnce for requests that all came when it began.
type Denials struct {
	Count  int64  `json:"count"`
	AtOnce *int64 `json:"at_once,omitempty"`
}

// most returns the larger number.
func (d *Denials) most() int64 {
	if d.AtOnce != nil {
		return max(d.Count, *d.AtOnce)
	}
	return d.Count
}

// A Rule is what happened under a rule.
type Rule struct {
	Name        string      `json:"name"`
	Limit       string      `json:"limit"` // "" if there is none
	Shadow      bool        `json:"shadow,omitempty"`
	Requests    int64       `json:"requests"`
	Denied      Denials     `json:"denied"`
	Was         *Denials    `json:"was,omitempty"` // under the rules to compare with; nil if these have no such rule
	NewlyDenied int64       `json:"newly_denied"`
	Keys        int64       `json:"keys"`
	DeniedKeys  int64       `json:"denied_keys"`
	MoreKeys    bool        `json:"more_keys,omitempty"` // there are more, which were not counted by themselves
	Top         []Key       `json:"most_denied"`
	Timeline    []Bucket    `json:"timeline"`
	Suggested   *Suggestion `json:"suggested,omitempty"`
}

// A Key is what happened to a key of a rule.
type Key struct {
	Key         string    `json:"key"`
	Requests    int64     `json:"requests"`
	Denied      int64     `json:"denied"`
	NewlyDenied int64     `json:"newly_denied,omitempty"`
	First       time.Time `json:"first_denied"`
	Last        time.Time `json:"last_denied"`
}

// A Comparison is what changes between two sets of rules.
type Comparison struct {
	Denied      Denials  `json:"denied"` // by the rules to compare with
	NewlyDenied Denials  `json:"newly_denied"`
	NewlyAllow  Denials  `json:"newly_allowed"`
	Gone        []string `json:"gone_rules"`
}

// report returns the report, after all requests are decided.
func (r *run) report() *Report {
	o := r.options
	all := &Report{
		Logs: r.logs.Reports(), From: time.Unix(0, r.first).UTC(), To: time.Unix(0, r.last).UTC(),
		Requests: r.requests, Denied: r.both(func(i int) int64 { return r.new.readings[i].denied }), Unmatched: r.unmatched,
		Column: time.Duration(r.stats.timeline.width).Seconds(), Rules: []Rule{}, Assumed: []string{}, Failures: []string{},
	}
	if r.recorded.Requests > 0 {
		all.Recorded = &r.recorded
	}
	for i := range o.Rules.Rules() {
		all.Rules = append(all.Rules, r.ruleReport(i))
	}
	if r.old != nil {
		all.Compared = &Comparison{
			Denied:      r.both(func(i int) int64 { return r.compared[i].Denied }),
			NewlyDenied: r.both(func(i int) int64 { return r.compared[i].NewlyDenied }),
			NewlyAllow:  r.both(func(i int) int64 { return r.compared[i].NewlyAllow }),
			Gone:        o.Rules.Lost(o.Compare),
		}
	}
	all.Assumed = append(all.Assumed, r.assumptions(all)...)
	for _, c := range o.FailIf {
		if why := c.check(all, &r.stats, o); why != "" {
			all.Failures = append(all.Failures, why)
		}
	}
	return all
}

// both returns a number of each reading.
func (r *run) both(number func(reading int) int64) Denials {
	d := Denials{Count: number(spread)}
	if len(r.new.readings) > 1 {
		d.AtOnce = new(number(atOnce))
	}
	return d
}

func (r *run) ruleReport(i int) Rule {
	rule, s := r.options.Rules.Rules()[i], &r.stats.rules[i]
	found := Rule{
		Name: rule.Name, Shadow: rule.Shadow, Requests: s.requests,
		Denied: r.both(func(v int) int64 { return r.new.readings[v].deniedBy[i] }), NewlyDenied: s.newly,
		Keys: int64(len(s.keys)), MoreKeys: s.others > 0, Timeline: r.stats.timeline.used(i, r.last),
		Suggested: s.suggest(r.options),
	}
	if !rule.Unlimited {
		found.Limit = rule.Limit.WithName("").String()
	}
	found.Top, found.DeniedKeys = s.mostDenied(r.options.TopKeys)
	if r.options.Compare != nil {
		if old := r.options.Compare.Rule(rule.Name); old != nil {
			found.Was = new(r.both(func(v int) int64 { return r.old.readings[v].deniedBy[old.Index] }))
		}
	}
	return found
}

// assumptions returns what the reader must know about the logs, and about the bounds of the replay.
func (r *run) assumptions(all *Report) (notes []string) {
	for i := range all.Logs {
		notes = append(notes, logNotes(&all.Logs[i])...)
	}
	if d := all.Denied; d.AtOnce != nil && *d.AtOnce == d.Count {
		notes = append(notes, "it makes no difference whether requests came evenly spread over their second, or all at once")
	} else if d.AtOnce != nil {
		notes = append(notes, fmt.Sprintf("within a second: %s are denied if requests came evenly spread, %s if all came at once",
			countAndShare(d.Count, all.Requests), countAndShare(*d.AtOnce, all.Requests)))
	}
	notes = append(notes, "no key had used anything of its limit when the log begins")
	if n := r.stats.untracked(); n > 0 {
		notes = append(notes, fmt.Sprintf("more than %s keys: %s requests of others are in the sums, but not in the lists of keys (--max-keys)",
			Thousands(int64(r.options.MaxKeys)), Thousands(n)))
	}
	if n := r.new.readings[spread].memory.Stats().OverflowDecisions; n > 0 {
		notes = append(notes, fmt.Sprintf("more than %s keys were active at once: %s decisions were made by an overflow bucket that new keys share, so up to so many denials are too many (--max-keys)",
			Thousands(int64(r.options.MaxKeys)), Thousands(n)))
	}
	if w := r.new; w.failed > 0 {
		notes = append(notes, fmt.Sprintf("%s requests could not be decided, and count as allowed; the first: %v", Thousands(w.failed), w.firstErr))
	}
	return append(notes, slices.Compact(r.notes)...)
}

// logNotes returns what is uncertain about a log.
func logNotes(l *accesslog.Report) (notes []string) {
	add := func(format string, args ...any) { notes = append(notes, l.Name+": "+fmt.Sprintf(format, args...)) }
	if l.Bad > 0 {
		add("%s of %s lines were not understood, the first is line %d", Thousands(l.Bad), Thousands(l.Lines), l.FirstBad)
	}
	if l.Broken != "" {
		add("ends early: %s", l.Broken)
	}
	if l.Whole {
		add("times are whole seconds")
	}
	switch {
	case l.AtEnd && l.Timed == 0:
		add("times are those of the end of requests, and it has no durations: requests came earlier by as long as they took")
	case l.AtEnd && l.Timed < l.Lines-l.Bad:
		add("times are those of the end of requests; %s lines have no duration to subtract", Thousands(l.Lines-l.Bad-l.Timed))
	case l.AtEnd:
		add("times are those of the end of requests; their durations were subtracted")
	}
	if l.Late > 0 {
		add("%s lines were too far out of order, and are decided at the time of the line before", Thousands(l.Late))
	}
	return notes
}

// untracked returns how many requests had keys that are not counted by themselves.
func (s *statistics) untracked() (n int64) {
	for i := range s.rules {
		n += s.rules[i].others
	}
	return n
}

// Thousands returns a number with commas between thousands.
func Thousands(n int64) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

func countAndShare(n, of int64) string { return Thousands(n) + " (" + share(n, of) + ")" }

// share returns a share in percent, with as many digits that one request of it is visible, within reason.
func share(n, of int64) string {
	if of == 0 {
		return "0%"
	}
	percent := 100 * float64(n) / float64(of)
	digits := 1
	for digits < 4 && percent > 0 && percent < math.Pow10(1-digits) {
		digits++
	}
	return fmt.Sprintf("%.*f%%", digits, percent)
}
