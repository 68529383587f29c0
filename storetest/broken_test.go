package storetest

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
)

// brokenStores do one thing wrong each, and name the part of Run that must fail.
var brokenStores = []struct {
	name, part string
	open       Open
}{
	{"forgets IDs", "transcripts", brokenModel(func(m *model, r penstock.Request) (penstock.Decision, error) {
		r.ID = ""
		return m.Take(context.Background(), r)
	})},
	{"rounds down", "properties", brokenModel(func(m *model, r penstock.Request) (penstock.Decision, error) {
		d, err := m.Take(context.Background(), r)
		if d.RetryAfter != penstock.Never {
			d.RetryAfter = max(d.RetryAfter-tick, 0)
		}
		return d, err
	})},
	{"charges denied requests", "properties", brokenModel(func(m *model, r penstock.Request) (penstock.Decision, error) {
		d, err := m.Take(context.Background(), r)
		if err == nil && !d.Allowed && r.Cost <= d.Limit {
			r.AtMost = true
			_, err = m.Take(context.Background(), r)
		}
		return d, err
	})},
	{"resets too much", "agreement", brokenModel(func(m *model, r penstock.Request) (penstock.Decision, error) {
		if r.Cost == penstock.Reset {
			clear(m.ledger.idRecords)
		}
		return m.Take(context.Background(), r)
	})},
	{"accepts bad requests", "bad input", brokenModel(func(m *model, r penstock.Request) (penstock.Decision, error) {
		r.MaxDelay = max(r.MaxDelay, 0)
		return m.Take(context.Background(), r)
	})},
	{"ignores case", "keys", brokenModel(func(m *model, r penstock.Request) (penstock.Decision, error) {
		r.Key = strings.ToLower(r.Key)
		return m.Take(context.Background(), r)
	})},
	{"loses updates", "concurrency", brokenModel(loseUpdates)},
	{"loses updates", "linearizability", brokenModel(loseUpdates)},
	{"locks in one process only", "concurrency", func(_ testing.TB, clock *Clock) penstock.Store {
		m := newModel(clock)
		return Spread(&lockedStore{model: m}, &lockedStore{model: m})
	}},
	{"charges a part of all", "linearizability", func(_ testing.TB, clock *Clock) penstock.Store {
		return partialTakeAll{newModel(clock)}
	}},
	{"has another clock", "transcripts", func(_ testing.TB, clock *Clock) penstock.Store {
		other := &Clock{}
		if err := clock.Follow(func(now time.Time) error { return other.set(now.Truncate(time.Second)) }); err != nil {
			return nil
		}
		return newModel(other)
	}},
}

// brokenModel returns a store that decides by take, on top of the model.
func brokenModel(take func(m *model, r penstock.Request) (penstock.Decision, error)) Open {
	return func(_ testing.TB, clock *Clock) penstock.Store {
		m := newModel(clock)
		return penstock.StoreFunc(func(_ context.Context, r penstock.Request) (penstock.Decision, error) {
			return take(m, r)
		})
	}
}

// loseUpdates reads, decides and writes, and yields in between.
func loseUpdates(m *model, r penstock.Request) (penstock.Decision, error) {
	m.mu.Lock()
	l := m.ledger.clone()
	m.mu.Unlock()
	runtime.Gosched()
	d, _ := l.take(m.clock.Now().UnixNano(), r)
	runtime.Gosched()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.ledger = l
	return d, nil
}

// A lockedStore loses updates of other stores on the same model, and none of its own.
type lockedStore struct {
	*model
	mu sync.Mutex
}

func (s *lockedStore) Take(_ context.Context, r penstock.Request) (penstock.Decision, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return loseUpdates(s.model, r)
}

// partialTakeAll charges what fits, even if not everything does.
type partialTakeAll struct{ *model }

func (s partialTakeAll) TakeAll(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	return penstock.TakeEach(ctx, s.model, rs, ds)
}

const runBrokenEnv = "STORETEST_PLAY_BROKEN"

// TestRunCatchesBrokenStores runs itself again for each broken store, in a child
// process that must fail. The seed is fixed, so that the random requests which reveal
// the defect do not depend on luck.
func TestRunCatchesBrokenStores(t *testing.T) {
	if os.Getenv(runBrokenEnv) != "" {
		for _, b := range brokenStores {
			t.Run(b.name, func(t *testing.T) { Run(t, b.open) })
		}
		return
	}
	for _, b := range brokenStores {
		t.Run(b.name+"/"+b.part, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0],
				"-test.run=^TestRunCatchesBrokenStores$/^"+b.name+"$/^"+b.part+"$",
				"-rapid.nofailfile", "-rapid.shrinktime=1ms", "-rapid.seed=1")
			cmd.Env = append(os.Environ(), runBrokenEnv+"=1")
			out, err := cmd.CombinedOutput()
			failed := "--- FAIL: TestRunCatchesBrokenStores/" + strings.ReplaceAll(b.name+"/"+b.part, " ", "_")
			if err == nil || !strings.Contains(string(out), failed) {
				t.Errorf("a store that %s: got %v and\n%s\nwant %q", b.name, err, out, failed)
			}
		})
	}
}
