package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// TestMain lets the test binary act as the command when a case starts it again to
// measure a contender by itself.
func TestMain(m *testing.M) {
	harness.RunIfChild(runTask)
	os.Exit(m.Run())
}

// Every case runs, and finds something.
func TestCasesRunQuick(t *testing.T) {
	var out, progress bytes.Buffer
	if got := command([]string{"-quick"}, &out, &progress); got != 0 {
		t.Fatalf("exit status %d, want 0:\n%s", got, &progress)
	}
	for _, want := range []string{
		"token bucket, allowed |", "token bucket, denied |", "Store.Take with a Request |", "200 keys |", "200 keys, rolling-window |",
		"full and turning over |", "2,000 keys, two goroutines |", "2,000 keys, idle between visits |", "each limiter alone in its process |",
		"a flood of new keys", "memory, 2,000 live keys, token-bucket |", "memory, 100 live keys, sliding-log |", "4,000 keys, token bucket |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
}

func TestSeriesListsEveryLimiter(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys.csv")
	var out, progress bytes.Buffer
	if got := command([]string{"-quick", "-series", file}, &out, &progress); got != 0 || out.Len() > 0 {
		t.Fatalf("exit status %d, want 0 and no report:\n%s", got, &progress)
	}
	text, err := os.ReadFile(file)
	if want := 1 + 3*(2+len(keyed(rivals))); err != nil || strings.Count(string(text), "\n") != want {
		t.Errorf("%v, want %d lines:\n%s", err, want, text)
	}
}

// A case makes at most so many calls: 80 rounds of 10 ms, at 20 ns each, and half as many besides.
func TestAmpleAllowsEveryCallOfSeries(t *testing.T) {
	const calls = 60_000_000
	for _, n := range seriesKeys {
		if p := ample(n); p.burst < int64(calls/n) || p.window() >= 1<<52 {
			t.Errorf("%d keys: a burst of %d, which refills in %s; want at least %d, and less than 2^52 ns", n, p.burst, p.window(), calls/n)
		}
	}
}

func TestCommandPrintsTable(t *testing.T) {
	var out, progress bytes.Buffer
	if got := command([]string{"-quick", "-run", "^(hot|store|logweight)$"}, &out, &progress); got != 0 {
		t.Fatalf("exit status %d, want 0:\n%s", got, &progress)
	}
	for _, want := range []string{
		`\| one hot key, token bucket, allowed \| ≤ 1\.8× the floor, 0 allocations \| [\d.]+× \([\d.]+–[\d.]+\) the floor, 0 allocations \| not checked \|`,
		`\| one hot key, token bucket, allowed \| uber-go/ratelimit, no keys \| [\d.]+ \|`,
		`\| one hot key, through a wrapper and the Store interface \| ≤ 2\.7×`,
		`\| penstock sliding-log \| 100 \| [\d.]+ \|`,
	} {
		if !regexp.MustCompile(want).Match(out.Bytes()) {
			t.Errorf("no line like %s in:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "200 keys") {
		t.Errorf("-run ^(hot|store|logweight)$ ran other cases too:\n%s", &out)
	}
}

func TestCommandRejectsBadFlags(t *testing.T) {
	for _, args := range [][]string{{"-run", "("}, {"-rounds", "0"}, {"-round", "-1s"}, {"-fast"}} {
		var out, stderr bytes.Buffer
		if got := command(args, &out, &stderr); got != 2 || stderr.Len() == 0 {
			t.Errorf("%q: exit status %d and %q, want 2 and a reason", args, got, &stderr)
		}
	}
}

func TestRivalVersionsListsEveryModule(t *testing.T) {
	for _, c := range rivals {
		if got := harness.Versions([]string{c.module}); !strings.Contains(got, c.module+" v") {
			t.Errorf("no version of %s in %q", c.module, got)
		}
	}
}

func TestTargetsNeedSpeedAndNoAllocations(t *testing.T) {
	for _, c := range []struct {
		ratio, allocs float64
		met           bool
	}{{1.79, 0, true}, {1.81, 0, false}, {1.2, 0.5, false}} {
		b := &bench{Run: &harness.Run{}}
		b.findAgainstFloor("hot", timing{toFloor: harness.Spread{Median: c.ratio}, allocs: c.allocs}, 1.8)
		if got := b.Findings[0].Met; got != c.met {
			t.Errorf("%.2f× with %.1f allocations against at most 1.8×: met %v, want %v", c.ratio, c.allocs, got, c.met)
		}
	}
}

func TestFindFastestReportsClosestRival(t *testing.T) {
	timings := []timing{{name: "floor"}, {name: "penstock"}}
	for name, ratio := range map[string]float64{"slow": 4, "close": 2.4, "slower": 5} {
		timings = append(timings, timing{name: name, toOurs: harness.Spread{Median: ratio}})
	}
	b := &bench{Run: &harness.Run{}}
	b.findFastest("1,000,000 keys", timings, 2.5)
	if f := b.Findings[0]; f.Met || !strings.Contains(f.Measured, "2.4×") || !strings.Contains(f.Measured, "close") {
		t.Errorf("after rivals at 4×, 2.4× and 5×: %+v, want a miss at 2.4×", f)
	}
}

func TestWalkVisitsEveryKeyInOtherOrderThanFill(t *testing.T) {
	const n = 1000
	var filled, walked []string
	fillKeys(7, n, func(key string) { filled = append(filled, key) })
	w := newRing(7, n).walks(1)[0]
	for range n {
		walked = append(walked, w.key())
	}
	if slices.Equal(filled, walked) {
		t.Error("keys are filled in the order in which they are walked")
	}
	if again := w.key(); again != walked[0] {
		t.Errorf("after %d keys comes %q, want the first again, %q", n, again, walked[0])
	}
	slices.Sort(filled)
	slices.Sort(walked)
	if !slices.Equal(filled, walked) {
		t.Error("the filled keys differ from the walked keys")
	}
	if got, want := len(slices.Compact(walked)), n; got != want {
		t.Errorf("%d different keys, want %d", got, want)
	}
	if got := walked[0]; len(got) != keySize || got != "user:000000000000007" {
		t.Errorf("the lowest key is %q, want user:000000000000007", got)
	}
}

func TestSubjectSplitsCallsAmongGoroutines(t *testing.T) {
	l := ours.openFilled(ample(100), 100)
	e := newSubject("penstock", l, newRing(0, 100), 2)
	e.Run(80)
	if keys := distinct(e.walks...); keys != 80 || e.Total.Calls != 80 {
		t.Errorf("80 calls on two goroutines: %d keys, %d calls; want 80 of both", keys, e.Total.Calls)
	}
}
