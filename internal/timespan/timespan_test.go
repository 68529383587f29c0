package timespan_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"github.com/penstock-io/penstock/internal/timespan"
)

func TestParse(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0":          0,
		"0s":         0,
		"s":          time.Second,
		"d":          24 * time.Hour,
		"w":          7 * 24 * time.Hour,
		"minute":     time.Minute,
		"month":      30 * 24 * time.Hour,
		"years":      365 * 24 * time.Hour,
		"30s":        30 * time.Second,
		"1h30m":      90 * time.Minute,
		"1d12h":      36 * time.Hour,
		"2w1d":       15 * 24 * time.Hour,
		"1.5d":       36 * time.Hour,
		".5h":        30 * time.Minute,
		"1.s":        time.Second,
		"2days":      48 * time.Hour,
		"1day3hours": 27 * time.Hour,
		"250ms":      250 * time.Millisecond,
		"1.5us":      1500 * time.Nanosecond,
		"7µs":        7 * time.Microsecond,
		"7μs":        7 * time.Microsecond,
		"9ns":        9,

		// Fractions of a nanosecond are dropped, however they are written.
		"1.9999999999s":                    1999999999,
		"0.99999999999999999999999999w":    7*24*time.Hour - 1,
		"0.000000000000000000000000001d":   0,
		"9223372036854775807ns":            math.MaxInt64,
		"9223372036854775808ns":            math.MaxInt64,
		"293years":                         math.MaxInt64,
		"600years":                         math.MaxInt64, // more than 64 bits of nanoseconds
		"292years292years":                 math.MaxInt64,
		"99999999999999999999999999999.9s": math.MaxInt64,
		"9223372036.9s":                    math.MaxInt64,
	} {
		if got, ok := timespan.Parse(text); got != want || !ok {
			t.Errorf("timespan.Parse(%q) = %v, %v, want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "1", "1x", "-1s", "+1s", "1 s", "s1", "1s1", ".", ".s", "1..5s", "1.5.5s", "1e3s", "M", "1S", "hm", "0x1s", "1_000s"} {
		if got, ok := timespan.Parse(text); ok {
			t.Errorf("timespan.Parse(%q) = %v, want it refused", text, got)
		}
	}
}

func TestParseOffset(t *testing.T) {
	for text, want := range map[string]time.Duration{"4h": 4 * time.Hour, "-30m": -30 * time.Minute, "-1d": -24 * time.Hour} {
		if got, ok := timespan.ParseOffset(text); got != want || !ok {
			t.Errorf("timespan.ParseOffset(%q) = %v, %v, want %v", text, got, ok, want)
		}
	}
	for _, text := range []string{"", "-", "--1s", "4"} {
		if got, ok := timespan.ParseOffset(text); ok {
			t.Errorf("timespan.ParseOffset(%q) = %v, want it refused", text, got)
		}
	}
}

func TestText(t *testing.T) {
	for want, d := range map[string]time.Duration{
		"0s":        0,
		"1d":        24 * time.Hour,
		"365d":      365 * 24 * time.Hour,
		"-2d":       -48 * time.Hour,
		"36h":       36 * time.Hour,
		"1h30m":     90 * time.Minute,
		"1h0m5s":    time.Hour + 5*time.Second,
		"10m":       10 * time.Minute,
		"1m40s":     100 * time.Second,
		"100ms":     100 * time.Millisecond,
		"1.5us":     1500 * time.Nanosecond,
		"24h0m0.1s": 24*time.Hour + 100*time.Millisecond,
	} {
		if got := timespan.Text(d); got != want {
			t.Errorf("timespan.Text(%d) = %q, want %q", d, got, want)
		}
	}
}

// Every duration is parsed back from timespan.Text, and from Go's String.
func TestTextRoundTrips(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "d"))
		d = d.Truncate(rapid.SampledFrom([]time.Duration{1, time.Microsecond, time.Second, time.Hour, 24 * time.Hour}).Draw(t, "grain"))
		for _, text := range []string{timespan.Text(d), d.String()} {
			if got, ok := timespan.Parse(text); got != d || !ok {
				t.Fatalf("timespan.Parse(%q) = %v, %v, want %v", text, got, ok, d)
			}
		}
		if got, ok := timespan.ParseOffset(timespan.Text(-d)); got != -d || !ok {
			t.Fatalf("timespan.ParseOffset(%q) = %v, %v, want %v", timespan.Text(-d), got, ok, -d)
		}
	})
}
