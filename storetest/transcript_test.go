package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"pgregory.net/rapid"
)

const opening = "start 2026-03-02T09:00:00Z\n== Scene\nlimit 10/1s\n"

func TestTranscriptErrorsNameFileAndLine(t *testing.T) {
	for _, test := range []struct{ text, want string }{
		{"hello", `story.txt:1: want "== TITLE" before the first "hello"`},
		{"limit 10/1s", `story.txt:1: want "== TITLE" before the first "limit"`},
		{"==", `story.txt:1: want a title`},
		{"", `story.txt: at the end: no scenes`},
		{"== Scene", `story.txt: at the end: nothing happens in the scene "Scene"`},
		{"== Scene\n== Another", `story.txt:2: nothing happens in the scene "Scene"`},
		{"== Scene\nlimit 10/1s\nat 0s look a", `story.txt:3: want "start TIME"`},
		{"== Scene\nstart noon", `story.txt:2: want a time such as`},
		{"== Scene\nstart 2026-03-02T09:00:00.0001Z", `story.txt:2: want whole milliseconds`},
		{opening + "hello", `story.txt:4: want ==, start, limit, at or back to, got "hello"`},
		{opening + "limit 10/1y", `story.txt:4: penstock: bad limit: Period`},
		{opening + "limit big: 10", `story.txt:4: penstock: bad limit: text`},
		{opening + "at noon look a", `story.txt:4: want a duration`},
		{opening + "at 0.1ms look a", `story.txt:4: want whole milliseconds`},
		{opening + "at 1s look a\nat 0s look a", `story.txt:5: 0s: want "at" for`},
		{opening + "at 1s look a x3 every=1s\nat 2s look a", `story.txt:5: 2s: want "at" for`},
		{opening + "at 1s look a\nback to 1s look a", `story.txt:5: 1s: want "at" for`},
		{opening + "back 1s look a", `story.txt:4: want "back to TIME"`},
		{opening + "at 0s look", `story.txt:4: want a key behind "look"`},
		{opening + "at 0s look \"a", `story.txt:4: want a closing quote`},
		{opening + "at 0s look a 1", `story.txt:4: look has no cost`},
		{opening + "at 0s take a 0", `story.txt:4: a cost of 0 is a look`},
		{opening + "at 0s take a 99999999999999999999", `value out of range`},
		{opening + "at 0s steal a", `story.txt:4: want take, look, refund or reset, got "steal"`},
		{opening + "at 0s take a 1 quickly", `story.txt:4: "quickly" is nothing`},
		{opening + "at 0s take a under", `story.txt:4: "under" is nothing`},
		{opening + "at 0s take a under b", `story.txt:4: want "limit b: TEXT" above`},
		{opening + "at 0s take a x1", `story.txt:4: want a number of times above 1`},
		{opening + "at 0s take a max-delay=soon", `story.txt:4: want a duration`},
		{opening + "  take a", `story.txt:4: indented, but not below`},
		{opening + "at 0s look a\n  take a", `story.txt:5: indented, but not below`},
		{opening + "at 0s all\nat 0s look a", `story.txt:5: want indented requests below "all"`},
		{opening + "at 0s each", `story.txt: at the end: want indented requests below "each"`},
		{opening + "at 0s all\n  take a x2", `story.txt:5: "x2" is nothing`},
		{opening + "at 0s take a => maybe", `story.txt:4: want a decision that begins with`},
		{opening + "at 0s take a => allowed", `story.txt:4: want remaining=N/LIMIT`},
		{opening + "at 0s take a => allowed remaining=1", `story.txt:4: "remaining=1":`},
		{opening + "at 0s take a => allowed remaining=1/10 luck=3", `a decision has no "luck"`},
		{opening + "at 0s take a => allowed remaining=1/10 reset=1s reset=1s", `"reset=1s": said before`},
		{opening + "at 0s take a => allowed remaining=1/10 source=rumour", `"source=rumour": nobody of that name decides`},
		{opening + "at 0s take a x2 => allowed remaining=1/10", `want "N allowed, last DECISION"`},
		{opening + "at 0s take a x2 => some allowed, last denied remaining=1/10", `want how many were allowed`},
	} {
		_, err := parseTranscript("story.txt", test.text)
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("parsing\n%s\ngot the error %v\nwant one with %s", test.text, err, test.want)
		}
	}
}

// A transcript that leaves an answer open, or has another one than the store,
// must not pass for one that was checked.
func TestTranscriptsAreCompared(t *testing.T) {
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
		script, err := parseTranscript("story.txt", opening+"at 0s take a => "+test.want)
		if err != nil {
			t.Fatal(err)
		}
		clock := &Clock{}
		s := &script.scenes[0].steps[0]
		got, err := perform(openMemory(t, clock), clock, s)
		if err != nil {
			t.Fatal(err)
		}
		c := s.calls[0]
		if same := !c.open && got[0] == c.want; same != test.same || got[0].String() != right {
			t.Errorf("got %s, and compared with %q that is the same: %v, want %v", got[0], test.want, same, test.same)
		}
	}
}

func TestAnswersRoundTrip(t *testing.T) {
	duration := rapid.OneOf(
		millis(0, 10_000), millis(0, 1<<40), rapid.Just(penstock.Never),
		rapid.SampledFrom([]time.Duration{time.Hour, day, day + time.Hour, time.Hour + tick, 61 * time.Minute}),
	)
	rapid.Check(t, func(t *rapid.T) {
		want := answer{times: rapid.IntRange(1, 3).Draw(t, "times")}
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
		got, err := parseAnswer(want.String(), want.times)
		if err != nil || got != want {
			t.Fatalf("%s: got %+v, %v, want %+v", want, got, err, want)
		}
	})
}

// The story that a failing test prints is a transcript.
func TestCallsRoundTrip(t *testing.T) {
	for _, text := range []string{
		"take a 1", "take a 3 at-most max-delay=2s id=x under slow", "look a", "refund a 2 id=x", "reset a",
		`look "two words"`, `look "\x00"`,
	} {
		script, err := parseTranscript("story.txt", fmt.Sprintf("%slimit slow: 1/1h\nat 0s %s", opening, text))
		if err != nil {
			t.Fatal(err)
		}
		if got := script.scenes[0].steps[0].calls[0].text(); got != text {
			t.Errorf("got %s, want %s", got, text)
		}
	}
}

func TestClockTellsFollowers(t *testing.T) {
	clock := &Clock{}
	if err := clock.set(noon); err != nil {
		t.Fatal(err)
	}
	var heard []time.Time
	if err := clock.Follow(func(now time.Time) error { heard = append(heard, now); return nil }); err != nil {
		t.Fatal(err)
	}
	if err := clock.set(noon.Add(-time.Second)); err != nil {
		t.Fatal(err)
	}
	if len(heard) != 2 || !heard[0].Equal(noon) || !heard[1].Equal(noon.Add(-time.Second)) {
		t.Errorf("a follower heard %v, want noon and one second before", heard)
	}
	broken := fmt.Errorf("out of batteries")
	if err := clock.Follow(func(time.Time) error { return broken }); err == nil {
		t.Error("following with a broken clock: want an error")
	}
	if err := clock.set(noon); err == nil || !strings.Contains(err.Error(), broken.Error()) {
		t.Errorf("setting a clock whose follower is broken: got %v, want %v", err, broken)
	}
}
