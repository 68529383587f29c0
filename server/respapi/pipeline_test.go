package respapi

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// A countingStore counts calls of Take and TakeEach.
type countingStore struct {
	penstock.Store
	takes, batches int
}

func (s *countingStore) Take(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
	s.takes++
	return s.Store.Take(ctx, r)
}

func (s *countingStore) TakeEach(ctx context.Context, rs []penstock.Request, ds []penstock.Decision) error {
	s.batches++
	return penstock.TakeEach(ctx, s.Store, rs, ds)
}

func TestPipelineIsOneBatch(t *testing.T) {
	redisServer.Clock.Set(newFakeClock().now())
	store := &countingStore{Store: newRedisStore(t, redisServer)}
	c := newFakeClient(newServer(t, store, nil, nil, nil))
	var commands, want []string
	for i := range maxBatch {
		commands = append(commands, encode("CL.THROTTLE", "alice", "99", "1", "60"))
		limited, retry := 0, -1
		if i >= 100 {
			limited, retry = 1, 60
		}
		want = append(want, fmt.Sprintf("*5 :%d :100 :%d :%d :%d", limited, max(99-i, 0), retry, min(i+1, 100)*60))
	}
	got := c.doAll(t, commands...)
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if store.takes != 0 || store.batches != 1 {
		t.Errorf("%d takes and %d batches, want one batch", store.takes, store.batches)
	}

	// A command of another kind flushes the batch before it.
	store.batches = 0
	c.doAll(t, append(append(commands, encode("PING")), commands[:3]...)...)
	if store.batches != 2 {
		t.Errorf("%d batches around a PING, want 2", store.batches)
	}
}

// Requests that were decided before the store failed get their decisions, the others an error.
func TestPipelinePartialStoreFailure(t *testing.T) {
	takes := 0
	store := penstock.StoreFunc(func(ctx context.Context, r penstock.Request) (penstock.Decision, error) {
		if takes++; takes == 3 {
			return penstock.Decision{}, fmt.Errorf("%w: out\r\nof order", penstock.ErrUnavailable)
		}
		return penstock.AllowAll.Take(ctx, r)
	})
	s := newServer(t, store, nil, nil, nil)
	c := newFakeClient(s)
	take := encode("CL.THROTTLE", "alice", "4", "1", "60")
	got := c.doAll(t, take, take, take, take, encode("PING"))
	allowed, failed := "*5 :0 :5 :5 :-1 :0", "-Cell error: Store error: request 2: store unavailable: out  of order"
	want := []string{allowed, allowed, failed, failed, "+PONG"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	counts := s.engine.RuleStats()[0]
	if a, e := counts.Allowed(), counts.Errors.Load(); a != 2 || e != 2 {
		t.Errorf("counted %d allowed and %d errors, want 2 and 2", a, e)
	}
}

func TestStoreErrorKeepsConnectionUsable(t *testing.T) {
	t.Parallel() // it waits most of the time
	server, err := redistest.Start(redistest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	store, err := redisstore.Open(t.Context(), "redis://"+server.Addr, &redisstore.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	c := dial(t, startServer(t, newServer(t, store, nil, nil, nil)))
	c.want("*5 :0 :16 :15 :-1 :2", "CL.THROTTLE", "k", "15", "30", "60")
	server.Kill()
	if got := c.do("CL.THROTTLE", "k", "15", "30", "60"); !strings.HasPrefix(got, "-Cell error: Store error: ") ||
		!strings.Contains(got, penstock.ErrUnavailable.Error()) {
		t.Errorf("without Redis: got %s", got)
	}
	if got := c.do("TTL", "k"); !strings.HasPrefix(got, "-ERR ") || !strings.Contains(got, penstock.ErrUnavailable.Error()) {
		t.Errorf("without Redis, TTL: got %s", got)
	}
	c.want("+PONG", "PING")
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { return strings.HasPrefix(c.do("CL.THROTTLE", "k", "15", "30", "60"), "*5 :0 :16 ") })
}
