package penstock_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // the windows of the calendar need zones on every machine

	"github.com/penstock-io/penstock"
)

// These tests hold the documents to what the code does: the pictures and the
// tables in docs/algorithms.md are drawn again, the sentences with numbers in
// them are worked out again, the limits are parsed, and the Go is type-checked.

const algorithmsPage = "docs/algorithms.md"

// pages are those whose limits must parse and whose Go must compile.
var pages = []string{"README.md", algorithmsPage}

// writtenPages returns the text of the pages that are there.
func writtenPages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		switch {
		case err == nil:
			texts[page] = string(text)
		case !errors.Is(err, fs.ErrNotExist):
			t.Fatal(err)
		}
	}
	return texts
}

// A fence is a block between two lines of three backquotes.
type fence struct {
	page, info, body string
	line             int // of the block's first line
}

func fencesOf(page, text string) (fences []fence) {
	var f *fence
	for i, line := range strings.Split(text, "\n") {
		info, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && f == nil:
			f = &fence{page: page, info: info, line: i + 2}
		case isFence:
			fences = append(fences, *f)
			f = nil
		case f != nil:
			f.body += line + "\n"
		}
	}
	return fences
}

func readPage(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A drawing works out what a block should contain from the words after its kind
// and, for tables, from the first columns of the block that is there.
var drawings = map[string]func(t *testing.T, words, body string) string{
	"edge":    drawEdge,
	"acts":    drawActs,
	"totals":  drawTotals,
	"worst":   drawWorst,
	"steady":  drawSteady,
	"windows": drawWindows,
	"bytes":   drawBytes,
}

func TestBlocksAreAsDrawn(t *testing.T) {
	drawn := map[string]bool{}
	for _, f := range fencesOf(algorithmsPage, readPage(t, algorithmsPage)) {
		kind, words, _ := strings.Cut(strings.TrimPrefix(f.info, "text "), " ")
		draw, known := drawings[kind]
		if !known {
			if f.info != "go" {
				t.Errorf("%s:%d: block %q is held true by nothing", f.page, f.line, f.info)
			}
			continue
		}
		drawn[kind] = true
		if kind == "edge" {
			drawn[limitOf(t, words).Algorithm.String()] = true
		}
		if want := draw(t, words, f.body); f.body != want {
			t.Errorf("%s:%d: the block %q is not what the code does; it should be\n%s", f.page, f.line, f.info, want)
		}
	}
	for kind := range drawings {
		if !drawn[kind] {
			t.Errorf("%s has no block %q", algorithmsPage, kind)
		}
	}
	for a := penstock.TokenBucket; a <= penstock.SlidingLog; a++ {
		if !drawn[a.String()] {
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

// A world is a store on a clock that the test holds, and one key in it.
type world struct {
	t     *testing.T
	store *penstock.Memory
	limit penstock.Limit
	now   time.Time
}

// secondsEdge is the edge of a second, and of a minute, that the traffic of the
// pictures goes across.
var secondsEdge = time.Date(2026, time.March, 2, 9, 0, 0, 0, time.UTC)

func newWorld(t *testing.T, limit penstock.Limit) *world {
	w := &world{t: t, limit: limit, now: secondsEdge}
	w.store = penstock.NewMemory(&penstock.MemoryOptions{
		Now:     func() time.Time { return w.now },
		MaxKeys: 4096, // in one shard, so that bytes add up evenly
	})
	return w
}

// take asks for units of a key at an instant after the edge, or before it.
func (w *world) take(at time.Duration, cost int64) penstock.Decision {
	return w.takeOf("key", secondsEdge.Add(at), cost)
}

func (w *world) takeOf(key string, now time.Time, cost int64) penstock.Decision {
	w.now = now
	return w.ask(penstock.Request{Key: key, Limit: w.limit, Cost: cost})
}

func (w *world) ask(r penstock.Request) penstock.Decision {
	d, err := w.store.Take(context.Background(), r)
	if err != nil {
		w.t.Fatalf("%v: take %d: %v", r.Limit, r.Cost, err)
	}
	return d
}

// An event is a unit that was admitted: when it was, and when it may act.
type event struct{ arrived, acts time.Duration }

// arrive asks for one unit and reports it if it was admitted.
func (w *world) arrive(at time.Duration) (e event, ok bool) {
	d := w.take(at, 1)
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

// acrossTheEdge lets the traffic of the pictures arrive, and returns what was
// admitted of it; the early request is not part of that.
func acrossTheEdge(t *testing.T, limit penstock.Limit) []event {
	w := newWorld(t, limit)
	if _, ok := w.arrive(early); !ok {
		t.Fatalf("%v refuses the first request of a key", limit)
	}
	return w.theTwoHundred()
}

func (w *world) theTwoHundred() (in []event) {
	for at := -half; at < half; at += every {
		if e, ok := w.arrive(at); ok {
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
	in := acrossTheEdge(t, limitOf(t, words))
	return histogram(in, arrived, "░", func(n int) string { return fmt.Sprintf("%d of 100 admitted", n) })
}

func drawActs(t *testing.T, words, _ string) string {
	in := acrossTheEdge(t, limitOf(t, words))
	return histogram(in, acts, " ", func(n int) string { return fmt.Sprintf("%d act", n) })
}

// histogram draws the events in each cell as a column of halves, ten high. What
// is not there of the ten is drawn as a rest.
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

// table draws again a table whose first line is a heading and whose first
// column is limits, with other columns worked out anew.
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
		in := acrossTheEdge(t, limit)
		before, after := between(in, arrived, -half, 0), between(in, arrived, 0, half)
		return fmt.Sprintf("%6d%8d%10d%15d", before, after, before+after, between(in, acts, -half, half))
	})
}

// drawWorst searches for the second in which most is admitted or, where requests
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

// worstSecond tries traffic that knows where the edge is: as much as gets in
// just before it and at every millisecond after it, with an early request and
// without.
func worstSecond(t *testing.T, limit penstock.Limit) (most int) {
	for _, first := range []time.Duration{early, -1} {
		w := newWorld(t, limit)
		in := slices.Concat(w.flood(first, 1), w.flood(-1, 1000))
		for at := time.Duration(0); at < 2*time.Second; at += time.Millisecond {
			in = append(in, w.flood(at, 1000)...)
		}
		most = max(most, mostIn(in, acts, time.Second))
	}
	return most
}

// flood asks for one unit after the other at one instant, until one is denied.
func (w *world) flood(at time.Duration, most int) (in []event) {
	for range most {
		e, ok := w.arrive(at)
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

// drawSteady lets 200 a second arrive for two minutes and looks at the second.
func drawSteady(t *testing.T, _, body string) string {
	heading := fmt.Sprintf("%-34s%11s%20s", "limit", "in a minute", "most in one second")
	return table(t, body, heading, func(limit penstock.Limit) string {
		w := newWorld(t, limit)
		var in []event
		for at := time.Duration(0); at < 2*time.Minute; at += every {
			if e, ok := w.arrive(at); ok && at >= time.Minute {
				in = append(in, e)
			}
		}
		return fmt.Sprintf("%11d%20d", len(in), mostIn(in, acts, time.Second))
	})
}

const wallClock = "2006-01-02 15:04"

// drawWindows opens the window around an instant and says when it ends.
func drawWindows(t *testing.T, _, body string) string {
	format := "%-49s%-36s%-18s%s\n"
	want := fmt.Sprintf(format, "limit", "asked at", "its window ends", "after")
	columns := regexp.MustCompile(`  +`)
	for _, line := range strings.Split(strings.TrimSpace(body), "\n")[1:] {
		words := columns.Split(line, -1)
		w := newWorld(t, limitOf(t, words[0]))
		asked := wallTime(t, words[1])
		d := w.takeOf("key", asked, 1)
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

// drawBytes fills so many keys that the pages they lie in are full.
func drawBytes(t *testing.T, _, body string) string {
	heading := fmt.Sprintf("%-34s%11s", "limit", "bytes a key")
	return table(t, body, heading, func(limit penstock.Limit) string {
		return fmt.Sprintf("%11d", bytesOfAFullKey(t, limit))
	})
}

// bytesOfAFullKey fills keys one after the other, and takes the best average:
// the one with the least of the last page unused.
func bytesOfAFullKey(t *testing.T, limit penstock.Limit) int64 {
	w := newWorld(t, limit)
	least := int64(math.MaxInt64)
	for n := int64(1); n*limit.Count <= 20_000; n++ {
		for range limit.Count {
			w.takeOf(fmt.Sprint("key", n), secondsEdge, 1)
		}
		least = min(least, w.store.Stats().Bytes/n)
	}
	return least
}
