package observe_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/observe"
	"github.com/penstock-io/penstock/server/requestlimits"
)

const ruleFile = `
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 3}
  - key: trial
    shadow_mode: true
    limit: "1/1h"
  - key: quiet
    limit: "5/1m burst=2"
`

// A daemon is an engine and its observer, on a clock that the test moves.
type daemon struct {
	*observe.Observer
	t      *testing.T
	engine *engine.Engine
	now    time.Time
}

func newDaemon(t *testing.T, o observe.Options) *daemon {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "edge.yaml", Text: []byte(ruleFile)})
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{t: t, now: time.Unix(1_800_000_000, 0)}
	clock := func() time.Time { return d.now }
	o.TopKeys, o.Now = topkeys.New(&topkeys.Options{Now: clock}), clock
	d.engine = engine.New(penstock.NewMemory(&penstock.MemoryOptions{Now: clock}), &engine.Options{TopKeys: o.TopKeys})
	d.engine.SetRules(set)
	d.Observer = observe.New(d.engine, &o)
	return d
}

// decide sends n requests with one entry, such as user=1.
func (d *daemon) decide(n int, entry string) {
	d.t.Helper()
	key, value, _ := strings.Cut(entry, "=")
	for range n {
		var result engine.Result
		ds := []engine.Descriptor{{Entries: []rules.Entry{{Key: key, Value: value}}, Cost: 1}}
		if err := d.engine.Decide(d.t.Context(), "edge", ds, &result); err != nil {
			d.t.Fatal(err)
		}
	}
}

// advance lets seconds pass.
func (d *daemon) advance(seconds int) {
	for range seconds {
		d.now = d.now.Add(time.Second)
		d.Tick()
	}
}

func (d *daemon) live(w observe.Window) *observe.Live {
	return d.Live(d.t.Context(), observe.LiveQuery{Scope: observe.ScopeDaemon, Window: w, Sort: "decisions", Rules: 10})
}

func TestLiveCountsDecisionsByTime(t *testing.T) {
	d := newDaemon(t, observe.Options{Name: "a", Version: "v1"})
	d.decide(5, "user=1")
	d.decide(3, "trial=1")
	d.decide(2, "nothing=1")
	d.advance(1)
	d.decide(1, "user=1")
	d.advance(4)
	for _, w := range observe.Windows {
		l := d.live(w)
		want := observe.Counts{Allowed: 4, Denied: 3, Shadowed: 2}
		if l.Totals != want || l.Counts != want || l.Unmatched != 2 {
			t.Errorf("%s: totals %+v, counts %+v, %d unmatched, want %+v and 2", w, l.Totals, l.Counts, l.Unmatched, want)
		}
		if got := l.Rates; got != (observe.Rates{Decisions: 1.8, Allowed: 0.8, Denied: 0.6, Shadowed: 0.4}) {
			t.Errorf("%s: rates %+v, want those of five seconds", w, got)
		}
	}
	s := d.live(observe.TwoMinutes).Series
	if s.From != d.now.Unix()-120 || s.Step != 1 || !slices.Equal(s.Denied[115:], []uint64{2, 1, 0, 0, 0}) || len(s.Allowed) != 120 {
		t.Errorf("series from %d: %v", s.From, s.Denied[110:])
	}
	d.advance(200)
	if l := d.live(observe.TwoMinutes); l.Counts != (observe.Counts{}) || l.Rates.Decisions != 0 || l.Totals.Denied != 3 {
		t.Errorf("after two minutes: %+v, %+v", l.Counts, l.Rates)
	}
	if l := d.live(observe.OneHour); l.Counts.Denied != 3 || len(l.Series.Denied) != 360 {
		t.Errorf("in the hour: %+v", l.Counts)
	}
}

func TestLiveHasARowForEachRule(t *testing.T) {
	d := newDaemon(t, observe.Options{})
	d.decide(6, "user=1")
	d.decide(4, "trial=1")
	d.advance(3)
	l := d.live(observe.TwoMinutes)
	if len(l.Rules) != 3 || l.RulesMatching != 3 {
		t.Fatalf("rows %+v, want one for each rule", l.Rules)
	}
	user, trial, quiet := l.Rules[0], l.Rules[1], l.Rules[2]
	if user.Name != "edge/user" || user.DeniedShare != 0.5 || user.Mode != "enforce" || user.Rate != 2 || user.Limit != "3/1h fixed-window align=clock" {
		t.Errorf("user: %+v", user)
	}
	if len(user.Decisions) != 60 || sum(user.Decisions) != 6 || sum(user.DeniedOrShadowed) != 3 {
		t.Errorf("user: sparkline %v, %v", user.Decisions, user.DeniedOrShadowed)
	}
	if trial.Name != "edge/trial" || trial.ShadowShare != 0.75 || trial.DeniedShare != 0 || trial.Mode != "shadow" {
		t.Errorf("trial: %+v", trial)
	}
	if quiet.Name != "edge/quiet" || quiet.Counts.Decisions() != 0 || quiet.Limit != "5/1m burst=2" {
		t.Errorf("quiet: %+v", quiet)
	}
	limit := requestlimits.Of(penstock.PerMinute(1))
	if _, err := d.engine.Take(t.Context(), penstock.Request{Key: "k", Limit: limit, Cost: 1}, func() bool { return true }); err != nil {
		t.Fatal(err)
	}
	if l = d.live(observe.OneDay); len(l.Rules) != 4 || len(l.Rules[0].Decisions) != 48 {
		t.Errorf("with limits in requests: %d rows", len(l.Rules))
	}
}

