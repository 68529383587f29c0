package main

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/server/adminapi"
	"github.com/penstock-io/penstock/server/observe"
	"github.com/penstock-io/penstock/server/replay"
)

// A topFrame is one picture of penstock top. Its lines depend on nothing else, so that
// they can be tested without a terminal.
type topFrame struct {
	live         observe.Live
	failedReload *adminapi.Reload // nil unless the last load of the rules failed
	top          *observe.Top     // nil in the live view
	candidates   []adminapi.Candidate
	sort         string
	width        int
	color        bool
}

func (f *topFrame) lines() []string {
	lines := append(f.header(), f.warnings()...)
	lines = append(lines, f.rates(), "")
	if f.top != nil {
		lines = append(lines, f.keys()...)
	} else {
		lines = append(append(lines, f.store()), f.home()...)
		lines = append(lines, f.listeners()...)
		lines = append(append(lines, ""), f.rules()...)
		lines = append(lines, f.compared()...)
	}
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return lines
}

func (f *topFrame) paint(code, text string) string {
	if !f.color || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (f *topFrame) bold(text string) string   { return f.paint("1", text) }
func (f *topFrame) dim(text string) string    { return f.paint("2", text) }
func (f *topFrame) red(text string) string    { return f.paint("31", text) }
func (f *topFrame) yellow(text string) string { return f.paint("33", text) }

// header says which server it is, or how many.
func (f *topFrame) header() []string {
	l := &f.live
	up := l.Time.Sub(l.Started).Truncate(time.Second)
	text := fmt.Sprintf("penstock %s  %s  up %v  %s", printable(l.Version), printable(l.Daemon), up, l.Time.Format(time.TimeOnly))
	if l.Scope == observe.ScopeAll {
		text = fmt.Sprintf("penstock  all %d daemons, seen by %s  %s", len(l.Daemons), printable(l.Daemon), l.Time.Format(time.TimeOnly))
	}
	return []string{f.bold(f.cut(text))}
}

// warnings say what is wrong.
func (f *topFrame) warnings() (lines []string) {
	s := &f.live.Store
	if s.Degraded {
		lines = append(lines, f.red(f.cut("decided without the store: "+printable(strings.Join(s.Reasons, "; ")))))
	}
	if r := f.failedReload; r != nil && len(r.Errors) > 0 {
		first := r.Errors[0]
		text := "old rules in force, the last load failed: " + first.Reason
		if first.File != "" {
			text = fmt.Sprintf("old rules in force, the last load failed: %s:%d: %s", filepath.Base(first.File), first.Line, first.Reason)
		}
		lines = append(lines, f.red(f.cut(printable(text))))
	}
	for _, loss := range s.StateLosses {
		if loss.Count > 0 {
			lines = append(lines, f.yellow(fmt.Sprintf("the store lost state %d times (%s)", loss.Count, printable(loss.Reason))))
		}
	}
	for _, d := range f.live.Daemons {
		if d.Missing {
			lines = append(lines, f.yellow(f.cut("no news from "+printable(d.Name))))
		}
	}
	return lines
}

// compared shows what limits that are tried would change.
func (f *topFrame) compared() (lines []string) {
	for _, c := range f.candidates {
		text := fmt.Sprintf("candidate %s of %s: %s requests, %s denied, %s would be: %s newly, %s no longer", printable(c.Candidate), printable(c.Rule),
			count(c.Requests), count(c.Denied), count(c.WouldDeny), count(c.NewlyDenied), count(c.NewlyAllowed))
		lines = append(lines, f.cut(text))
	}
	return lines
}

func (f *topFrame) rates() string {
	r := &f.live.Rates
	text := fmt.Sprintf("%s decisions/s  ", rate(r.Decisions)) +
		f.redIf(r.Denied > 0, rate(r.Denied)+" denied/s") + "  " +
		fmt.Sprintf("%s shadow denials/s  ", rate(r.Shadowed)) +
		f.redIf(r.Errors > 0, rate(r.Errors)+" errors/s")
	decisions := make([]uint64, len(f.live.Series.Allowed))
	for i := range decisions {
		decisions[i] = f.live.Series.Allowed[i] + at(f.live.Series.Denied, i) + at(f.live.Series.Shadowed, i)
	}
	const taken = 75 // by the text before it, at most
	return text + "  " + sparkline(decisions, max(0, min(f.width-taken, 60)))
}

func at(values []uint64, i int) uint64 {
	if i < len(values) {
		return values[i]
	}
	return 0
}

func (f *topFrame) redIf(bad bool, text string) string {
	if bad {
		return f.red(text)
	}
	return text
}

func (f *topFrame) store() string {
	s, p := &f.live.Store, &f.live.Process
	text := "store " + printable(s.Kind)
	if m := s.Memory; m != nil {
		text += fmt.Sprintf(": %s of %s keys, %s of logs", count(uint64(m.Keys)), count(uint64(m.MaxKeys)), bytesText(uint64(m.Bytes)))
		if m.Overflow > 0 {
			text += f.red(fmt.Sprintf(", %s decisions by overflow buckets", count(m.Overflow)))
		}
	}
	down := 0
	for _, shard := range s.Shards {
		if shard.State != "up" {
			down++
		}
	}
	if len(s.Shards) > 0 {
		text += fmt.Sprintf(": %d of %d shards up, %s failed calls", len(s.Shards)-down, len(s.Shards), count(s.Errors))
	}
	return text + fmt.Sprintf("  process: %s, %d goroutines", bytesText(p.TotalBytes), p.Goroutines)
}

// home returns what global limits cost, if there are any.
func (f *topFrame) home() []string {
	h := f.live.Store.Home
	if h == nil {
		return nil
	}
	state := map[bool]string{false: "up", true: "down"}[h.Down]
	text := fmt.Sprintf("home %s: %s units from pools, %s waited, %s lots after %s: %s short, %s failed, %s lost",
		state, count(h.Spent), count(h.Waited), count(h.Lots), latency(&h.LotAge), count(h.Short), count(h.Failed), count(h.Lost))
	return []string{f.redIf(h.Down, f.cut(text))}
}

func (f *topFrame) listeners() (lines []string) {
	for _, l := range f.live.Listeners {
		lines = append(lines, fmt.Sprintf("%-6s %6d connections  %12s calls  50%% %-8s 90%% %-8s 99%% %s",
			printable(l.Name), l.Connections, count(l.Calls), latency(l.P50), latency(l.P90), latency(l.P99)))
	}
	return lines
}

// rules returns the table of rules. The name is last, because only its width is unknown.
func (f *topFrame) rules() []string {
	const steps = 30
	title := fmt.Sprintf("%10s %8s %8s  %-*s  %s", "DECISIONS/s", "DENIED", "SHADOW", steps, "LAST "+strings.ToUpper(string(f.live.Window)), "RULE")
	lines := []string{f.bold(title)}
	for _, r := range f.live.Rules {
		name := printable(r.Name)
		name = cmp.Or(name, "(limits in requests)")
		if r.Limit != "" {
			name += "  " + f.dim(printable(withoutName(r.Limit)))
		}
		lines = append(lines, fmt.Sprintf("%11s %s %8s  %-*s  %s", rate(r.Rate),
			f.redIf(r.DeniedShare > 0, fmt.Sprintf("%8s", percent(r.DeniedShare))), percent(r.ShadowShare),
			steps, sparkline(r.Decisions, steps), name))
	}
	if more := f.live.RulesMatching - len(f.live.Rules); more > 0 {
		lines = append(lines, f.dim(fmt.Sprintf("%d more rules, by %s", more, f.sort)))
	}
	return lines
}

// keys returns the table of top keys.
func (f *topFrame) keys() []string {
	t := f.top
	if !t.Enabled {
		return []string{"the server counts no keys (--top-keys 0)"}
	}
	what := map[string]string{observe.ByAsked: "decisions", observe.ByDenied: "denials"}[t.By]
	about := fmt.Sprintf("%s since %s: %s", what, t.Since.In(t.Time.Location()).Format(time.TimeOnly), count(t.Total))
	if t.Sampling > 1 {
		about += fmt.Sprintf(", one in %d sampled", t.Sampling)
	}
	lines := []string{about, f.bold(fmt.Sprintf("%12s %8s %10s  %-28s %s", strings.ToUpper(what), "SHARE", "SHADOWED", "RULE", "KEY"))}
	for _, k := range t.Keys {
		rule := printable(k.Rule)
		rule = cmp.Or(rule, printable(k.Limit))
		lines = append(lines, fmt.Sprintf("%12s %8s %10s  %-28s %s", count(k.Guaranteed), percent(k.Share), count(k.Shadowed), rule, keyText(&k)))
	}
	return lines
}

func keyText(k *observe.TopKey) string {
	text := printable(k.Key)
	if k.KeyBase64 != "" {
		text = "base64:" + printable(k.KeyBase64)
	}
	if k.Truncated {
		text += "…"
	}
	return text
}

// cut cuts a line that is wider than the screen.
func (f *topFrame) cut(line string) string {
	runes := []rune(line)
	if len(runes) <= f.width || f.width == 0 {
		return line
	}
	return string(runes[:f.width-1]) + "…"
}

// printable escapes what a terminal could act on: keys are texts of remote callers.
func printable(text string) string { return replay.Printable(text) }

// sparkline draws values in a number of columns, the newest at the right.
func sparkline(values []uint64, columns int) string {
	if columns <= 0 || len(values) == 0 {
		return ""
	}
	sums := make([]int64, min(len(values), columns))
	for i, v := range values {
		sums[i*len(sums)/len(values)] += int64(v)
	}
	return replay.Bars(sums, slices.Max(sums))
}

// count writes a number with commas between thousands.
func count(n uint64) string { return replay.Thousands(int64(n)) }

// rate writes decisions a second.
func rate(n float64) string {
	const exact = 10
	if n > 0 && n < exact {
		return strconv.FormatFloat(n, 'f', 1, 64)
	}
	return count(uint64(n + 0.5))
}

func percent(share float64) string {
	const whole = 100
	if share == 0 {
		return "0 %"
	}
	return strconv.FormatFloat(share*whole, 'f', 1, 64) + " %"
}

func bytesText(n uint64) string {
	const step = 1024
	units, size := []string{"B", "KiB", "MiB", "GiB", "TiB"}, float64(n)
	for size >= step && len(units) > 1 {
		size, units = size/step, units[1:]
	}
	return fmt.Sprintf("%.4g %s", size, units[0])
}

// latency writes seconds, or a dash if there were no decisions.
func latency(seconds *float64) string {
	if seconds == nil {
		return "-"
	}
	d := time.Duration(*seconds * float64(time.Second))
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	}
	return d.Round(10 * time.Nanosecond).String()
}
