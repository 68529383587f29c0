package pagetest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/simulator"
)

// A simulation is what the command prints.
type simulation struct {
	Limit   string `json:"limit"`
	Summary string `json:"summary"`
	Lanes   []lane `json:"lanes"`
}

type lane struct {
	Algorithm    string   `json:"algorithm"`
	Written      bool     `json:"written"`
	Error        string   `json:"error"`
	Offered      int64    `json:"offered"`
	Passed       int64    `json:"passed"`
	MostInPeriod int64    `json:"most_in_period"`
	AtMost       int64    `json:"at_most"`
	Results      []result `json:"results"`
}

type result struct {
	At         json.Number  `json:"at"`
	Cost       int64        `json:"cost"`
	Allowed    bool         `json:"allowed"`
	Delay      json.Number  `json:"delay"`
	RetryAfter *json.Number `json:"retry_after"`
}

// A shownLane is what the page shows of a lane: its figures, and how many marks it has of
// each kind.
type shownLane struct {
	Algorithm string         `json:"algorithm"`
	Passed    string         `json:"passed"`
	Most      string         `json:"most"`
	Bound     string         `json:"bound"`
	Marks     map[string]int `json:"marks"`
}

const readLanes = `[...document.querySelectorAll('.lane[data-algorithm]')].map((lane) => {
	const marks = {};
	for (const mark of lane.querySelectorAll('.mark')) {
		const kind = [...mark.classList].find((c) => c.startsWith('mark-')).slice(5);
		marks[kind] = (marks[kind] ?? 0) + Number(mark.dataset.n);
	}
	const most = lane.querySelector('[data-figure=most]');
	return {
		algorithm: lane.dataset.algorithm, passed: lane.querySelector('[data-figure=passed]').textContent,
		most: most.firstChild.textContent, bound: most.lastChild.textContent, marks,
	};
})`

// shown is what the page shows of a simulation.
type shown struct {
	Summary string      `json:"summary"`
	Lanes   []shownLane `json:"lanes"`
}

// simulate shows a limit and a traffic in a tab with the simulator.
func (tb *tab) simulate(t *testing.T, limit, traffic string) shown {
	t.Helper()
	ready := quote(`[` + quote(limit) + `,` + quote(traffic) + `,""]`)
	return follow[shown](t, tb, link("", "simulator", "limit", limit, "traffic", traffic),
		"document.querySelector('.lanes')?.dataset.ready === "+ready, "({ summary: document.querySelector('.summary').textContent, lanes: "+readLanes+" })")
}

// randomLimits returns limits of every algorithm with a lane.
func randomLimits(seed uint64, n int) (all []string) {
	random := rand.New(rand.NewPCG(seed, 1))
	algorithms := []string{"", " leaky-bucket", " fixed-window", " sliding-window", " rolling-window", " sliding-log"}
	for i := range n {
		algorithm := algorithms[i%len(algorithms)]
		limit := fmt.Sprintf("%d/%ds%s", 1+random.IntN(40), 1+random.IntN(100), algorithm)
		if (algorithm == "" || algorithm == " leaky-bucket") && random.IntN(2) == 0 {
			limit += fmt.Sprintf(" burst=%d", 1+random.IntN(60))
		}
		all = append(all, limit)
	}
	return all
}

// The lanes on the page are those of the command, and the written one is what a limiter
// decides.
func TestSimulatorEqualsTheCommandAndALimiter(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules})
	tb := openTab(t)
	tb.show(t, d, "simulator")
	for i, limit := range randomLimits(1, 200) {
		traffic := simulator.Traffics[i%len(simulator.Traffics)].Name
		out, err := exec.Command(binary, "simulate", limit, "--traffic", traffic, "--json").Output()
		if err != nil {
			t.Fatalf("%s, %s: %v", limit, traffic, err)
		}
		var want simulation
		if err := json.Unmarshal(out, &want); err != nil {
			t.Fatal(err)
		}
		got := tb.simulate(t, limit, traffic)
		compareLanes(t, limit+", "+traffic, got.Lanes, want.Lanes)
		if got.Summary != want.Summary {
			t.Errorf("%s, %s: the page says %q, the command %q", limit, traffic, got.Summary, want.Summary)
		}
		checkLimiter(t, limit, want.Lanes)
	}
}

func compareLanes(t *testing.T, name string, got []shownLane, want []lane) {
	t.Helper()
	if len(got) != len(want) || len(got) != 6 {
		t.Fatalf("%s: %d lanes, want %d", name, len(got), len(want))
	}
	for i, w := range want {
		marks := map[string]int{}
		for _, r := range w.Results {
			switch {
			case !r.Allowed:
				marks["denied"]++
			case r.Delay != "0":
				marks["delayed"]++
			default:
				marks["passed"]++
			}
		}
		all := shownLane{w.Algorithm, fmt.Sprintf("%s of %s", grouped(w.Passed), grouped(w.Offered)), grouped(w.MostInPeriod), " of at most " + grouped(w.AtMost), marks}
		if fmt.Sprint(got[i]) != fmt.Sprint(all) {
			t.Errorf("%s: the page shows %v, want %v", name, got[i], all)
		}
	}
}

