// Package replay answers what rules would have done to the requests of access logs, or of recordings: it runs
// the engine of the daemon over them in virtual time.
package replay

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/accesslog"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/recording"
)

// Options configure [Run].
type Options struct {
	// Rules are those to try, and Compare those in force, if any. Run changes what cannot be replayed
	// in them.
	Rules, Compare *rules.Set

	// Domain is that of the requests of logs; recordings have their own. Default: the only one of the rules.
	Domain string

	// Log says how to read logs. Its Entries are where values are found that have no default.
	Log accesslog.Options

	// MaxKeys bounds the keys that are counted. Default: 1,000,000.
	MaxKeys int

	// TopKeys is how many of the most denied keys the report has for each rule. Default: 10.
	TopKeys int

	// Suggest is the share of keys for which limits are suggested that never deny them, such as 0.999.
	// Default: no limit is suggested.
	Suggest float64

	// SuggestByRequests makes it the share of requests: those of keys that are never denied.
	SuggestByRequests bool

	// FailIf are the conditions under which the report fails.
	FailIf []Condition

	// OnProgress is called from time to time, with how many bytes of how many were read. Optional.
	OnProgress func(requests, read, size int64)
}

const (
	defaultMaxKeys = 1_000_000
	defaultTopKeys = 10
	progressEvery  = 1 << 16 // requests
)

// Errors of rules that do not fit the logs.
var (
	ErrDomain    = errors.New("choose a domain") // which must be one of the rules
	ErrNoEntries = errors.New("all rules have entries that logs do not have")
)

// ErrNoRequests means that no line of the logs was understood.
var ErrNoRequests = errors.New("no request in the logs")

func noRequests(logs []accesslog.Report) error {
	var names []string
	for i := range logs {
		names = append(names, fmt.Sprintf("%s has %d lines, and %d were not understood", logs[i].Name, logs[i].Lines, logs[i].Bad))
	}
	return fmt.Errorf("%w: %s; --format names another format", ErrNoRequests, strings.Join(names, ", "))
}

// Run replays logs: files, directories of recordings, or "-" for standard input.
func Run(ctx context.Context, paths []string, o Options) (*Report, error) {
	o.MaxKeys, o.TopKeys = cmp.Or(max(o.MaxKeys, 0), defaultMaxKeys), cmp.Or(max(o.TopKeys, 0), defaultTopKeys)
	r := &run{options: &o, slots: map[string]int{}}
	domain, domainErr := o.chooseDomain()
	if domainErr == nil {
		r.addSlots(domain)
	}
	logs, err := accesslog.Open(paths, &o.Log)
	if err != nil {
		return nil, err
	}
	defer func() { _ = logs.Close() }() // they were only read
	if logs.HasLogs() {
		if err := cmp.Or(domainErr, r.checkEntries(domain)); err != nil {
			return nil, err
		}
	}
	r.open(logs, domain)
	if err := r.all(ctx); err != nil {
		return nil, err
	}
	if r.requests == 0 { // a check must not pass because its log was another file
		return nil, noRequests(logs.Reports())
	}
	return r.report(), nil
}

// chooseDomain returns the domain of the requests of logs.
func (o *Options) chooseDomain() (string, error) {
	names := o.Rules.DomainNames()
	switch {
	case o.Domain != "" && !slices.Contains(names, o.Domain):
		return "", fmt.Errorf("%w: the rules have no domain %q, but %s", ErrDomain, o.Domain, strings.Join(names, ", "))
	case o.Domain != "":
		return o.Domain, nil
	case len(names) != 1:
		return "", fmt.Errorf("%w: the rules have %d: %s", ErrDomain, len(names), strings.Join(names, ", "))
	}
	return names[0], nil
}

// A run is one replay.
type run struct {
	options *Options
	logs    *accesslog.Reader
	domain  string
	slots   map[string]int // the index of the value of each entry

	new, old *world // old is nil without rules to compare with
	values   []string
	record   recording.Record

	requests, unmatched int64
	first, last         int64
	compared            [2]Changes // by each reading
	recorded            Changes
	stats               statistics
	notes               []string
}

// addSlots asks the logs for the values that rules need.
func (r *run) addSlots(domain string) {
	o := r.options
	given := map[string]string{}
	for _, e := range o.Log.Entries {
		given[e.Key] = e.Value
	}
	o.Log.Entries = nil
	for _, set := range []*rules.Set{o.Rules, o.Compare} {
		if set == nil {
			continue
		}
		for _, key := range slices.Concat(keyLists(set, domain)...) {
			if _, ok := r.slots[key]; !ok {
				r.slots[key] = len(o.Log.Entries)
				o.Log.Entries = append(o.Log.Entries, accesslog.Entry{Key: key, Value: given[key]})
			}
			delete(given, key)
		}
	}
	for key := range given {
		r.notes = append(r.notes, fmt.Sprintf("no rule of the domain %s has an entry %q", domain, key))
	}
}

// checkEntries notes which entries logs do not have. Without the others, no rule could be replayed.
func (r *run) checkEntries(domain string) error {
	unknown := map[string]bool{}
	var hints []string
	for _, e := range r.options.Log.Entries {
		if e.Value == "" && !accesslog.HasDefault(e.Key) {
			unknown[e.Key] = true
			hints = append(hints, fmt.Sprintf("--entry %s=field:NAME", e.Key))
		}
	}
	has, lacks := 0, 0
	for _, keys := range keyLists(r.options.Rules, domain) {
		if slices.ContainsFunc(keys, func(key string) bool { return unknown[key] }) {
			lacks++
		} else {
			has++
		}
	}
	switch {
	case has == 0:
		return fmt.Errorf("%w: say where the log has them, such as %s", ErrNoEntries, strings.Join(hints, " "))
	case lacks > 0:
		r.notes = append(r.notes, "rules with entries that logs do not have are not replayed: "+strings.Join(hints, " ")+" would say where they are")
	}
	return nil
}

