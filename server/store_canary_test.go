package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-io/penstock"
)

// A hangingStore answers nothing, and every call waits as long as its context lasts.
type hangingStore struct{}

func (hangingStore) Take(ctx context.Context, _ penstock.Request) (penstock.Decision, error) {
	<-ctx.Done()
	return penstock.Decision{}, ctx.Err()
}

func (hangingStore) Shards() int                                       { return 1 }
func (hangingStore) ShardOf(string) int                                { return 0 }
func (hangingStore) Timeout() time.Duration                            { return time.Hour }
func (hangingStore) Refusals() (uint64, error)                         { return 0, nil }
func (hangingStore) Warnings() []string                                { return nil }
func (hangingStore) RunIDs(context.Context) (map[string]string, error) { return nil, nil }

// An outage that callers noticed is logged while a check of the store waits for an answer.
func TestMonitorLogsWhileACheckHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		m := newMonitor(hangingStore{}, "Redis", newMetrics(), slog.New(slog.NewTextHandler(&log, nil)))
		m.canaries, m.fallback = newCanaries(m.remote), penstock.WithFallback(penstock.NewMemory(nil), penstock.NewMemory(nil), nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { m.run(ctx); close(done) }()
		time.Sleep(10 * checkInterval) // of the fake clock: a check began, and hangs
		m.onChange(penstock.FallbackChange{Down: true, Err: errors.New("refused")})
		synctest.Wait()
		if !strings.Contains(log.String(), "Redis unavailable") {
			t.Errorf("the log: %q, want the outage", log.String())
		}
		cancel()
		<-done
	})
}

// A failingStore answers every call with an error.
type failingStore struct {
	hangingStore
	err error
}

func (s failingStore) Take(context.Context, penstock.Request) (penstock.Decision, error) {
	return penstock.Decision{}, s.err
}

// A store that is too busy for the checks, because of a crowd of requests, is up.
func TestMonitorTakesBusyStoreForUp(t *testing.T) {
	for err, want := range map[error]bool{penstock.ErrBusy: false, penstock.ErrUnavailable: true} {
		m := newMonitor(failingStore{err: fmt.Errorf("%w: %w", err, context.DeadlineExceeded)}, "Redis", newMetrics(), slog.New(slog.DiscardHandler))
		m.canaries = newCanaries(m.remote)
		for range maxFailures {
			m.checkCanaries(t.Context())
		}
		if got := m.reason(); got != nil != want {
			t.Errorf("checks fail with %v: got %v, want an outage: %t", err, got, want)
		}
	}
}

// Each case is a sequence of run IDs by address, and the addresses that the last one reports as
// restarted or replaced.
func TestDiffRunIDsFindsRestartedServers(t *testing.T) {
	type runs = map[string]string
	for name, c := range map[string]struct {
		cluster bool
		seen    []runs
		fresh   []string
	}{
		"first":                     {false, []runs{{"a": "1"}}, nil},
		"unchanged":                 {false, []runs{{"a": "1"}, {"a": "1"}}, nil},
		"restarted":                 {false, []runs{{"a": "1"}, {"a": "2"}}, []string{"a"}},
		"replaced":                  {false, []runs{{"a": "1"}, {"b": "2"}}, []string{"b"}},
		"same server, new address":  {false, []runs{{"a": "1"}, {"b": "1"}}, nil},
		"replaced, and again":       {false, []runs{{"a": "1"}, {"b": "2"}, {"a": "1"}}, []string{"a"}},
		"node joined":               {true, []runs{{"a": "1"}, {"a": "1", "b": "2"}}, nil},
		"node was down":             {true, []runs{{"a": "1", "b": "2"}, {"a": "1"}, {"a": "1", "b": "2"}}, nil},
		"node restarted":            {true, []runs{{"a": "1", "b": "2"}, {"a": "1", "b": "3"}}, []string{"b"}},
		"node restarted while down": {true, []runs{{"a": "1", "b": "2"}, {"a": "1"}, {"a": "1", "b": "3"}}, []string{"b"}},
		"restart reported once":     {true, []runs{{"a": "1", "b": "2"}, {"a": "1", "b": "3"}, {"a": "1", "b": "3"}}, nil},
		"node down from the start":  {true, []runs{{"a": "1"}, {"a": "1"}, {"a": "1", "b": "3"}}, nil},
	} {
		var known runs
		var fresh []string
		for _, seen := range c.seen {
			known, fresh = diffRunIDs(known, maps.Clone(seen), c.cluster)
		}
		if !slices.Equal(fresh, c.fresh) {
			t.Errorf("%s: %v, want %v", name, fresh, c.fresh)
		}
	}
}