// grouped formats 1234 as 1,234.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// checkLimiter runs the arrivals of the written lane through a limiter.
func checkLimiter(t *testing.T, text string, lanes []lane) {
	t.Helper()
	limit, err := penstock.ParseLimit(text)
	if err != nil {
		t.Fatal(err)
	}
	period := limit.Normal().Period
	// Rolling windows lie on the clock, and the simulator begins half a period before an
	// edge of it.
	start := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC).Truncate(period).Add(period / 2)
	now := start
	limiter, err := penstock.New(penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return now }}), limit)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lanes {
		if !l.Written {
			continue
		}
		for i, r := range l.Results {
			now = start.Add(duration(t, r.At))
			d, err := limiter.AllowN(context.Background(), "key", r.Cost)
			if err != nil {
				t.Fatal(err)
			}
			never := r.RetryAfter == nil
			if d.Allowed != r.Allowed || d.Delay != duration(t, r.Delay) || never != (d.RetryAfter == penstock.Never) ||
				!never && d.RetryAfter != duration(t, *r.RetryAfter) {
				t.Fatalf("%s, request %d: a limiter decides %+v, the lane has %+v", text, i, d, r)
			}
		}
		return
	}
	t.Fatalf("%s: no lane is marked as written", text)
}

// duration returns a number of seconds with up to nine decimals, exactly.
func duration(t *testing.T, seconds json.Number) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(seconds.String() + "s")
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// The known weakness of fixed windows, and what a denied caller is told.
func TestSimulatorEdgePassesTwiceUnderAFixedWindow(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules})
	tb := openTab(t)
	tb.show(t, d, "simulator")
	for _, l := range tb.simulate(t, "10/1s", "edge").Lanes {
		switch l.Algorithm {
		case "fixed-window":
			if l.Passed != "20 of 20" || l.Most != "20" || l.Bound != " of at most 20" || l.Marks["passed"] != 20 {
				t.Errorf("fixed window: %+v, want 20 of 20", l)
			}
		case "sliding-log":
			if l.Passed != "10 of 20" || l.Most != "10" || l.Bound != " of at most 10" || l.Marks["denied"] != 10 {
				t.Errorf("sliding log: %+v, want 10 of 20", l)
			}
		}
	}
	tb.click(t, "[data-algorithm=sliding-log] .mark-denied")
	const told = "sliding-log, request 11 of 20, at 550 ms: denied, RetryAfter 900 ms: alone, the same request passes at 1.45 s."
	if got := tb.text(t, ".detail"); got != told {
		t.Errorf("after a click the page says %q, want %q", got, told)
	}
	hash := evaluate[string](t, tb, "location.hash")
	again := openTab(t)
	again.visit(t, d.url(t, "admin")+"/"+hash)
	again.waitUntil(t, "the link shows the same", "document.querySelector('.detail')?.textContent === "+quote(told))
	evaluate[bool](t, again, "(() => { document.querySelector('[data-algorithm=sliding-log] svg').focus(); return true })()")
	again.press(t, "ArrowLeft", 37)
	again.waitUntil(t, "an arrow key selects the request before", "document.querySelector('.detail').textContent.includes('request 10 of 20, at 450 ms: allowed')")
}

// A picture that is drawn anew stays where the user looks at it.
func TestSimulatorKeepsTheScrollPositionWhenItDrawsAnew(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules})
	tb := openTab(t)
	tb.resize(t, 1280, 890)
	tb.show(t, d, "simulator")
	tb.simulate(t, "10/1s", "edge")
	const scrolled = "Math.round(document.scrollingElement.scrollTop)"
	bottom := evaluate[int](t, tb, "(() => { document.scrollingElement.scrollTop = 1e6; return "+scrolled+"; })()")
	if bottom == 0 {
		t.Fatal("the page has no part to scroll to")
	}
	tb.simulate(t, "10/1s", "burst")
	if got := evaluate[int](t, tb, scrolled); got != bottom {
		t.Errorf("scrolled to %d after a new picture, want %d", got, bottom)
	}
}

func TestSimulatorRunsOwnArrivalsAndSaysWhatIsWrong(t *testing.T) {
	d := startDaemon(t, map[string]string{"shop.yaml": shopRules})
	tb := openTab(t)
	tb.show(t, d, "simulator", "limit", "3/1s", "traffic", "own", "arrivals", "0x2, 0.5:2, 2")
	lanes := evaluate[[]shownLane](t, tb, readLanes)
	if l := lanes[5]; l.Algorithm != "sliding-log" || l.Passed != "3 of 5" || l.Marks["denied"] != 1 || l.Marks["passed"] != 3 {
		t.Errorf("sliding log: %+v, want 3 of 5", l)
	}
	for limit, want := range map[string]string{"ten": "bad limit", "5/1s align=never": "bad limit"} {
		tb.write(t, "input[name=limit]", limit)
		tb.waitUntil(t, "the error is shown", "document.querySelector('.problem').checkVisibility() && document.querySelector('.problem').textContent.includes("+quote(want)+")")
	}
	tb.write(t, "input[name=limit]", "3/1s")
	tb.waitUntil(t, "the error is gone", "!document.querySelector('.problem').checkVisibility()")
	tb.write(t, "textarea[name=arrivals]", "0 soon")
	tb.waitUntil(t, "the error is shown", "document.querySelector('.problem').textContent.includes('soon')")
	if got := strings.Join(tb.texts(t, ".problem"), ""); strings.Contains(got, "undefined") {
		t.Error(got)
	}
}
