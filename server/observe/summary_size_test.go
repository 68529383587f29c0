package observe_test

import (
	"context"
	"fmt"
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