func (r *run) open(logs *accesslog.Reader, domain string) {
	r.logs, r.domain = logs, domain
	r.new = r.openWorld(r.options.Rules)
	if r.options.Compare != nil {
		r.old = r.openWorld(r.options.Compare)
	}
	r.stats = newStatistics(r.options)
}

// openWorld makes the world of a set of rules.
func (r *run) openWorld(set *rules.Set) *world {
	r.simplify(set)
	readings := 1
	if r.logs.HasWholeSeconds() {
		readings = 2
	}
	w := newWorld(set, r.options.MaxKeys, readings)
	w.useLogs(r.domain, r.slots)
	return w
}

// simplify removes from rules what cannot be replayed, and notes it.
func (r *run) simplify(set *rules.Set) {
	for _, rule := range set.Rules() {
		rule.Candidate = nil // which decides nothing
		if rule.Penalty != nil {
			rule.Penalty = nil
			r.notes = append(r.notes, rule.Name+": bans of its penalty are not replayed")
		}
		if rule.Limit.HasPermits() && r.logs.HasLogs() {
			*rule = *rule.WithoutLimit()
			r.notes = append(r.notes, rule.Name+": concurrent, which cannot be replayed from a log; it allows everything")
		}
	}
}

// all decides all requests.
func (r *run) all(ctx context.Context) error {
	var q accesslog.Request
	for r.logs.Next(&q) {
		if r.requests%progressEvery == 0 {
			if err := ctx.Err(); err != nil {
				return err
			}
			if read, size := r.logs.Progress(); r.options.OnProgress != nil {
				r.options.OnProgress(r.requests, read, size)
			}
		}
		if r.requests++; r.requests == 1 {
			r.first = q.Time
		}
		r.first, r.last = min(r.first, q.Time), max(r.last, q.Time) // they come in the order of Spread
		r.decide(&q)
	}
	return nil
}

// decide decides a request under all rules.
func (r *run) decide(q *accesslog.Request) {
	if !q.Recorded {
		r.values = accesslog.AppendValues(r.values[:0], q.Data)
		r.decideAs(q, r.domain, func(w *world) []engine.Descriptor { return w.descriptors(r.values) })
		return
	}
	if err := r.record.Parse(q.Data); err != nil {
		r.new.fail(err)
		return
	}
	denied := r.decideAs(q, r.record.Domain, func(*world) []engine.Descriptor { return r.record.Descriptors })
	r.recorded.add(r.record.Denied, denied)
}

// decideAs decides a request by each reading, and reports whether the first denies it.
func (r *run) decideAs(q *accesslog.Request, domain string, descriptors func(*world) []engine.Descriptor) (denied bool) {
	r.new.match(domain, descriptors(r.new))
	if r.old != nil {
		r.old.match(domain, descriptors(r.old))
	}
	for i := range r.new.readings {
		over, ok := r.new.decide(i, q)
		newly := false
		if r.old != nil {
			before, _ := r.old.decide(i, q)
			r.compared[i].add(before, over)
			newly = over && !before
		}
		switch {
		case i == spread:
			denied = over
			r.count(ok, q, newly)
		case over:
			r.countAtOnce()
		}
	}
	return denied
}

// count counts the keys of a request that was decided by the first reading, if it could be.
func (r *run) count(decided bool, q *accesslog.Request, newly bool) {
	limited := false
	for i := range r.new.matches {
		m := &r.new.matches[i]
		if !decided || m.rule == nil {
			continue
		}
		limited = true
		var deniedBy *rules.Rule
		if s := &r.new.readings[spread].result.Statuses[i]; isDenied(s) {
			deniedBy = s.Rule
		}
		r.stats.add(&counted{m.rule, deniedBy, m.key, q.Spread, r.crowdTime(q), m.cost, newly})
	}
	if !limited {
		r.unmatched++
	}
}

// crowdTime is when a request has come for the suggestions, which must not be too small. Requests of several logs come in
// the order of Spread; then those of a second that is read twice are one crowd.
func (r *run) crowdTime(q *accesslog.Request) int64 {
	if len(r.new.readings) > 1 && r.logs.Len() > 1 {
		return q.Time - q.Time%int64(time.Second)
	}
	return q.Time
}

// countAtOnce counts the keys of a request that the second reading denies.
func (r *run) countAtOnce() {
	for i := range r.new.matches {
		if s := &r.new.readings[atOnce].result.Statuses[i]; isDenied(s) {
			r.stats.addAtOnce(s.Rule, r.new.matches[i].key)
		}
	}
}

// Changes are how requests were decided before, and how many of them are decided otherwise.
type Changes struct {
	Requests    int64 `json:"requests"`
	Denied      int64 `json:"denied"` // before
	NewlyDenied int64 `json:"newly_denied"`
	NewlyAllow  int64 `json:"newly_allowed"`
}

func (c *Changes) add(was, is bool) {
	c.Requests++
	if was {
		c.Denied++
	}
	switch {
	case is && !was:
		c.NewlyDenied++
	case was && !is:
		c.NewlyAllow++
	}
}