func sum(numbers []uint64) (total uint64) {
	for _, n := range numbers {
		total += n
	}
	return total
}

func TestLiveSelectsAndSortsRules(t *testing.T) {
	d := newDaemon(t, observe.Options{})
	d.decide(9, "trial=1")
	d.decide(5, "user=1")
	d.advance(1)
	for _, c := range []struct {
		sort, filter string
		rows         int
		want         string
		matching     int
	}{
		{"decisions", "", 10, "edge/trial edge/user edge/quiet", 3},
		{"denied", "", 10, "edge/trial edge/user edge/quiet", 3},
		{"denied_share", "", 10, "edge/user edge/quiet edge/trial", 3},
		{"shadow_share", "", 1, "edge/trial", 3},
		{"errors", "", 10, "edge/quiet edge/trial edge/user", 3},
		{"name", "T", 1, "edge/quiet", 2},
		{"name", "missing", 10, "", 0},
	} {
		l := d.Live(t.Context(), observe.LiveQuery{Window: observe.TwoMinutes, Sort: c.sort, Filter: c.filter, Rules: c.rows})
		var names []string
		for _, r := range l.Rules {
			names = append(names, r.Name)
		}
		if got := strings.Join(names, " "); got != c.want || l.RulesMatching != c.matching {
			t.Errorf("%+v: got %s of %d", c, got, l.RulesMatching)
		}
	}
}

func TestLiveEstimatesLatency(t *testing.T) {
	counts := []uint64{0, 0, 0}
	d := newDaemon(t, observe.Options{
		LatencyBounds: []float64{1, 2},
		Listeners: func() []observe.ListenerState {
			return []observe.ListenerState{{Name: "grpc", Connections: 7, Refused: 1, Latency: counts}, {Name: "admin", Connections: 1}}
		},
	})
	d.advance(1)
	if l := d.live(observe.TwoMinutes).Listeners; len(l) != 2 || l[0].P50 != nil || l[0].Connections != 7 || l[0].Refused != 1 || l[1].Name != "admin" {
		t.Errorf("without decisions: %+v", l)
	}
	counts = []uint64{60, 35, 5}
	d.advance(1)
	l := d.live(observe.OneHour).Listeners[0]
	if l.Calls != 100 || math.Abs(*l.P50-50.0/60) > 1e-9 || math.Abs(*l.P90-(1+30.0/35)) > 1e-9 || *l.P99 != 2 {
		t.Errorf("got %d calls, %v, %v, %v", l.Calls, *l.P50, *l.P90, *l.P99)
	}
}

func TestTopRanksKeys(t *testing.T) {
	d := newDaemon(t, observe.Options{Name: "a"})
	d.decide(3, "user=1")
	d.decide(9, "user=<img src=x onerror=alert(1)>")
	d.decide(2, "trial=\xff")
	d.decide(1, "user="+strings.Repeat("é", 300))
	top := d.Top(t.Context(), observe.TopQuery{Scope: observe.ScopeDaemon, By: observe.ByDenied, N: 10})
	if !top.Enabled || top.Sampling != 1 || top.Total != 7 || top.Floor != 0 || len(top.Keys) != 2 {
		t.Fatalf("denied: %+v", top)
	}
	if k := top.Keys[0]; k.Key != `user=<img src\=x onerror\=alert(1)>` || k.Rule != "edge/user" || k.Count != 6 || k.Guaranteed != 6 || k.Share != 6.0/7 || k.Asked.Guaranteed != 9 || k.Denied.Guaranteed != 6 || top.Totals != (observe.TopTotals{Asked: 15, Denied: 7}) {
		t.Errorf("denied: %+v", k)
	}
	if k := top.Keys[1]; k.Rule != "edge/trial" || k.KeyBase64 == "" || k.Shadowed != 1 {
		t.Errorf("denied: %+v", k)
	}
	rule := "edge/user"
	top = d.Top(t.Context(), observe.TopQuery{By: observe.ByAsked, Rule: &rule, N: 2})
	if len(top.Keys) != 2 || top.Total != 15 || top.Floor != 1 || top.Keys[1].Key != "user=1" {
		t.Errorf("asked: %+v", top)
	}
	top = d.Top(t.Context(), observe.TopQuery{By: observe.ByAsked, Rule: &rule, N: 3})
	if k := top.Keys[2]; !k.Truncated || k.KeyBase64 != "" || !strings.HasPrefix(k.Key, "user=éé") {
		t.Errorf("long: %+v", k)
	}
}

