package replay

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"
)

const levels = "▁▂▃▄▅▆▇█"

// Text writes the report for a terminal.
func (r *Report) Text(w io.Writer) error {
	var b strings.Builder
	r.writeLogs(&b)
	r.writeTotals(&b)
	r.writeRules(&b)
	r.writeKeys(&b)
	r.writeSuggestions(&b)
	writeList(&b, "assumed", r.Assumed)
	writeList(&b, "failed", r.Failures)
	_, err := io.WriteString(w, b.String())
	return err
}

const timeFormat = "2006-01-02 15:04:05"

func (r *Report) writeLogs(b *strings.Builder) {
	for i := range r.Logs {
		l := &r.Logs[i]
		format := l.Format
		if format == "" {
			format = "no line was understood"
		}
		fmt.Fprintf(b, "%s: %s, %s lines\n", visible(l.Name), format, Thousands(l.Lines))
	}
	if r.Requests > 0 {
		fmt.Fprintf(b, "from %s to %s UTC\n", r.From.Format(timeFormat), r.To.Format(timeFormat))
	}
}

func (r *Report) writeTotals(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s requests, %s denied", Thousands(r.Requests), r.Denied.text(r.Requests))
	if r.Unmatched > 0 {
		fmt.Fprintf(b, ", %s without a rule", countAndShare(r.Unmatched, r.Requests))
	}
	b.WriteByte('\n')
	if c := r.Compared; c != nil {
		fmt.Fprintf(b, "before: %s denied; newly denied %s, newly allowed %s\n", c.Denied.text(r.Requests),
			c.NewlyDenied.text(r.Requests), c.NewlyAllow.text(r.Requests))
		for _, name := range c.Gone {
			fmt.Fprintf(b, "the rule %s is gone\n", visible(name))
		}
	}
	if c := r.Recorded; c != nil {
		fmt.Fprintf(b, "recorded: %s denied; newly denied %s, newly allowed %s\n", countAndShare(c.Denied, c.Requests),
			countAndShare(c.NewlyDenied, c.Requests), countAndShare(c.NewlyAllow, c.Requests))
	}
}

// text returns both bounds, if they differ.
func (d *Denials) text(of int64) string {
	if d.AtOnce == nil || *d.AtOnce == d.Count {
		return countAndShare(d.Count, of)
	}
	least, most := min(d.Count, *d.AtOnce), d.most()
	shares := share(least, of)
	if other := share(most, of); other != shares {
		shares += " to " + other
	}
	return fmt.Sprintf("%s to %s (%s)", Thousands(least), Thousands(most), shares)
}

func (r *Report) writeRules(b *strings.Builder) {
	rows := strings.Builder{}
	rows.WriteString("\nrule\tlimit\trequests\tdenied\t")
	if r.Compared != nil {
		rows.WriteString("before\tnewly denied\t")
	}
	rows.WriteString("keys\tdenied keys\tdenials by time\n")
	for i := range r.Rules {
		rule := &r.Rules[i]
		fmt.Fprintf(&rows, "%s\t%s\t%s\t%s\t", rule.title(), rule.limitText(), Thousands(rule.Requests), rule.Denied.text(rule.Requests))
		if r.Compared != nil {
			before := "-"
			if rule.Was != nil {
				before = rule.Was.text(rule.Requests)
			}
			fmt.Fprintf(&rows, "%s\t%s\t", before, Thousands(rule.NewlyDenied))
		}
		more := ""
		if rule.MoreKeys {
			more = " or more"
		}
		fmt.Fprintf(&rows, "%s%s\t%s%s\t%s\n", Thousands(rule.Keys), more, Thousands(rule.DeniedKeys), more, rule.sparkline())
	}
	align(b, rows.String())
}

// align writes rows of cells with tabs between them.
func align(b *strings.Builder, rows string) {
	t := tabwriter.NewWriter(b, 0, 0, 2, ' ', 0)
	_, _ = io.WriteString(t, rows) // a Builder never fails
	_ = t.Flush()
}

