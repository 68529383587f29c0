package doctest

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the windows of the calendar need zones on every machine

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/simulator"
)

// update rewrites generated blocks instead of comparing them.
var update = flag.Bool("update", false, "write generated blocks into the documents")

const (
	module         = "github.com/penstock-io/penstock"
	root           = "../.."
	algorithmsPage = "docs/algorithms.md"
)

// pages are those whose limits must parse and whose Go must compile.
var pages = []string{
	"README.md", "README.zh-CN.md", algorithmsPage, "docs/rule-sources.md",
	chineseAlgorithms, "docs/zh-CN/quickstart.md", "docs/zh-CN/redis-failures.md", "docs/zh-CN/rules.md", chineseScenarios,
}

func readPage(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// drawings compute a block from the words after its kind and, for tables, from
// the first columns of the block that is there.
var drawings = map[string]func(t *testing.T, words, body string) string{
	"edge":    drawEdge,
	"acts":    drawActs,
	"totals":  drawTotals,
	"worst":   drawWorst,
	"steady":  drawSteady,
	"windows": drawWindows,
	"bytes":   drawBytes,
	"numbers": drawNumbers,
}

// drawSimulation draws named traffic under one limit, without the other algorithms.
func drawSimulation(t *testing.T, words, _ string) string {
	traffic, limit, _ := strings.Cut(words, " ")
	s, err := simulator.Run(limit, traffic)
	if err != nil {
		t.Fatalf("%q: %v", words, err)
	}
	s.Lanes = slices.DeleteFunc(s.Lanes, func(l simulator.Lane) bool { return !l.Written })
	s.Summary = ""
	var b strings.Builder
	s.Draw(&b, false)
	return strings.TrimRight(b.String(), "\n") + "\n"
}

func TestAlgorithmsPageBlocksAreCurrent(t *testing.T) {
	checkAllDrawn(t, drawPage(t, algorithmsPage))
	if drawn := drawPage(t, chineseAlgorithms); !drawn["edge"] || !drawn["totals"] {
		t.Errorf("%s draws only %v: the search is broken", chineseAlgorithms, drawn)
	}
	drawings["simulate"] = drawSimulation // which the English page does not have
	defer delete(drawings, "simulate")
	if drawn := drawPage(t, chineseScenarios); !drawn["simulate"] {
		t.Errorf("%s has no pictures: the search is broken", chineseScenarios)
	}
}

// drawPage holds the computed blocks of a page to what the code does, and returns their kinds and the
// algorithms whose edges they draw.
func drawPage(t *testing.T, name string) (drawn map[string]bool) {
	t.Helper()
	page := readPage(t, name)
	drawn, updated := map[string]bool{}, page
	for _, f := range Fences(name, page) {
		kind, words, _ := strings.Cut(strings.TrimPrefix(f.Info, "text "), " ")
		draw, known := drawings[kind]
		if !known {
			continue
		}
		drawn[kind] = true
		if kind == "edge" {
			drawn[limitOf(t, words).Algorithm.String()] = true
		}
		if want := draw(t, words, f.Body); f.Body != want {
			updated = strings.Replace(updated, "```"+f.Info+"\n"+f.Body, "```"+f.Info+"\n"+want, 1)
			if !*update {
				t.Errorf("%s:%d: block %q is not what the code does; run with -update, or compare with\n%s", f.Page, f.Line, f.Info, want)
			}
		}
	}
	writePage(t, name, page, updated)
	return drawn
}

// writePage writes a page that has changed, if the test was asked to.
func writePage(t *testing.T, name, page, updated string) {
	t.Helper()
	if *update && updated != page {
		if err := os.WriteFile(filepath.Join(root, name), []byte(updated), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func checkAllDrawn(t *testing.T, drawn map[string]bool) {
	t.Helper()
	for kind := range drawings {
		if !drawn[kind] {
			t.Errorf("%s has no block %q", algorithmsPage, kind)
		}
	}
	page := readPage(t, algorithmsPage)
	for _, a := range penstock.Algorithms() {
		if !strings.Contains(page, "\n| [`"+a.String()+"`](#") {
			t.Errorf("the table of %s does not have %v", algorithmsPage, a)
		}
		if !drawn[a.String()] && !(penstock.Limit{Algorithm: a}).HasPermits() {
			t.Errorf("%s draws no edge for %v", algorithmsPage, a)
		}
	}
}

func limitOf(t *testing.T, text string) penstock.Limit {
	t.Helper()
	limit, err := penstock.ParseLimit(text)
	if err != nil {
		t.Fatalf("%q in %s: %v", text, algorithmsPage, err)
	}
	return limit
}

// A scenario is a store on a clock that the test sets, and one limit.
type scenario struct {
	t     *testing.T
	store *penstock.Memory
	limit penstock.Limit
	now   time.Time
}

// secondsEdge is the edge of a second and of a minute, in the middle of the
// pictures.
var secondsEdge = time.Date(2026, time.March, 2, 9, 0, 0, 0, time.UTC)

func newScenario(t *testing.T, limit penstock.Limit) *scenario {
	s := &scenario{t: t, limit: limit, now: secondsEdge}
	s.store = penstock.NewMemory(&penstock.MemoryOptions{
		Now:     func() time.Time { return s.now },
		MaxKeys: 4096, // in one shard, so that bytes add up evenly
	})
	return s
}

// take takes units at an instant relative to the edge.
func (s *scenario) take(at time.Duration, cost int64) penstock.Decision {
	return s.takeOf("key", secondsEdge.Add(at), cost)
}

func (s *scenario) takeOf(key string, now time.Time, cost int64) penstock.Decision {
	s.now = now
	return s.request(penstock.Request{Key: key, Limit: s.limit, Cost: cost})
}

func (s *scenario) request(r penstock.Request) penstock.Decision {
	d, err := s.store.Take(context.Background(), r)
	if err != nil {
		s.t.Fatalf("%v: take %d: %v", r.Limit, r.Cost, err)
	}
	return d
}

// An event is an admitted unit: when it arrived, and when it acts.
type event struct{ arrived, acts time.Duration }

// arrive takes one unit and reports whether it was admitted.
func (s *scenario) arrive(at time.Duration) (e event, ok bool) {
	d := s.take(at, 1)
	return event{at, at + d.Delay}, d.Allowed
}

const (
	half    = 500 * time.Millisecond
	every   = 5 * time.Millisecond
	cell    = 50 * time.Millisecond
	perCell = int(cell / every)
	cells   = int(2 * half / cell)
	early   = -time.Second // when the first request of the key comes
)

// admittedAcrossEdge returns what is admitted of the traffic in the pictures,
// without the early request.
func admittedAcrossEdge(t *testing.T, limit penstock.Limit) []event {
	s := newScenario(t, limit)
	if _, ok := s.arrive(early); !ok {
		t.Fatalf("%v denies the first request of a key", limit)
	}
	return s.traffic()
}

func (s *scenario) traffic() (in []event) {
	for at := -half; at < half; at += every {
		if e, ok := s.arrive(at); ok {
			in = append(in, e)
		}
	}
	return in
}

func arrived(e event) time.Duration { return e.arrived }
func acts(e event) time.Duration    { return e.acts }

// between counts the events from one instant up to another.
func between(events []event, when func(event) time.Duration, from, to time.Duration) (n int) {
	for _, e := range events {
		if from <= when(e) && when(e) < to {
			n++
		}
	}
	return n
}

// mostIn returns how many of the events lie within one interval of a length.
func mostIn(events []event, when func(event) time.Duration, length time.Duration) (most int) {
	slices.SortFunc(events, func(a, b event) int { return cmp.Compare(when(a), when(b)) })
	first := 0
	for last := range events {
		for when(events[last])-when(events[first]) >= length {
			first++
		}
		most = max(most, last-first+1)
	}
	return most
}

func drawEdge(t *testing.T, words, _ string) string {
	in := admittedAcrossEdge(t, limitOf(t, words))
	return histogram(in, arrived, "░", func(n int) string { return fmt.Sprintf("%d of 100 admitted", n) })
}

func drawActs(t *testing.T, words, _ string) string {
	in := admittedAcrossEdge(t, limitOf(t, words))
	return histogram(in, acts, " ", func(n int) string { return fmt.Sprintf("%d act", n) })
}

// histogram draws the events of each cell as a column of half blocks, ten high,
// filled up with rest.
func histogram(events []event, when func(event) time.Duration, rest string, sum func(int) string) string {
	var b strings.Builder
	for top := perCell; top > 0; top -= 2 {
		row(&b, fmt.Sprint(top), func(c int) string {
			return strings.Repeat(columnPart(inCell(events, when, c), top, rest), 2)
		})
	}
	row(&b, "", func(c int) string { return fmt.Sprint(inCell(events, when, c)) })
	width := 3*cells/2 - 1
	before, after := sum(between(events, when, -half, 0)), sum(between(events, when, 0, half))
	fmt.Fprintf(&b, "   -500 ms%*s │ %-*s+500 ms\n", width-len("-500 ms"), before, width-len("+500 ms"), after)
	return b.String()
}

func inCell(events []event, when func(event) time.Duration, c int) int {
	from := -half + time.Duration(c)*cell
	return between(events, when, from, from+cell)
}

// columnPart returns the piece of a column of n that lies between top-2 and top.
func columnPart(n, top int, rest string) string {
	switch {
	case n >= top:
		return "█"
	case n == top-1:
		return "▄"
	}
	return rest
}

func row(b *strings.Builder, label string, cellText func(c int) string) {
	line := fmt.Sprintf("%2s", label)
	for c := range cells {
		if c == cells/2 {
			line += " │"
		}
		line += fmt.Sprintf(" %2s", cellText(c))
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
}

// table keeps the limits in the first column and computes the other columns.
func table(t *testing.T, body, heading string, columns func(limit penstock.Limit) string) string {
	lines := strings.Split(strings.TrimSpace(body), "\n")
	want := heading + "\n"
	for _, line := range lines[1:] {
		text, _, _ := strings.Cut(line, "  ")
		want += fmt.Sprintf("%-34s%s\n", text, columns(limitOf(t, text)))
	}
	return want
}

func drawTotals(t *testing.T, _, body string) string {
	heading := fmt.Sprintf("%-34s%6s%8s%10s%15s", "limit", "before", "after", "admitted", "act meanwhile")
	return table(t, body, heading, func(limit penstock.Limit) string {
		in := admittedAcrossEdge(t, limit)
		before, after := between(in, arrived, -half, 0), between(in, arrived, 0, half)
		return fmt.Sprintf("%6d%8d%10d%15d", before, after, before+after, between(in, acts, -half, half))
	})
}

// drawWorst finds the second in which most units are admitted or, where requests
// are delayed, in which most act.
func drawWorst(t *testing.T, _, body string) string {
	heading := fmt.Sprintf("%-34s%18s", "limit", "most in one second")
	return table(t, body, heading, func(limit penstock.Limit) string {
		most, bound := worstSecond(t, limit), boundOf(limit)
		if int64(most) != bound {
			t.Errorf("%v: the worst second has %d, but the bound is %d", limit, most, bound)
		}
		return fmt.Sprintf("%18d", most)
	})
}

// worstSecond tries adversarial traffic: as many units as are admitted just before
// the edge and at every millisecond after it, with and without an early request.
func worstSecond(t *testing.T, limit penstock.Limit) (most int) {
	for _, first := range []time.Duration{early, -1} {
		s := newScenario(t, limit)
		in := slices.Concat(s.flood(first, 1), s.flood(-1, 1000))
		for at := time.Duration(0); at < 2*time.Second; at += time.Millisecond {
			in = append(in, s.flood(at, 1000)...)
		}
		most = max(most, mostIn(in, acts, time.Second))
	}
	return most
}

// flood takes single units at one instant until one is denied.
func (s *scenario) flood(at time.Duration, most int) (in []event) {
	for range most {
		e, ok := s.arrive(at)
		if !ok {
			break
		}
		in = append(in, e)
	}
	return in
}

// boundOf is the bound in one Period that the page states.
func boundOf(l penstock.Limit) int64 {
	switch l.Algorithm {
	case penstock.TokenBucket:
		return l.Burst + l.Count - 1
	case penstock.FixedWindow:
		if l.Align == penstock.AlignFirst {
			return 2*l.Count - 1
		}
		return 2 * l.Count
	case penstock.SlidingWindow:
		return max(l.Count, 2*l.Count-2)
	}
	return l.Count
}

// drawSteady sends 200 requests a second for two minutes and counts the second one.
func drawSteady(t *testing.T, _, body string) string {
	heading := fmt.Sprintf("%-34s%11s%20s", "limit", "in a minute", "most in one second")
	return table(t, body, heading, func(limit penstock.Limit) string {
		s := newScenario(t, limit)
		var in []event
		for at := time.Duration(0); at < 2*time.Minute; at += every {
			if e, ok := s.arrive(at); ok && at >= time.Minute {
				in = append(in, e)
			}
		}
		return fmt.Sprintf("%11d%20d", len(in), mostIn(in, acts, time.Second))
	})
}

const wallClock = "2006-01-02 15:04"

// drawWindows shows when the window around an instant ends.
func drawWindows(t *testing.T, _, body string) string {
	format := "%-49s%-36s%-18s%s\n"
	want := fmt.Sprintf(format, "limit", "asked at", "its window ends", "after")
	columns := regexp.MustCompile(`  +`)
	for _, line := range strings.Split(strings.TrimSpace(body), "\n")[1:] {
		words := columns.Split(line, -1)
		s := newScenario(t, limitOf(t, words[0]))
		asked := wallTime(t, words[1])
		d := s.takeOf("key", asked, 1)
		want += fmt.Sprintf(format, words[0], words[1], asked.Add(d.ResetAfter).Format(wallClock), hours(d.ResetAfter))
	}
	return want
}

// wallTime reads an instant such as "2026-03-02 18:00 Asia/Shanghai".
func wallTime(t *testing.T, text string) time.Time {
	t.Helper()
	zone, err := time.LoadLocation(text[len(wallClock)+1:])
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	at, err := time.ParseInLocation(wallClock, text[:len(wallClock)], zone)
	if err != nil {
		t.Fatalf("%q: %v", text, err)
	}
	return at
}

func hours(d time.Duration) string { return fmt.Sprintf("%g h", d.Hours()) }

// drawBytes shows what a full key occupies.
func drawBytes(t *testing.T, _, body string) string {
	heading := fmt.Sprintf("%-34s%11s", "limit", "bytes a key")
	return table(t, body, heading, func(limit penstock.Limit) string {
		return fmt.Sprintf("%11d", bytesOfAFullKey(t, limit))
	})
}

// bytesOfAFullKey returns the lowest average over growing numbers of keys, so that
// the unused part of the last page hardly counts.
func bytesOfAFullKey(t *testing.T, limit penstock.Limit) int64 {
	s := newScenario(t, limit)
	least := int64(math.MaxInt64)
	for n := int64(1); n*limit.Count <= 20_000; n++ {
		for range limit.Count {
			s.takeOf(fmt.Sprint("key", n), secondsEdge, 1)
		}
		least = min(least, s.store.Stats().Bytes/n)
	}
	return least
}
