package observe

import (
	"cmp"
	"context"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"

	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/internal/history"
)

// A LiveQuery selects what a [Live] contains.
type LiveQuery struct {
	Scope  string
	Window Window
	Sort   string // one of SortNames
	Filter string // text in the names of the rules
	Rules  int    // at most so many rows
}

// SortNames are the orders of the rules in a [Live]: the largest number first, or by name.
var SortNames = []string{"decisions", "denied", "denied_share", "shadow_share", "errors", "name"}

// Windows are all windows.
var Windows = []Window{TwoMinutes, OneHour, OneDay}

var resolutionOf = map[Window]history.Resolution{
	TwoMinutes: history.Seconds, OneHour: history.TenSeconds, OneDay: history.FiveMinutes,
}

// Live returns what the daemon does now, or all daemons together.
func (o *Observer) Live(ctx context.Context, q LiveQuery) *Live {
	l := o.summary(q.Window)
	if l.Scope = q.Scope; q.Scope == ScopeAll {
		l.mergeLive(o.options.LatencyBounds, o.others(ctx))
	}
	l.selectRules(q)
	return l
}

// summary returns what the daemon does now, with all rules.
func (o *Observer) summary(w Window) *Live {
	l := &Live{
		Time: o.options.Now().UTC(), Daemon: o.options.Name, Version: o.options.Version, Started: o.started.UTC(),
		Window: w, Store: o.options.Store(), Process: processState(), Listeners: o.listeners(w),
	}
	l.Series = newSeries(o.rules.Sum(resolutionOf[w]))
	l.Counts, l.Rates = l.Series.sum(), o.rates(o.rules.Sum(history.Seconds))
	for _, n := range o.engine.UnmatchedCounters() {
		l.Unmatched += n.Count
	}
	for _, n := range o.engine.StatsOfRules() {
		l.Banned += n.Banned.Load()
	}
	l.Rules = o.ruleRows(w)
	for _, c := range o.engine.RuleStats() {
		l.Totals.add(CountsOf(c))
	}
	return l
}

func (c *Counts) add(other Counts) {
	c.Allowed += other.Allowed
	c.Denied += other.Denied
	c.Shadowed += other.Shadowed
	c.Errors += other.Errors
}

// Decisions returns the sum of all outcomes.
func (c Counts) Decisions() uint64 { return c.Allowed + c.Denied + c.Shadowed + c.Errors }

func newSeries(s history.Span) Series {
	return Series{
		From: s.From, Step: int(s.Step), Last: int(s.Last), Allowed: s.Columns[allowedColumn], Denied: s.Columns[deniedColumn],
		Shadowed: s.Columns[shadowedColumn], Errors: s.Columns[errorsColumn],
	}
}

func (s *Series) sum() Counts {
	return Counts{Allowed: sum(s.Allowed), Denied: sum(s.Denied), Shadowed: sum(s.Shadowed), Errors: sum(s.Errors)}
}

func sum(numbers []uint64) (total uint64) {
	for _, n := range numbers {
		total += n
	}
	return total
}

// rateSeconds is how many seconds rates are the mean of.
const rateSeconds = 10

// rates returns the rates of the last seconds, or of fewer right after the start.
func (o *Observer) rates(s history.Span) Rates {
	n := len(s.Columns[0])
	seconds := min(max(s.From+int64(n)-o.started.Unix(), 1), rateSeconds)
	recent := newSeries(s)
	for _, column := range recent.columns() {
		*column = (*column)[n-int(seconds):]
	}
	c, t := recent.sum(), float64(seconds)
	return Rates{
		Decisions: float64(c.Decisions()) / t, Allowed: float64(c.Allowed) / t, Denied: float64(c.Denied) / t,
		Shadowed: float64(c.Shadowed) / t, Errors: float64(c.Errors) / t,
	}
}

// ruleRows returns a row for each rule, for limits in requests if there were any, and for
// the rules without a history of their own.
func (o *Observer) ruleRows(w Window) []RuleRow {
	known := map[string]*rules.Rule{}
	if set := o.engine.Rules(); set != nil {
		for _, r := range set.Rules() {
			known[r.Name] = r
		}
	}
	rows := []RuleRow{}
	var others Counts
	for _, c := range o.engine.RuleStats() {
		totals := CountsOf(c)
		span, ok := o.rules.Of(c.Rule, resolutionOf[w])
		switch {
		case !ok && o.rules.Len() >= history.MaxSeries:
			others.add(totals)
		case c.Rule != "" || totals != (Counts{}):
			row := o.newRow(c.Rule, totals, span, w)
			row.describe(known[c.Rule])
			if c.HasPermits {
				row.Permits = new(PermitsOf(c))
			}
			rows = append(rows, row)
		}
	}
	if span, ok := o.rules.Others(resolutionOf[w]); ok {
		rows = append(rows, o.newRow(OtherRules, others, span, w))
	}
	return rows
}