func TestSeenHasTheLastDecisions(t *testing.T) {
	d := newDaemon(t, observe.Options{})
	d.decide(4, "user=1")
	seen := d.Seen("user=1")
	if len(seen) != 1 || seen[0].Rule != "edge/user" || seen[0].Asked.Count != 4 || seen[0].Denied.Guaranteed != 1 {
		t.Fatalf("got %+v", seen)
	}
	var outcomes []string
	for _, d := range seen[0].Last {
		outcomes = append(outcomes, fmt.Sprint(d.Outcome, d.Remaining))
	}
	if want := []string{"denied0", "allowed0", "allowed1", "allowed2"}; !slices.Equal(outcomes, want) || !seen[0].Last[0].Time.Equal(d.now) {
		t.Errorf("got %v at %s, want %v", outcomes, seen[0].Last[0].Time, want)
	}
	if got := d.Seen("user=2"); got == nil || len(got) != 0 {
		t.Errorf("another key: %+v, want an empty list", got)
	}
}

func TestObserverWithoutTopKeys(t *testing.T) {
	o := observe.New(engine.New(penstock.NewMemory(nil), nil), nil)
	if top := o.Top(t.Context(), observe.TopQuery{By: observe.ByDenied, N: 5}); top.Enabled || top.Keys == nil || o.Seen("k") == nil {
		t.Errorf("got %+v, want a list that is empty and not null", top)
	}
}

func TestRunTicksEachSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := engine.New(penstock.NewMemory(nil), nil)
		o := observe.New(e, nil)
		go o.Run(t.Context())
		time.Sleep(250 * time.Millisecond)
		limit := requestlimits.Of(penstock.PerMinute(100))
		for range 20 {
			if _, err := e.Take(t.Context(), penstock.Request{Key: "k", Limit: limit, Cost: 1}, func() bool { return true }); err != nil {
				t.Fatal(err)
			}
			time.Sleep(500 * time.Millisecond)
		}
		synctest.Wait()
		l := o.Live(t.Context(), observe.LiveQuery{Window: observe.TwoMinutes, Sort: "name", Rules: 5})
		if l.Counts.Allowed != 20 || !slices.Equal(l.Series.Allowed[112:], []uint64{2, 2, 2, 2, 2, 2, 2, 2}) {
			t.Errorf("got %+v, %v", l.Counts, l.Series.Allowed[105:])
		}
	})
}

// A daemon may wait for its rules, or end without them.
func TestHistorySurvivesTimeWithoutRules(t *testing.T) {
	d := newDaemon(t, observe.Options{})
	d.decide(5, "user=1")
	d.advance(30)
	set := d.engine.Rules()
	d.engine = engine.New(penstock.NewMemory(nil), nil)
	for range 2 {
		var file bytes.Buffer
		if err := d.SaveHistory(&file); err != nil {
			t.Fatal(err)
		}
		d.Observer = observe.New(d.engine, &observe.Options{Now: func() time.Time { return d.now }})
		if err := d.LoadHistory(file.Bytes()); err != nil {
			t.Fatal(err)
		}
		d.advance(5)
	}
	d.engine.SetRules(set)
	d.advance(1)
	if l := d.live(observe.TwoMinutes); len(l.Rules) == 0 || l.Rules[0].Counts != (observe.Counts{Allowed: 3, Denied: 2}) {
		t.Errorf("got %+v, want what the rule counted before", l.Rules)
	}
}

func TestHistorySurvivesRestart(t *testing.T) {
	d := newDaemon(t, observe.Options{})
	d.decide(5, "user=1")
	d.advance(30)
	var file bytes.Buffer
	if err := d.SaveHistory(&file); err != nil {
		t.Fatal(err)
	}
	after := newDaemon(t, observe.Options{})
	after.now = d.now.Add(30 * time.Second)
	if err := after.LoadHistory(file.Bytes()); err != nil {
		t.Fatal(err)
	}
	after.decide(2, "user=2")
	after.advance(1)
	l := after.live(observe.TwoMinutes)
	if l.Counts != (observe.Counts{Allowed: 5, Denied: 2}) || l.Totals != (observe.Counts{Allowed: 2}) || l.Rules[0].Counts != l.Counts {
		t.Errorf("counts %+v, totals %+v, rule %+v", l.Counts, l.Totals, l.Rules[0].Counts)
	}
	empty := observe.New(d.engine, nil)
	for i := range file.Bytes() {
		damaged := bytes.Clone(file.Bytes())
		damaged[i]++
		if err := empty.LoadHistory(damaged); !errors.Is(err, observe.ErrBadHistory) {
			t.Fatalf("byte %d changed: %v, want ErrBadHistory", i, err)
		}
		if err := empty.LoadHistory(file.Bytes()[:i]); !errors.Is(err, observe.ErrBadHistory) {
			t.Fatalf("the first %d bytes: %v, want ErrBadHistory", i, err)
		}
	}
}
