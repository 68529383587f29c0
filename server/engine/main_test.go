package engine_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
	"github.com/penstock-io/penstock/rules"
	"github.com/penstock-io/penstock/server/engine"
)

// redis is a server with a fake clock. Tests share it with a key prefix each.
var redis *redistest.Server

func TestMain(m *testing.M) {
	os.Exit(redistest.Main(m, redistest.Options{FakeClock: true}, func(shared *redistest.Server) {
		redis = shared
		shared.Clock.Set(noon)
	}))
}

// noon is the time in these tests.
var noon = time.Date(2026, 3, 4, 12, 0, 0, 0, time.UTC)

var prefixes atomic.Int64

// onBothStores runs a test on each kind of store, with a clock that stands still.
func onBothStores(t *testing.T, test func(t *testing.T, store penstock.Store)) {
	t.Run("memory", func(t *testing.T) { test(t, newMemory()) })
	t.Run("redis", func(t *testing.T) {
		store, err := redisstore.Open(context.Background(), "unix://"+redis.Socket, &redisstore.Options{
			Prefix:  fmt.Sprintf("t%d-", prefixes.Add(1)),
			Timeout: time.Minute, // a busy machine is no failure here
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(store.Close)
		test(t, store)
	})
}

func newMemory() *penstock.Memory {
	return penstock.NewMemory(&penstock.MemoryOptions{Now: func() time.Time { return noon }})
}

// parse returns the rules of one file.
func parse(t testing.TB, yaml string) *rules.Set {
	t.Helper()
	set, err := rules.Parse(rules.File{Name: "test.yaml", Text: []byte(yaml)})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// newEngine returns an engine with the rules of one file.
func newEngine(t testing.TB, store penstock.Store, yaml string, o *engine.Options) *engine.Engine {
	t.Helper()
	e := engine.New(store, o)
	e.SetRules(parse(t, yaml))
	return e
}

// descriptor returns a descriptor of entries such as "user=ada", at a cost.
func descriptor(cost int64, entries ...string) engine.Descriptor {
	d := engine.Descriptor{Cost: cost}
	for _, e := range entries {
		key, value, _ := strings.Cut(e, "=")
		d.Entries = append(d.Entries, rules.Entry{Key: key, Value: value})
	}
	return d
}

// decide returns the result in one line, such as
// "denied: granted=0 remaining=0 over | granted=0 remaining=9".
func decide(t testing.TB, e *engine.Engine, domain string, ds ...engine.Descriptor) string {
	t.Helper()
	var v engine.Result
	if err := e.Decide(context.Background(), domain, ds, &v); err != nil {
		t.Fatalf("deciding %v: %v", ds, err)
	}
	return textOf(&v)
}

func textOf(v *engine.Result) string {
	parts := make([]string, len(v.Statuses))
	for i, st := range v.Statuses {
		parts[i] = statusText(st)
	}
	outcome := "allowed: "
	if v.OverLimit {
		outcome = "denied: "
	}
	return outcome + strings.Join(parts, " | ")
}

func statusText(st engine.Status) string {
	switch {
	case st.Rule == nil && st.OverLimit:
		return "no rule over"
	case st.Rule == nil:
		return "no rule"
	case st.Rule.Unlimited:
		return "unlimited"
	}
	text := fmt.Sprintf("granted=%d remaining=%d", st.Decision.Granted, st.Decision.Remaining)
	if st.OverLimit {
		text += " over"
	}
	if !st.Decision.Allowed {
		text += " denied"
	}
	return text
}

// want compares the results of decide.
func want(t testing.TB, got, expected string) {
	t.Helper()
	if got != expected {
		t.Errorf("got  %s\nwant %s", got, expected)
	}
}