// PermitsOf returns the counters of the permits of a rule.
func PermitsOf(c *engine.RuleStats) Permits {
	return Permits{
		Granted: c.AllowedUnits(), Released: c.Permits.Released.Load(),
		NotHeld: c.Permits.NotHeld.Load(), HeldIDs: c.Permits.HeldIDs.Load(),
	}
}

func (r *RuleRow) describe(rule *rules.Rule) {
	if rule == nil {
		return
	}
	r.Limit = rule.Limit.WithName("").String()
	if rule.Shadow {
		r.Mode = "shadow"
	}
}

// newRow returns the row of a rule. The span has no columns before the first tick.
func (o *Observer) newRow(name string, totals Counts, s history.Span, w Window) RuleRow {
	row := RuleRow{Name: name, Mode: "enforce", Totals: totals, Decisions: []uint64{}, DeniedOrShadowed: []uint64{}}
	if s.Columns == nil {
		return row
	}
	series := newSeries(s)
	row.Counts = series.sum()
	row.setShares()
	row.Decisions = sparkline(w, series.Allowed, series.Denied, series.Shadowed, series.Errors)
	row.DeniedOrShadowed = sparkline(w, series.Denied, series.Shadowed)
	if recent, ok := o.rules.Of(name, history.Seconds); ok {
		row.Rate = o.rates(recent).Decisions
	}
	return row
}

func (r *RuleRow) setShares() {
	if n := float64(r.Counts.Decisions()); n > 0 {
		r.DeniedShare, r.ShadowShare = float64(r.Counts.Denied)/n, float64(r.Counts.Shadowed)/n
	}
}

// sparkSteps is how many steps of a window are one of a sparkline.
var sparkSteps = map[Window]int{TwoMinutes: 2, OneHour: 6, OneDay: 6}

// sparkline returns the sum of columns in fewer steps.
func sparkline(w Window, from ...[]uint64) []uint64 {
	line := make([]uint64, len(from[0])/sparkSteps[w])
	for _, column := range from {
		for i, n := range column {
			line[i/sparkSteps[w]] += n
		}
	}
	return line
}

// selectRules keeps the rows that a query selects.
func (l *Live) selectRules(q LiveQuery) {
	filter := strings.ToLower(q.Filter)
	l.Rules = slices.DeleteFunc(l.Rules, func(r RuleRow) bool { return !strings.Contains(strings.ToLower(r.Name), filter) })
	l.RulesMatching = len(l.Rules)
	slices.SortStableFunc(l.Rules, func(a, b RuleRow) int {
		return cmp.Or(cmp.Compare(b.sortValue(q.Sort), a.sortValue(q.Sort)), cmp.Compare(a.Name, b.Name))
	})
	l.Rules = l.Rules[:min(len(l.Rules), q.Rules)]
}

// sortValue returns the number by which rows are sorted. By name it is the same for all.
func (r *RuleRow) sortValue(order string) float64 {
	switch order {
	case "decisions":
		return float64(r.Counts.Decisions())
	case "denied":
		return float64(r.Counts.Denied + r.Counts.Shadowed)
	case "denied_share":
		return r.DeniedShare
	case "shadow_share":
		return r.ShadowShare
	case "errors":
		return float64(r.Counts.Errors)
	}
	return 0
}

func (o *Observer) listeners(w Window) []Listener {
	all := []Listener{}
	for _, l := range o.options.Listeners() {
		row := Listener{Name: l.Name, Connections: l.Connections, Refused: l.Refused}
		if s, ok := o.latency.Of(l.Name, resolutionOf[w]); ok {
			buckets := make([]uint64, len(s.Columns))
			for i, column := range s.Columns {
				buckets[i] = sum(column)
			}
			row.setLatency(o.options.LatencyBounds, buckets)
		}
		all = append(all, row)
	}
	return all
}

func (l *Listener) setLatency(bounds []float64, buckets []uint64) {
	l.buckets, l.Calls = buckets, sum(buckets)
	if l.Calls == 0 {
		return
	}
	for q, field := range map[float64]**float64{0.5: &l.P50, 0.9: &l.P90, 0.99: &l.P99} {
		*field = new(quantile(bounds, buckets, q))
	}
}

// quantile estimates a quantile from a histogram: within a bucket, values are taken to be
// spread evenly. Of values above all bounds nothing more is known than that.
func quantile(bounds []float64, buckets []uint64, q float64) float64 {
	rank := q * float64(sum(buckets))
	low := 0.0
	for i, n := range buckets[:len(bounds)] {
		if rank <= float64(n) && n > 0 {
			return low + (bounds[i]-low)*rank/float64(n)
		}
		rank -= float64(n)
		low = bounds[i]
	}
	return low
}

// processState returns what the process uses.
func processState() Process {
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/total:bytes"}}
	metrics.Read(samples)
	return Process{
		HeapBytes: samples[0].Value.Uint64(), TotalBytes: samples[1].Value.Uint64(),
		Goroutines: runtime.NumGoroutine(), Processors: runtime.GOMAXPROCS(0),
	}
}
