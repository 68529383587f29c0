package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"pgregory.net/rapid"
)

const preamble = "start 2026-03-02T09:00:00Z\n== First\nlimit 10/1s\n"

func TestTranscriptErrorsNameFileAndLine(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"hello", `test.txt:1: want "== TITLE" before the first "hello"`},
		{"limit 10/1s", `test.txt:1: want "== TITLE" before the first "limit"`},
		{"==", `test.txt:1: want a title`},
		{"", `test.txt: at the end: no scenarios`},
		{"== First", `test.txt: at the end: no steps in the scenario "First"`},
		{"== First\n== Second", `test.txt:2: no steps in the scenario "First"`},
		{"== First\nlimit 10/1s\nat 0s peek a", `test.txt:3: want "start TIME"`},
		{"== First\nstart noon", `test.txt:2: want a time such as`},
		{"== First\nstart 2026-03-02T09:00:00.0001Z", `test.txt:2: want whole milliseconds`},
		{preamble + "hello", `test.txt:4: want ==, start, limit, at or back to, got "hello"`},
		{preamble + "limit 10/1y", `test.txt:4: penstock: bad limit: Period`},
		{preamble + "limit big: 10", `test.txt:4: penstock: bad limit: text`},
		{preamble + "at noon peek a", `test.txt:4: want a duration`},
		{preamble + "at 0.1ms peek a", `test.txt:4: want whole milliseconds`},
		{preamble + "at 1s peek a\nat 0s peek a", `test.txt:5: 0s: want "at" for`},
		{preamble + "at 1s peek a x3 every=1s\nat 2s peek a", `test.txt:5: 2s: want "at" for`},
		{preamble + "at 1s peek a\nback to 1s peek a", `test.txt:5: 1s: want "at" for`},
		{preamble + "back 1s peek a", `test.txt:4: want "back to TIME"`},
		{preamble + "at 0s peek", `test.txt:4: want a key after "peek"`},
		{preamble + "at 0s peek \"a", `test.txt:4: want a closing quote`},
		{preamble + "at 0s peek a 1", `test.txt:4: peek has no cost`},
		{preamble + "at 0s take a 0", `test.txt:4: for a cost of 0, use peek`},
		{preamble + "at 0s take a 99999999999999999999", `value out of range`},
		{preamble + "at 0s steal a", `test.txt:4: want take, charge, settle, peek, refund or reset, got "steal"`},
		{preamble + "at 0s take a 1 quickly", `test.txt:4: unknown option "quickly"`},
		{preamble + "at 0s take a under", `test.txt:4: unknown option "under"`},
		{preamble + "at 0s take a under b", `test.txt:4: want "limit b: TEXT" above`},
		{preamble + "at 0s take a x1", `test.txt:4: want a number of times above 1`},
		{preamble + "at 0s take a max-delay=soon", `test.txt:4: want a duration`},
		{preamble + "  take a", `test.txt:4: indented, but not below`},
		{preamble + "at 0s peek a\n  take a", `test.txt:5: indented, but not below`},
		{preamble + "at 0s all\nat 0s peek a", `test.txt:5: want indented requests below "all"`},
		{preamble + "at 0s each", `test.txt: at the end: want indented requests below "each"`},
		{preamble + "at 0s all\n  take a x2", `test.txt:5: unknown option "x2"`},
		{preamble + "at 0s take a => maybe", `test.txt:4: want a decision that begins with`},
		{preamble + "at 0s take a => allowed", `test.txt:4: want remaining=N/LIMIT`},
		{preamble + "at 0s take a => allowed remaining=1", `test.txt:4: "remaining=1":`},
		{preamble + "at 0s take a => allowed remaining=1/10 luck=3", `a decision has no "luck"`},
		{preamble + "at 0s take a => allowed remaining=1/10 reset=1s reset=1s", `"reset=1s": duplicate field`},
		{preamble + "at 0s take a => allowed remaining=1/10 source=rumour", `"source=rumour": unknown source`},
		{preamble + "at 0s take a x2 => allowed remaining=1/10", `want "N allowed, last DECISION"`},
		{preamble + "at 0s take a x2 => some allowed, last denied remaining=1/10", `want the number of allowed requests`},
	} {
		_, err := parseTranscript("test.txt", test.text)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("parsing\n%s\ngot the error %v\nwant one with %s", test.text, err, test.want)
		}
	}
}

