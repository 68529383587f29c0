package observe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/topkeys"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/observe"
)

// A board keeps the last summary of each daemon.
type board map[string][]byte

func (b board) Put(_ context.Context, daemon string, summary []byte) (int, error) {
	b[daemon] = summary
	return len(b), nil
}

func (b board) Remove(_ context.Context, daemon string) error {
	delete(b, daemon)
	return nil
}

func (b board) Notices(context.Context) (all []observe.Notice, _ error) {
	for daemon, summary := range b {
		all = append(all, observe.Notice{Daemon: daemon, Summary: summary})
	}
	return all, nil
}

// Callers choose keys and limits. However long and random those are, a busy daemon does not become one
// that is missing for others.
func TestSummaryWithHostileKeysIsPublished(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	text := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(random.Uint32())
		}
		return string(b)
	}
	file := "domain: edge\ndescriptors:\n"
	for range 60 {
		file += fmt.Sprintf("- {key: path, value: /%x, limit: 10/1h}\n", text(40))
	}
	set, err := rules.Parse(rules.File{Name: "edge.yaml", Text: []byte(file)})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1_800_000_000, 0)
	clock := func() time.Time { return now }
	e := engine.New(penstock.NewMemory(nil), nil)
	e.SetRules(set)
	b, keys := board{}, topkeys.New(&topkeys.Options{Now: clock})
	busy := observe.New(e, &observe.Options{Name: "busy", TopKeys: keys, Board: b, Now: clock})
	for _, w := range []struct {
		steps int
		step  time.Duration
	}{{288, 5 * time.Minute}, {360, 10 * time.Second}, {120, time.Second}} {
		for range w.steps {
			for _, c := range e.RuleStats() {
				c.Denied.Add(random.Uint64N(1e6))
				c.Shadowed.Add(random.Uint64N(1e6))
			}
			now = now.Add(w.step)
			busy.Tick()
		}
	}
	for range 1000 {
		limit := penstock.Limit{Name: text(64), Count: random.Int64N(1 << 40), Period: time.Hour, Algorithm: penstock.FixedWindow}
		keys.RecordLimit(&limit, text(176), topkeys.Denied, 1, 0)
	}
	busy.PublishOnce(t.Context())
	if n := len(b["busy"]); n == 0 || n > observe.MaxSummaryBytes {
		t.Fatalf("a summary of %d bytes, want one of at most %d", n, observe.MaxSummaryBytes)
	}
	other := observe.New(engine.New(penstock.NewMemory(nil), nil), &observe.Options{Name: "other", Board: b, Now: clock})
	live := other.Live(t.Context(), observe.LiveQuery{Scope: observe.ScopeAll, Window: observe.OneHour, Sort: "decisions", Rules: 50})
	if len(live.Daemons) != 2 || live.Daemons[0].Missing || len(live.Rules) != 50 {
		t.Errorf("another daemon sees %+v and %d rules, want both daemons and 50 rules", live.Daemons, len(live.Rules))
	}
}

// Whatever a daemon knows yet, others accept its summary: one that has just started, before its first
// second, with the history of the last run, or with that of a run that ended in its first second.
func TestSummaryOfYoungDaemonIsAccepted(t *testing.T) {
	for age, prepare := range map[string]func(d, last *daemon){
		"new":                            func(*daemon, *daemon) {},
		"in its first second":            func(d, _ *daemon) { d.decide(1, "user=1") },
		"after its first second":         func(d, _ *daemon) { d.advance(1) },
		"with a history":                 func(d, last *daemon) { last.advance(40); d.restore(last) },
		"with a history of nothing":      func(d, last *daemon) { d.restore(last) },
		"with a history of tomorrow":     func(d, last *daemon) { last.advance(1); d.now = d.now.Add(-24 * time.Hour); d.restore(last) },
		"with a history and in a second": func(d, last *daemon) { last.advance(40); d.restore(last); d.advance(1) },
	} {
		b, log := board{}, &bytes.Buffer{}
		d := newDaemon(t, observe.Options{Name: "young", Board: b})
		prepare(d, newDaemon(t, observe.Options{}))
		d.PublishOnce(t.Context())
		other := newDaemon(t, observe.Options{Name: "other", Board: b, Log: slog.New(slog.NewTextHandler(log, nil))})
		for _, w := range observe.Windows {
			live := other.Live(t.Context(), observe.LiveQuery{Scope: observe.ScopeAll, Window: w, Sort: "decisions", Rules: 1})
			if len(live.Daemons) != 2 || live.Daemons[1].Missing || log.Len() != 0 {
				t.Errorf("%s: daemons %+v, log %s", age, live.Daemons, log)
			}
		}
	}
}

// restore loads what another has saved.
func (d *daemon) restore(last *daemon) {
	d.t.Helper()
	var file bytes.Buffer
	err := last.SaveHistory(&file)
	if err = errors.Join(err, d.LoadHistory(file.Bytes())); err != nil {
		d.t.Fatal(err)
	}
}
