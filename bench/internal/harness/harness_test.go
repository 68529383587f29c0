package harness

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestMainExitStatus(t *testing.T) {
	missed := func(r *Run) { r.Find("case", "≤ 1", false, "2") }
	reached := func(r *Run) {
		r.Find("case", "≤ 1", true, "1")
		r.Find("known", "", false, "2")
	}
	wrong := func(*Run) { Check(errors.New("all keys were the same")) }
	for _, test := range []struct {
		name string
		args []string
		run  func(*Run)
		want int
	}{
		{"all targets met", nil, reached, 0},
		{"a missed target is no error", nil, missed, 0},
		{"a wrong workload is always an error", []string{"-quick"}, wrong, 1},
		{"no rounds", []string{"-rounds", "0"}, reached, 2},
		{"no pattern", []string{"-run", "("}, reached, 2},
		{"no flag", []string{"-fast"}, reached, 2},
	} {
		var out, stderr bytes.Buffer
		r := New("bench", &out, &stderr)
		r.TurnFlags("rounds", "round", Turns{2, time.Second}, Turns{1, time.Millisecond})
		if got := r.Main(test.args, []Case{{Name: "case", Run: func() { test.run(r) }}}); got != test.want {
			t.Errorf("%s: exit status %d, want %d; printed %q", test.name, got, test.want, &stderr)
		}
	}
}

func TestMainRunsCasesByName(t *testing.T) {
	var out, stderr bytes.Buffer
	var ran []string
	off := false
	run := func(name string) func() { return func() { ran = append(ran, name) } }
	r := New("bench", &out, &stderr)
	status := r.Main([]string{"-run", "^t"}, []Case{{Name: "one", Run: run("one")}, {Name: "two", Run: run("two")}, {"ten", run("ten"), &off}})
	if status != 0 || !slices.Equal(ran, []string{"two"}) {
		t.Errorf("-run ^t: status %d, ran %q", status, ran)
	}
}

func TestMainCleansUpAfterEachCase(t *testing.T) {
	var out, stderr bytes.Buffer
	var order []string
	note := func(what string) func() { return func() { order = append(order, what) } }
	r := New("bench", &out, &stderr)
	r.Prepare = func() { r.Cleanup(note("server")) }
	r.Main(nil, []Case{
		{Name: "fails", Run: func() { r.Cleanup(note("first")); r.Cleanup(note("second")); r.Fatal("wrong") }},
		{Name: "next", Run: note("next")},
	})
	if got := strings.Join(order, " "); got != "second first next server" {
		t.Errorf("the order was %s", got)
	}
	if !strings.Contains(stderr.String(), "wrong workload: fails: wrong") {
		t.Errorf("printed %q", &stderr)
	}
}

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

func TestReportPrintsTargetsAndTables(t *testing.T) {
	var out bytes.Buffer
	r := New("bench", &out, &out)
	r.Find("one", "≤ 1", false, "%d", 2)
	r.Find("two", "", false, "3")
	r.FindAtLeast("three", Spread{1, 2, 3}, 2, "redis_rate")
	r.Table("Empty", "a")
	r.Table("Rates", "name", "rate").Row("ours", Spread{1, 2, 3.456})
	r.Table("Rates").Row("theirs", Decimals(1)(math.NaN()))
	r.report()
	for _, want := range []string{
		"| one | ≤ 1 | 2 | FAIL |\n| two | – | 3 | – |\n| three | ≥ 2× redis_rate | 2× (1.00–3.00) | pass |\n",
		"\n### Rates\n\n| name | rate |\n| --- | --- |\n| ours | 2× (1.00–3.46) |\n| theirs | – |\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "Empty") {
		t.Errorf("a table without rows is printed:\n%s", &out)
	}
}

func TestTakeTurnsAlternates(t *testing.T) {
	var order []string
	measure := func(c *Contender) {
		order = append(order, c.Name)
		c.Add("rate", float64(len(order)))
	}
	a, b := &Contender{Name: "a", Measure: measure}, &Contender{Name: "b", Measure: measure}
	TakeTurns(3, a, b)
	if got := strings.Join(order, ""); got != "ababab" {
		t.Errorf("three rounds went %q, want ababab", got)
	}
	if got := a.To(b, "rate").Median; got != 0.75 || b.Median("rate") != 4 {
		t.Errorf("ratio %v and median %v, want 0.75 and 4", got, b.Median("rate"))
	}
	if a.Forget(); a.To(b, "rate").String() != "–" {
		t.Error("measurements were not forgotten")
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
		Spread{}.String():  "–",
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
	if got, err := benchmarkRate(out); err != nil || got != 84033.61 {
		t.Errorf("rate %v, %v; want 84033.61", got, err)
	}
	if got, err := benchmarkRate("could not connect\n"); err == nil {
		t.Errorf("rate %v of a run that failed, want an error", got)
	}
}

func TestParseInfo(t *testing.T) {
	text := "used_memory:1000\r\nused_cpu_sys:1.5\r\nused_cpu_user:2.25\r\n" +
		"cmdstat_evalsha:calls=10,usec=70,usec_per_call=7.00,rejected_calls=1,failed_calls=2\r\n" +
		"db0:keys=5,expires=4,avg_ttl=100\r\n"
	got := ParseInfo(text)
	if got["used_memory"] != 1000 || got.Processor() != 3.75e6 || got.Keys() != 5 || got.Expires() != 4 || got.Calls("evalsha") != 10 || got.Micros("evalsha") != 70 || got.Failed() != 3 {
		t.Errorf("read %+v from:\n%s", got, text)
	}
	if d := got.Since(got); d["used_memory"] != 0 || d.Keys() != 0 || d.Failed() != 0 {
		t.Errorf("without commands the difference is %+v", d)
	}
	if d := (Info{}).Since(got); d.Keys() != -5 {
		t.Errorf("after all keys are deleted there are %d more than before, want -5", d.Keys())
	}
}