// A transcript without a result, or with another one than the store's, must not pass.
func TestTranscriptComparesEveryField(t *testing.T) {
	right := "allowed granted=1 remaining=9/10 reset=100ms"
	for _, test := range []struct {
		want string
		same bool
	}{
		{right, true},
		{"", false},
		{"allowed granted=1 remaining=9/10", false},
		{"allowed remaining=9/10 reset=100ms", false},
		{"allowed granted=1 remaining=8/10 reset=100ms", false},
		{"allowed granted=1 remaining=9/11 reset=100ms", false},
		{"allowed granted=1 remaining=9/10 reset=101ms", false},
		{"allowed granted=1 remaining=9/10 retry=1ms reset=100ms", false},
		{"allowed granted=1 remaining=9/10 reset=100ms delay=1ms", false},
		{"allowed granted=1 remaining=9/10 reset=100ms source=lease", false},
		{"denied granted=1 remaining=9/10 reset=100ms", false},
	} {
		script, err := parseTranscript("test.txt", preamble+"at 0s take a => "+test.want)
		if err != nil {
			t.Fatal(err)
		}
		clock := &Clock{}
		s := &script.scenarios[0].steps[0]
		got, err := runStep(openMemory(t, clock), clock, s)
		if err != nil {
			t.Fatal(err)
		}
		c := s.calls[0]
		if same := !c.noWant && got[0] == c.want; same != test.same || got[0].String() != right {
			t.Errorf("got %s, and compared with %q that is the same: %v, want %v", got[0], test.want, same, test.same)
		}
	}
}

func TestResultTextRoundTrips(t *testing.T) {
	duration := rapid.OneOf(
		millis(0, 10_000), millis(0, 1<<40), rapid.Just(penstock.Never),
		rapid.SampledFrom([]time.Duration{time.Hour, day, day + time.Hour, time.Hour + tick, 61 * time.Minute}),
	)
	rapid.Check(t, func(t *rapid.T) {
		want := result{times: rapid.IntRange(1, 3).Draw(t, "times")}
		want.last = penstock.Decision{
			Allowed:    rapid.Bool().Draw(t, "allowed"),
			Granted:    rapid.Int64().Draw(t, "granted"),
			Limit:      rapid.Int64().Draw(t, "limit"),
			Remaining:  rapid.Int64().Draw(t, "remaining"),
			RetryAfter: duration.Draw(t, "retry"),
			ResetAfter: duration.Draw(t, "reset"),
			Delay:      duration.Draw(t, "delay"),
			Source:     rapid.SampledFrom([]penstock.Source{penstock.SourceStore, penstock.SourceFallback}).Draw(t, "source"),
		}
		want.allowed = count(want.last.Allowed)
		got, err := parseResult(want.String(), want.times)
		if err != nil || got != want {
			t.Fatalf("%s: got %+v, %v, want %+v", want, got, err, want)
		}
	})
}

// A failing test prints its requests as a transcript.
func TestCallTextRoundTrips(t *testing.T) {
	for _, text := range []string{
		"take a 1", "take a 3 at-most max-delay=2s id=x under slow", "peek a", "refund a 2 id=x", "reset a",
		`peek "two words"`, `peek "\x00"`,
	} {
		script, err := parseTranscript("test.txt", fmt.Sprintf("%slimit slow: 1/1h\nat 0s %s", preamble, text))
		if err != nil {
			t.Fatal(err)
		}
		if got := script.scenarios[0].steps[0].calls[0].text(); got != text {
			t.Errorf("got %s, want %s", got, text)
		}
	}
}

func TestClockSetUpdatesFollowers(t *testing.T) {
	clock := &Clock{}
	if err := clock.set(noon); err != nil {
		t.Fatal(err)
	}
	var got []time.Time
	if err := clock.Follow(func(now time.Time) error { got = append(got, now); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := clock.set(noon.Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || !got[0].Equal(noon) || !got[1].Equal(noon.Add(-time.Second)) {
		t.Errorf("the follower got %v, want noon and one second before", got)
	}
	broken := fmt.Errorf("clock failed")
	if err := clock.Follow(func(time.Time) error { return broken }); err == nil {
		t.Error("following with a broken clock: want an error")
	}
	if err := clock.set(noon); err == nil || !strings.Contains(err.Error(), broken.Error()) {
		t.Errorf("setting a clock whose follower is broken: got %v, want %v", err, broken)
	}
}
