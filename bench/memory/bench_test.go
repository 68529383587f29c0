package main

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock/bench/internal/measure"
)

// TestMain lets the test binary act as the command when a case starts it again to
// measure a contender by itself.
func TestMain(m *testing.M) {
	if isChild, err := runIfChild(); isChild {
		exitOn(err)
		return
	}
	os.Exit(m.Run())
}

func TestCasesRunQuick(t *testing.T) {
	for _, trial := range cases {
		t.Run(trial.name, func(t *testing.T) {
			b := &bench{rounds: 3, length: 50 * time.Microsecond, sizes: quickSizes, progress: t.Output()}
			if err := trial.run(b); err != nil {
				t.Fatal(err)
			}
			if len(b.report.Findings) == 0 {
				t.Error("no findings")
			}
		})
	}
}

func TestSeriesListsEveryLimiter(t *testing.T) {
	var out bytes.Buffer
	b := &bench{rounds: 3, length: 50 * time.Microsecond, sizes: quickSizes, progress: t.Output()}
	if err := b.series(&out, []int{1, 10, 100}); err != nil {
		t.Fatal(err)
	}
	want := 1 + 3*(2+len(keyed(rivals)))
	if got := strings.Count(out.String(), "\n"); got != want {
		t.Errorf("%d lines, want %d:\n%s", got, want, &out)
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
	got := rivalVersions()
	for _, c := range rivals {
		if !strings.Contains(got, c.module+" v") {
			t.Errorf("no version of %s in %q", c.module, got)
		}
	}
}

func TestReportTargetsNeedSpeedAndNoAllocations(t *testing.T) {
	for _, c := range []struct {
		ratio, allocs float64
		met           bool
	}{{1.79, 0, true}, {1.81, 0, false}, {1.2, 0.5, false}} {
		var r report
		r.findAgainstFloor("hot", timing{toFloor: measure.Spread{Median: c.ratio}, allocs: c.allocs}, 1.8)
		if got := r.Findings[0].Met; got != c.met {
			t.Errorf("%.2f× with %.1f allocations against at most 1.8×: met %v, want %v", c.ratio, c.allocs, got, c.met)
		}
	}
	for _, c := range []struct {
		bytes float64
		gc    time.Duration
		met   bool
	}{{39, time.Millisecond, true}, {41, time.Millisecond, false}, {39, 3 * time.Millisecond, false}} {
		var r report
		r.findWeight(memoryUse{Name: "penstock token-bucket", Bytes: c.bytes, GC: c.gc}, 40, 2*time.Millisecond)
		if got := r.Findings[0].Met; got != c.met {
			t.Errorf("%.0f bytes and %s against at most 40 and 2ms: met %v, want %v", c.bytes, c.gc, got, c.met)
		}
	}
}

func TestRivalResultsReportClosest(t *testing.T) {
	timings := func(name string, ratio float64) []timing {
		return []timing{{name: "penstock"}, {name: name, toOurs: measure.Spread{Median: ratio}}}
	}
	s := newRivalResults("1,000,000 keys")
	s.add(timings("slow", 4))
	s.add(timings("close", 2.4))
	s.add(timings("slower", 5))
	var r report
	s.report(&r)
	if f := r.Findings[0]; f.Met || !strings.Contains(f.Measured, "2.4×") || !strings.Contains(f.Measured, "close") {
		t.Errorf("after rivals at 4×, 2.4× and 5×: %+v, want a miss at 2.4×", f)
	}
	if len(r.timings) != 4 {
		t.Errorf("%d timings, want penstock's once and three rivals'", len(r.timings))
	}
}

func TestWalkVisitsEveryKeyInOtherOrderThanFill(t *testing.T) {
	const n = 1000
	var filled, walked []string
	err := fillKeys(7, n, func(key string) error {
		filled = append(filled, key)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
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

func TestRunRoundsAlternates(t *testing.T) {
	var order []string
	a, b := &recorder{"a", &order}, &recorder{"b", &order}
	r := newRing(0, 1)
	runRounds(3, time.Nanosecond, newRunner("a", a, r, 1), newRunner("b", b, r, 1))
	got := strings.Join(order[len(order)-6:], "")
	if got != "ababab" {
		t.Errorf("three rounds went %q, want ababab", got)
	}
}

func TestRunnerSplitsCallsAmongGoroutines(t *testing.T) {
	l, err := openFilled(ours, ample(100), 100)
	if err != nil {
		t.Fatal(err)
	}
	e := newRunner("penstock", l, newRing(0, 100), 2)
	e.runCalls(80)
	keys, err := distinct(e.walks)
	if err != nil || keys != 80 || e.counts.calls != 80 {
		t.Errorf("80 calls on two goroutines: %d keys, %d calls, %v; want 80 of both", keys, e.counts.calls, err)
	}
}

// recorder records when it runs.
type recorder struct {
	name  string
	order *[]string
}

func (r *recorder) take(string) (bool, error) { return true, nil }

func (r *recorder) run(_ *walk, calls int) counts {
	*r.order = append(*r.order, r.name)
	return counts{calls: calls}
}