func (r *Rule) title() string {
	if r.Shadow {
		return visible(r.Name) + " (shadow)"
	}
	return visible(r.Name)
}

func (r *Rule) limitText() string {
	if r.Limit == "" {
		return "unlimited"
	}
	return visible(r.Limit)
}

// sparkWidth is the width of a sparkline, in characters.
const sparkWidth = 32

// sparkline draws the denials over time.
func (r *Rule) sparkline() string {
	merged := make([]int64, min((len(r.Timeline)+1)/2, sparkWidth))
	most := int64(0)
	for i, bucket := range r.Timeline {
		merged[i/2] += bucket.Denied
		most = max(most, merged[i/2])
	}
	if most == 0 {
		return ""
	}
	return Bars(merged, most)
}

// Bars draws numbers, each as its share of most, and none as a space.
func Bars(numbers []int64, most int64) string {
	var b strings.Builder
	steps := []rune(levels)
	for _, n := range numbers {
		if n == 0 {
			b.WriteByte(' ')
			continue
		}
		b.WriteRune(steps[(n*int64(len(steps))-1)/most])
	}
	return strings.TrimRight(b.String(), " ")
}

func (r *Report) writeKeys(b *strings.Builder) {
	rows := strings.Builder{}
	for i := range r.Rules {
		rule := &r.Rules[i]
		for _, k := range rule.Top {
			fmt.Fprintf(&rows, "%s\t%s\t%s\t%s\t%s\t%s\n", visible(rule.Name), visible(k.Key), Thousands(k.Denied), Thousands(k.Requests),
				k.First.Format(timeFormat), k.Last.Format(time.TimeOnly))
		}
	}
	if rows.Len() > 0 {
		align(b, "\nmost denied\tkey\tdenied\tof\tfirst\tlast\n"+rows.String())
	}
}

// countOf returns how many keys or requests there are.
func (r *Rule) countOf(what string) int64 {
	if what == "keys" {
		return r.Keys
	}
	return r.Requests
}

func (r *Report) writeSuggestions(b *strings.Builder) {
	for i := range r.Rules {
		rule := &r.Rules[i]
		s := rule.Suggested
		if s == nil {
			continue
		}
		fmt.Fprintf(b, "\nsuggested for %s: %s, which never denies %g%% of %s %s; %s never denies %.4g%%\n",
			rule.title(), visible(s.Limit), 100*s.Share, Thousands(rule.countOf(s.Of)), s.Of, rule.limitText(), 100*s.Now)
		if s.All && s.Share < 1 {
			fmt.Fprintf(b, "    no key is left out by %g%% of %s %s: a smaller share would leave out those that ask the most\n", 100*s.Share, Thousands(rule.countOf(s.Of)), s.Of)
		}
		s.draw(b)
	}
}

// drawnPoints is how many rates are drawn.
const drawnPoints = 12

// draw draws which burst each rate needs: its limit, and a bar.
func (s *Suggestion) draw(b *strings.Builder) {
	curve := s.Curve
	at := slices.IndexFunc(curve, func(p Point) bool { return p.Limit == s.Limit })
	begin := max(min(at-drawnPoints/2, len(curve)-drawnPoints), 0)
	curve = curve[begin:min(begin+drawnPoints, len(curve))]
	most := max(widest(curve), 1)
	for _, p := range curve {
		mark := " "
		if p.Limit == s.Limit {
			mark = "*"
		}
		fmt.Fprintf(b, "  %s %-24s %s\n", mark, p.Limit, strings.Repeat("█", int((p.Burst*24+most-1)/most)))
	}
}

func writeList(b *strings.Builder, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(b, "\n%s:\n", title)
	for _, line := range lines {
		fmt.Fprintf(b, "  %s\n", visible(line))
	}
}

// maxVisible is how many bytes of a text are shown: keys come from clients.
const maxVisible = 240

// visible returns the beginning of a text, printable.
func visible(text string) string {
	if len(text) > maxVisible {
		text = strings.ToValidUTF8(text[:maxVisible], "") + "…"
	}
	return Printable(text)
}

// Printable escapes what a terminal could act on.
func Printable(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}
