package penstock

import (
	"encoding"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/timespan"
)

var (
	_ encoding.TextMarshaler   = Limit{}
	_ encoding.TextUnmarshaler = (*Limit)(nil)
)

var limitTexts = []struct {
	text      string
	want      Limit
	canonical string // "" when it is the text itself
}{
	{"10/s", Limit{Count: 10, Period: time.Second, Burst: 10}, "10/1s"},
	{"1000/hour", Limit{Count: 1000, Period: time.Hour, Burst: 1000}, "1000/1h"},
	{"1/year", Limit{Count: 1, Period: 365 * day, Burst: 1}, "1/365d"},
	{"3/2days", Limit{Count: 3, Period: 2 * day, Burst: 3}, "3/2d"},
	{"4/1.5h", Limit{Count: 4, Period: 90 * time.Minute, Burst: 4}, "4/1h30m"},
	{"30/1m burst=15", Limit{Count: 30, Period: time.Minute, Burst: 15}, ""},
	{"30/1m burst=30 token-bucket", Limit{Count: 30, Period: time.Minute, Burst: 30}, "30/1m"},
	{"0/1s", Limit{Period: time.Second}, ""},
	{"0/1s burst=5", Limit{Period: time.Second}, "0/1s"},
	{"007/1s", Limit{Count: 7, Period: time.Second, Burst: 7}, "7/1s"},
	{" \t10/s\r\n burst=2\n", Limit{Count: 10, Period: time.Second, Burst: 2}, "10/1s burst=2"},
	{
		"100/1m leaky-bucket burst=1",
		Limit{Algorithm: LeakyBucket, Count: 100, Period: time.Minute, Burst: 1},
		"",
	},
	{"100/10s sliding-log", Limit{Algorithm: SlidingLog, Count: 100, Period: 10 * time.Second}, ""},
	{"5/30s concurrent", Limit{Algorithm: Concurrent, Count: 5, Period: 30 * time.Second}, ""},
	{"100/10s sliding-window", Limit{Algorithm: SlidingWindow, Count: 100, Period: 10 * time.Second}, ""},

	// Debt: none, the default, or another.
	{"10/1s debt=0", Limit{Count: 10, Period: time.Second, Burst: 10, Debt: NoDebt}, ""},
	{"10/1s burst=5 debt=5", Limit{Count: 10, Period: time.Second, Burst: 5}, "10/1s burst=5"},
	{" 10/1s debt=7 burst=5", Limit{Count: 10, Period: time.Second, Burst: 5, Debt: 7}, "10/1s burst=5 debt=7"},
	{"5/1m fixed-window debt=100", Limit{Algorithm: FixedWindow, Count: 5, Period: time.Minute, Debt: 100}, ""},
	{"5/1m sliding-window debt=0", Limit{Algorithm: SlidingWindow, Count: 5, Period: time.Minute, Debt: NoDebt}, ""},
	{"67108863/1m sliding-window debt=0", Limit{Algorithm: SlidingWindow, Count: 1<<26 - 1, Period: time.Minute}, "67108863/1m sliding-window"},
	{"0/1s debt=5", Limit{Period: time.Second}, "0/1s"},

	// Buckets, by their number or by their length.
	{
		"100/10s rolling-window",
		Limit{Algorithm: RollingWindow, Count: 100, Period: 10 * time.Second, Buckets: 10},
		"",
	},
	{
		"100/10s rolling-window buckets=20",
		Limit{Algorithm: RollingWindow, Count: 100, Period: 10 * time.Second, Buckets: 20},
		"",
	},
	{
		"100/1d rolling-window bucket=1h",
		Limit{Algorithm: RollingWindow, Count: 100, Period: day, Buckets: 24},
		"100/1d rolling-window buckets=24",
	},
	{
		"100/1d bucket=7h rolling-window",
		Limit{Algorithm: RollingWindow, Count: 100, Period: day, Buckets: 4},
		"100/1d rolling-window buckets=4",
	},
	{
		"100/day bucket=day rolling-window",
		Limit{Algorithm: RollingWindow, Count: 100, Period: day, Buckets: 1},
		"100/1d rolling-window buckets=1",
	},

	// Fixed windows from the first request, on the clock, and on a calendar.
	{"5/day fixed-window", Limit{Algorithm: FixedWindow, Count: 5, Period: day}, "5/1d fixed-window"},
	{"5/day fixed-window align=first", Limit{Algorithm: FixedWindow, Count: 5, Period: day}, "5/1d fixed-window"},
	{
		"100/1m fixed-window align=clock offset=10s",
		Limit{Algorithm: FixedWindow, Count: 100, Period: time.Minute, Align: AlignClock, Offset: 10 * time.Second},
		"",
	},
	{
		"100/1m fixed-window align=clock offset=-10s",
		Limit{Algorithm: FixedWindow, Count: 100, Period: time.Minute, Align: AlignClock, Offset: 50 * time.Second},
		"100/1m fixed-window align=clock offset=50s",
	},
	{
		"5/day zone=Asia/Shanghai fixed-window",
		Limit{Algorithm: FixedWindow, Count: 5, Period: day, Align: AlignDay, Zone: "Asia/Shanghai"},
		"",
	},
	{
		"5/24h zone=Asia/Shanghai fixed-window",
		Limit{Algorithm: FixedWindow, Count: 5, Period: day, Align: AlignDay, Zone: "Asia/Shanghai"},
		"5/day zone=Asia/Shanghai fixed-window",
	},
	{
		"5/1w zone=UTC fixed-window align=week",
		Limit{Algorithm: FixedWindow, Count: 5, Period: 7 * day, Align: AlignWeek, Zone: "UTC"},
		"5/week zone=UTC fixed-window",
	},
	{
		"5/month zone=Europe/Berlin fixed-window offset=4h",
		Limit{Algorithm: FixedWindow, Count: 5, Period: 30 * day, Align: AlignMonth, Offset: 4 * time.Hour, Zone: "Europe/Berlin"},
		"",
	},
	{
		"5/year align=year fixed-window offset=-1d",
		Limit{Algorithm: FixedWindow, Count: 5, Period: 365 * day, Align: AlignYear, Offset: -day, Zone: "UTC"},
		"5/year zone=UTC fixed-window offset=-1d",
	},

	// Names.
	{"10/1s name=login", Limit{Name: "login", Count: 10, Period: time.Second, Burst: 10}, ""},
	{`10/1s name="login"`, Limit{Name: "login", Count: 10, Period: time.Second, Burst: 10}, "10/1s name=login"},
	{"10/1s name=路径/user:42", Limit{Name: "路径/user:42", Count: 10, Period: time.Second, Burst: 10}, ""},
	{`10/1s name="log in"`, Limit{Name: "log in", Count: 10, Period: time.Second, Burst: 10}, ""},
	{"10/1s name=`a \"b\"` burst=2", Limit{Name: `a "b"`, Count: 10, Period: time.Second, Burst: 2}, `10/1s burst=2 name="a \"b\""`},
	{`10/1s name="a\\b"`, Limit{Name: `a\b`, Count: 10, Period: time.Second, Burst: 10}, ""},
	{`10/1s name="a=b\n\x00\xff"`, Limit{Name: "a=b\n\x00\xff", Count: 10, Period: time.Second, Burst: 10}, ""},
}

