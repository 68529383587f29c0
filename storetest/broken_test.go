package storetest

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// Tests that nothing fails prove nothing. Each of these stores does one thing
// wrong, and names the part of Run that has to notice.
var brokenStores = []struct {
	name, part string
	open       Open
}{
	{"forgets IDs", "transcripts", wrong(func(m *model, r penstock.Request) (penstock.Decision, error) {
		r.ID = ""
		return m.Take(context.Background(), r)
	})},
	{"rounds down", "promises", wrong(func(m *model, r penstock.Request) (penstock.Decision, error) {
		d, err := m.Take(context.Background(), r)
		if d.RetryAfter != penstock.Never {
			d.RetryAfter = max(d.RetryAfter-tick, 0)
		}
		return d, err
	})},
	{"charges those it denies", "promises", wrong(func(m *model, r penstock.Request) (penstock.Decision, error) {
		d, err := m.Take(context.Background(), r)
		if err == nil && !d.Allowed && r.Cost <= d.Limit {
			r.AtMost = true
			_, err = m.Take(context.Background(), r)
		}
		return d, err
	})},
	{"resets too much", "agreement", wrong(func(m *model, r penstock.Request) (penstock.Decision, error) {
		if r.Cost == penstock.Reset {
			clear(m.ledger.grants)
		}
		return m.Take(context.Background(), r)
	})},
	{"takes bad for good", "bad input", wrong(func(m *model, r penstock.Request) (penstock.Decision, error) {
		r.MaxDelay = max(r.MaxDelay, 0)
		return m.Take(context.Background(), r)
	})},
	{"ignores case", "keys", wrong(func(m *model, r penstock.Request) (penstock.Decision, error) {
		r.Key = strings.ToLower(r.Key)
		return m.Take(context.Background(), r)
	})},
	{"takes one by one", "crowd", wrong(loseUpdates)},
	{"takes one by one", "linearizability", wrong(loseUpdates)},
	{"takes some of all", "linearizability", func(_ testing.TB, clock *Clock) penstock.Store {
		return someOfAll{newModel(clock)}
	}},
	{"has another clock", "transcripts", func(_ testing.TB, clock *Clock) penstock.Store {
		other := &Clock{}
		if err := clock.Follow(func(now time.Time) error { return other.set(now.Truncate(time.Second)) }); err != nil {
			return nil
		}
		return newModel(other)
	}},
}

// wrong returns a store that does what take makes of the model.
func wrong(take func(m *model, r penstock.Request) (penstock.Decision, error)) Open {
	return func(_ testing.TB, clock *Clock) penstock.Store {
		m := newModel(clock)
		return penstock.StoreFunc(func(_ context.Context, r penstock.Request) (penstock.Decision, error) {
			return take(m, r)
		})
	}
}

// loseUpdates reads, decides and writes, with room for others in between.
func loseUpdates(m *model, r penstock.Request) (penstock.Decision, error) {
	m.mu.Lock()
	l := m.ledger.clone()
	m.mu.Unlock()
	runtime.Gosched()
	d := l.take(m.clock.Now().UnixNano(), r)
	runtime.Gosched()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ledger = l
	return d, nil
}

// someOfAll charges what fits, even if not all of it does.
type someOfAll struct{ *model }

func (s someOfAll) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	return penstock.TakeEach(ctx, s.model, rs, ds)
}

const playBroken = "STORETEST_PLAY_BROKEN"

// TestBrokenStoresAreCaught runs this very test once more for each broken store,
// in a process of its own that is expected to fail.
func TestBrokenStoresAreCaught(t *testing.T) {
	if os.Getenv(playBroken) != "" {
		for _, b := range brokenStores {
			t.Run(b.name, func(t *testing.T) { Run(t, b.open) })
		}
		return
	}
	for _, b := range brokenStores {
		t.Run(b.name+"/"+b.part, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0],
				"-test.run=^TestBrokenStoresAreCaught$/^"+b.name+"$/^"+b.part+"$",
				"-rapid.nofailfile", "-rapid.shrinktime=1ms")
			cmd.Env = append(os.Environ(), playBroken+"=1")
			out, err := cmd.CombinedOutput()
			failed := "--- FAIL: TestBrokenStoresAreCaught/" + strings.ReplaceAll(b.name+"/"+b.part, " ", "_")
			if err == nil || !strings.Contains(string(out), failed) {
				t.Errorf("a store that %s: got %v and\n%s\nwant %q", b.name, err, out, failed)
			}
		})
	}
}
