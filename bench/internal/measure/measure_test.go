package measure

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestFindingResult(t *testing.T) {
	for _, c := range []struct {
		finding Finding
		checked bool
		want    string
	}{
		{Finding{Target: "≤ 1", Met: true}, true, "pass"},
		{Finding{Target: "≤ 1", Met: false}, true, "FAIL"},
		{Finding{Target: "≤ 1", Met: false}, false, "not checked"},
		{Finding{Met: false}, true, "–"},
	} {
		if got := c.finding.result(c.checked); got != c.want {
			t.Errorf("%+v, checked %v: %q, want %q", c.finding, c.checked, got, c.want)
		}
	}
}

func TestFindingsWriteTable(t *testing.T) {
	var fs Findings
	fs.Add("one", "≤ 1", false, "%d", 2)
	fs.Add("two", "", false, "3")
	var out bytes.Buffer
	fs.Write(&out, true)
	if want := "| one | ≤ 1 | 2 | FAIL |\n| two | – | 3 | – |\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("findings:\n%s\nwant them to end with:\n%s", &out, want)
	}
	if got := fs.Missed(); got != 1 {
		t.Errorf("%d missed, want 1: a finding without target is not missed", got)
	}
}

func TestSpreadMedianIgnoresStall(t *testing.T) {
	got := SpreadOf([]float64{3, 1, 2, 1000, 4})
	if got.Median != 3 {
		t.Errorf("median %v, want 3", got.Median)
	}
	if want := 1.4; math.Abs(got.P10-want) > 1e-9 {
		t.Errorf("10th percentile %v, want %v", got.P10, want)
	}
	slowRounds := Ratios([]float64{10, 200, 10}, []float64{5, 100, 5})
	if !slices.Equal(slowRounds, []float64{2, 2, 2}) {
		t.Errorf("ratios %v, want 2 in the slow round as in the others", slowRounds)
	}
}

func TestNumberFormats(t *testing.T) {
	for got, want := range map[string]string{
		Thousands(1234567): "1,234,567",
		Thousands(999):     "999",
		Times(2.099):       "2.1×",
		TimesWithSpread(Spread{P10: 1, Median: 2, P90: 3.456}): "2× (1.00–3.46)",
		TimesWithSpread(Spread{}):                              "–",
	} {
		if got != want {
			t.Errorf("printed %q, want %q", got, want)
		}
	}
}

func TestBenchmarkRateParsesCSV(t *testing.T) {
	out := `"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"EVAL local a = "x", 1 return a 1 key","84033.61","0.530","0.136","0.519","0.655","0.863","1.223"
`
	if got, err := BenchmarkRate([]byte(out)); err != nil || got != 84033.61 {
		t.Errorf("rate %v, %v; want 84033.61", got, err)
	}
	if got, err := BenchmarkRate([]byte("could not connect\n")); err == nil {
		t.Errorf("rate %v of a run that failed, want an error", got)
	}
}