func TestParseLimit(t *testing.T) {
	for _, c := range limitTexts {
		got, err := ParseLimit(c.text)
		if err != nil || got != c.want {
			t.Errorf("ParseLimit(%q)\ngot  %+v, %v\nwant %+v", c.text, fields(got), err, fields(c.want))
		}
		if c.canonical == "" {
			c.canonical = c.text
		}
		if err == nil && got.String() != c.canonical {
			t.Errorf("ParseLimit(%q).String() = %q, want %q", c.text, got, c.canonical)
		}
	}
}

// fields returns a limit without its String method, so that %+v prints the fields.
func fields(l Limit) any {
	type plain Limit
	return plain(l)
}

var badLimitTexts = []struct{ text, want string }{
	{"", `text at column 1: empty: want a count and a period such as 10/1s`},
	{" \n", `text at column 1: empty: want a count and a period such as 10/1s`},
	{"10", `text at column 1: "10": want a count and a period first, such as 10/1s`},
	{"fixed-window 5/day", `text at column 1: "fixed-window": want a count and a period first, such as 10/1s`},
	{"10/s" + strings.Repeat(" ", 509), `text at column 513: 513 bytes long: want at most 512`},

	{"/s", `Count at column 1: "": want a whole number`},
	{"10/s debt=-1", `Debt at column 6: "debt=-1": must not be negative`},
	{"10/s debt=x", `Debt at column 6: "debt=x": want a whole number`},
	{"10/s sliding-log debt=5", `Debt at column 18: "debt=5": requires ` + algorithmsThat((*Limit).canOwe) + `, not sliding-log`},
	{"5/s sliding-window debt=67108859", `Debt at column 20: 67108859: must be at most 67108858 for this sliding-window`},
	{" ten/s", `Count at column 2: "ten": want a whole number`},
	{"+5/s", `Count at column 1: "+5": want a whole number`},
	{"1_000/s", `Count at column 1: "1_000": want a whole number`},
	{"1e3/s", `Count at column 1: "1e3": want a whole number`},
	{"9223372036854775808/s", `Count at column 1: "9223372036854775808": want a number of at most 9223372036854775807`},
	{"-5/s", `Count at column 1: -5: must not be negative`},
	{"10001/s sliding-log", `Count at column 1: 10001: must be at most 10000 for a sliding-log; a sliding-window counts more`},

	{"10/", `Period at column 4: "": want a duration such as 30s, 1m, 1h30m, 1d, or a word such as day`},
	{"30/1x", `Period at column 4: "1x": want a duration such as 30s, 1m, 1h30m, 1d, or a word such as day`},
	{"30/-1m", `Period at column 4: "-1m": want a duration such as 30s, 1m, 1h30m, 1d, or a word such as day`},
	{"30/60", `Period at column 4: "60": want a duration such as 30s, 1m, 1h30m, 1d, or a word such as day`},
	{"30/minuet", `Period at column 4: "minuet": did you mean minute?`},
	{"30/2minites", `Period at column 4: "2minites": did you mean 2minutes?`},
	{"30/0s", `Period at column 4: "0s": must be more than zero`},
	{"30/367d", `Period at column 4: 367d: must be at most 366d`},
	{"30/31d fixed-window align=month", `Period at column 4: 31d: must be 30d, or 0, with Align month`},

	{"10/s fixd-window", `Algorithm at column 6: "fixd-window": unknown word; did you mean fixed-window?`},
	{"10/s sliding", `Algorithm at column 6: "sliding": unknown word; did you mean sliding-window?`},
	{"10/s 5", `Algorithm at column 6: "5": unknown word; want one of ` + strings.Join(algorithmNames(), ", ") + `, burst=, debt=, buckets=, bucket=, align=, offset=, zone=, name=`},
	{"10/s sliding-log fixed-window", `Algorithm at column 18: "fixed-window": already set at column 6: "sliding-log"`},
	{"10/s brust=5", `text at column 6: "brust=5": unknown key; did you mean burst=?`},
	{"10/s algorithm=x", `text at column 6: "algorithm=x": unknown key; want one of burst=, debt=, buckets=, bucket=, align=, offset=, zone=, name=`},
	{"10/s =5", `text at column 6: "=5": unknown key; want one of burst=, debt=, buckets=, bucket=, align=, offset=, zone=, name=`},

	{"10/s burst", `text at column 6: "burst": want a value, as in burst=…`},
	{"10/s burst=", `Burst at column 6: "burst=": want a value, or leave the word out`},
	{"10/s burst=x", `Burst at column 6: "burst=x": want a whole number`},
	{"10/s burst=0", `Burst at column 6: "burst=0": want a number from 1 to 9223372036854775807, or leave the word out`},
	{"10/s burst=-1", `Burst at column 6: "burst=-1": want a number from 1 to 9223372036854775807, or leave the word out`},
	{"10/s burst=2 burst=3", `Burst at column 14: "burst=3": already set at column 6: "burst=2"`},
	{"10/s burst=2 sliding-log", `Burst at column 6: "burst=2": requires token-bucket or leaky-bucket, not sliding-log`},
	{"1/d burst=30000", `Burst at column 5: 30000: must be at most 26687, which takes 73 years to refill`},

	{"10/s buckets=5", `Buckets at column 6: "buckets=5": requires rolling-window, not token-bucket`},
	{"10/s rolling-window buckets=1001", `Buckets at column 21: "buckets=1001": want a number from 1 to 1000, or leave the word out`},
	{"10/s rolling-window bucket=1ms buckets=5", `Buckets at column 32: "buckets=5": already set at column 21: "bucket=1ms"`},
	{"10/s rolling-window bucket=x", `Buckets at column 21: "bucket=x": want a duration such as 1h or 30s`},
	{"10/s rolling-window bucket=0s", `Buckets at column 21: "bucket=0s": want a duration such as 1h or 30s`},
	{"10/s rolling-window bucket=1us", `Buckets at column 21: "bucket=1us": the period of 1s has 1000000 of these: want at most 1000`},
	{"10/s rolling-window bucket=2s", `Buckets at column 21: "bucket=2s": longer than the period of 1s`},

	{"10/s align=clock", `Align at column 6: "align=clock": requires fixed-window, not token-bucket`},
	{"10/d fixed-window align=dya", `Align at column 19: "align=dya": unknown alignment; did you mean day?`},
	{"10/s offset=1s", `Offset at column 6: "offset=1s": requires fixed-window, not token-bucket`},
	{"10/h fixed-window offset=1s", `Offset at column 19: "offset=1s": requires align= or zone=: these windows begin at the first request`},
	{"10/h fixed-window align=clock offset=x", `Offset at column 31: "offset=x": want a duration such as 4h or -30m`},
	{"10/h fixed-window align=clock offset=1h", `Offset at column 31: 1h: must be shorter than the period of 1h`},

	{"10/d zone=UTC", `Zone at column 6: "zone=UTC": requires fixed-window, not token-bucket`},
	{"10/90m zone=UTC fixed-window", `Zone at column 8: "zone=UTC": requires a period of day, week, month or year, not 90m`},
	{"10/d zone=UTC fixed-window align=clock", `Zone at column 6: "zone=UTC": requires a calendar, which align=clock does not follow`},
	{"10/d zone=UTC fixed-window align=first", `Zone at column 6: "zone=UTC": requires a calendar, which align=first does not follow`},
	{"10/d zone=Local fixed-window", `Zone at column 6: "Local": differs between machines; want an IANA time zone such as Europe/Berlin`},
	{"10/d zone=Asia/Shangri-La fixed-window", `Zone at column 6: "Asia/Shangri-La": want an IANA time zone such as Europe/Berlin, and zone data on this machine or an import of time/tzdata`},

	{"10/s name=", `Name at column 6: "name=": want a value, or leave the word out`},
	{`10/s name=""`, `Name at column 6: "name=\"\"": want a value, or leave the word out`},
	{"10/s name=a=b", `Name at column 6: "name=a=b": want quotes, as in name="a=b"`},
	{"10/s name=\xff", `Name at column 6: "name=\xff": want quotes, as in name="\xff"`},
	{`10/s name="a b`, `Name at column 6: "name=\"a": want a closing quote, and between the quotes a string as in Go`},
	{`10/s name="a"b`, `Name at column 6: "name=\"a\"": want a space after the closing quote`},
	{"10/s name=" + strings.Repeat("n", 65), `Name at column 6: 65 bytes long: must be at most 64`},
}

func TestParseLimitErrors(t *testing.T) {
	for _, c := range badLimitTexts {
		l, err := ParseLimit(c.text)
		if err == nil || err.Error() != "penstock: bad limit: "+c.want {
			t.Errorf("ParseLimit(%q)\ngot  %+v, %v\nwant penstock: bad limit: %s", c.text, fields(l), err, c.want)
		}
		if l != (Limit{}) {
			t.Errorf("ParseLimit(%q) returns %+v beside its error", c.text, fields(l))
		}
	}
}

// The text of a valid limit is parsed as its normal form; that of an invalid limit
// is refused.
func TestLimitStringRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := anyLimit().Draw(t, "limit")
		invalid := l.Validate()
		got, err := ParseLimit(l.String())
		if (err == nil) != (invalid == nil) {
			t.Fatalf("ParseLimit(%q) returned %v, but %+v.Validate() = %v", l, err, fields(l), invalid)
		}
		if err == nil && got != l.Normal() {
			t.Fatalf("ParseLimit(%q)\ngot  %+v\nwant %+v", l, fields(got), fields(l.Normal()))
		}
		if err == nil && got.String() != l.String() {
			t.Fatalf("%q is not canonical: it is parsed as %q", l, got)
		}
	})
}

func TestParseLimitAcceptsWordsInAnyOrder(t *testing.T) {
	words := []string{"fixed-window", "zone=Asia/Shanghai", "offset=4h", `name="a b"`, "align=day"}
	want, err := ParseLimit("5/day " + strings.Join(words, " "))
	if err != nil {
		t.Fatal(err)
	}
	for range 50 {
		rand.Shuffle(len(words), func(i, j int) { words[i], words[j] = words[j], words[i] })
		text := "5/day " + strings.Join(words, " ")
		if got, err := ParseLimit(text); got != want || err != nil {
			t.Fatalf("ParseLimit(%q) = %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestLimitMarshalsAsText(t *testing.T) {
	type config struct{ Login, Search Limit }
	text := `{"Login":"5/1m burst=2","Search":"100/day zone=Asia/Shanghai fixed-window"}`
	var c config
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		t.Fatalf("Unmarshal(%s): %v", text, err)
	}
	if want := PerMinute(5).WithBurst(2); c.Login != want {
		t.Errorf("Unmarshal(%s) has Login %+v, want %+v", text, fields(c.Login), fields(want))
	}
	if got, err := json.Marshal(c); string(got) != text || err != nil {
		t.Errorf("Marshal(%+v) = %s, %v, want %s", c, got, err, text)
	}

	before := c.Login
	if err := c.Login.UnmarshalText([]byte("5/x")); !errors.Is(err, ErrBadLimit) || c.Login != before {
		t.Errorf(`UnmarshalText("5/x") = %v and leaves %v, want ErrBadLimit and %v`, err, c.Login, before)
	}
	if got, err := (Limit{}).MarshalText(); !errors.Is(err, ErrBadLimit) || got != nil {
		t.Errorf("the zero Limit's MarshalText = %q, %v, want ErrBadLimit", got, err)
	}
}

func TestLimitWorksAsFlag(t *testing.T) {
	var l Limit
	flags := flag.NewFlagSet("penstock", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.TextVar(&l, "limit", PerSecond(10), "how much")
	if got := flags.Lookup("limit").DefValue; got != "10/1s" {
		t.Errorf("the flag's default is %q, want 10/1s", got)
	}
	if err := flags.Parse([]string{"-limit", "30/1m burst=15"}); err != nil || l != PerMinute(30).WithBurst(15) {
		t.Errorf("the flag is %v, %v, want 30/1m burst=15", l, err)
	}
}

func TestAlgorithmAndAlignStringOfUnknownValue(t *testing.T) {
	if got := Algorithm(9).String(); got != "algorithm(9)" {
		t.Errorf("Algorithm(9).String() = %q", got)
	}
	if got := Align(9).String(); got != "align(9)" {
		t.Errorf("Align(9).String() = %q", got)
	}
}

// Any text is either refused with an error that points into it, or is a valid limit
// whose String is parsed as the same limit.
func FuzzParseLimit(f *testing.F) {
	for _, text := range []string{
		"10/s", "30/1m burst=15", "1/year", "100/10s rolling-window buckets=20", "100/1d bucket=1h rolling-window",
		"5/day zone=Asia/Shanghai fixed-window", "100/1m fixed-window align=clock offset=-10s",
		"5/month zone=Europe/Berlin fixed-window offset=4h", `10/s name="a b\x00" leaky-bucket`, "1/1.5us name=`x`",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		l, err := ParseLimit(text)
		if err != nil {
			checkColumn(t, text, err)
			return
		}
		if err := l.Validate(); err != nil || l != l.Normal() {
			t.Fatalf("ParseLimit(%q) = %+v, which is invalid (%v) or not normal", text, fields(l), err)
		}
		again, err := ParseLimit(l.String())
		if again != l || err != nil {
			t.Fatalf("ParseLimit(%q) prints as %q, which is parsed as %+v, %v, want %+v", text, l, fields(again), err, fields(l))
		}
	})
}

func checkColumn(t *testing.T, text string, err error) {
	t.Helper()
	var bad *FieldError
	if !errors.As(err, &bad) || !errors.Is(bad, ErrBadLimit) || bad.Field == "" {
		t.Fatalf("ParseLimit(%q) = %v, want a FieldError of kind ErrBadLimit", text, err)
	}
	var column int
	if _, err := fmt.Sscanf(bad.Problem, "at column %d:", &column); err != nil || column < 1 || column > len(text)+1 {
		t.Fatalf("ParseLimit(%q) = %v, which names no column of the text", text, bad)
	}
}

// A caller that is only asked for the text of a limit cannot decide whether the limit is
// trusted.
func TestLimitTextCannotExpressTrust(t *testing.T) {
	l := asUntrusted(PerSecond(10).WithName("a"))
	if l.String() != PerSecond(10).WithName("a").String() {
		t.Errorf("the text of an untrusted limit is %q", l)
	}
	for _, word := range []string{"untrusted", "untrusted=true", "untrusted=false", "trusted"} {
		if got, err := ParseLimit("10/s " + word); err == nil {
			t.Errorf("ParseLimit accepts the word %q: %+v", word, fields(got))
		}
	}
}

// The page about rules has every word that the text of a limit may have, and its
// examples parse.
func TestRulesPageMatchesLimitText(t *testing.T) {
	page, err := os.ReadFile("docs/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## The text of a limit\n")
	section, _, _ = strings.Cut(section, "\n## ")
	for _, word := range alignWords {
		if !strings.Contains(section, "`"+word+"`") {
			t.Errorf("the section does not have the word %s", word)
		}
	}
	for _, key := range limitKeys {
		if !strings.Contains(section, "\n| `"+key) {
			t.Errorf("the table has no row for %s", key)
		}
	}
	_, examples, _ := strings.Cut(section, "```text limits\n")
	examples, _, _ = strings.Cut(examples, "```")
	if n := strings.Count(examples, "\n"); n < 8 {
		t.Errorf("only %d examples found: the search is broken", n)
	}
	for text := range strings.Lines(examples) {
		if _, err := ParseLimit(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, row := range regexp.MustCompile(`(?m)^\| .*(?:as in Go|spelled out).*$`).FindAllString(section, -1) {
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row, -1) {
			if _, ok := timespan.Parse(m[1]); !ok {
				t.Errorf("%q is no duration", m[1])
			}
		}
	}
}
