package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// openBench returns a bench of quick sizes on a server of its own.
func openBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{Run: harness.New("redis", t.Output(), t.Output())}
	b.Quick = true
	t.Cleanup(b.Close)
	b.server = b.startServer(nil)
	return b
}

// Every case runs, but for the minute of valgrind.
func TestCasesRunQuick(t *testing.T) {
	var out, progress bytes.Buffer
	if got := command([]string{"-quick", "-tenmillion"}, &out, &progress); got != 0 {
		t.Fatalf("exit status %d, want 0:\n%s", got, &progress)
	}
	for _, want := range []string{
		"Limiter.Allow with its deadline |", "| TakeAll of three keys, 64 goroutines |", "| a Cluster | 5 |", "| penstock token-bucket script, redis-benchmark -c 50 -P 16 |",
		"| memory a key, 2,000 keys of 20 bytes, penstock token-bucket, Cluster |", "| Istio rolling window | standalone |", "| zset log, 1000 entries |",
		"| penstock sliding-log, with the documents' settings |", "| 20 connections, no pipeline | hash log, by its text |", "| 4,000 keys, token bucket |",
		"| acquire and release on Redis, 64 callers, 10 held |", "| 100 permits of a key on Redis |", "| memory, 1 callers: a settlement |", "| Redis, 64 callers: a take under an ID |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, &out)
		}
	}
}

func TestCommandPrintsTable(t *testing.T) {
	var out, progress bytes.Buffer
	if got := command([]string{"-quick", "-run", "^(clients|logweight)$"}, &out, &progress); got != 0 {
		t.Fatalf("exit status %d, want 0:\n%s", got, &progress)
	}
	for _, want := range []string{
		`\| token bucket, 64 goroutines, 200 keys, Limiter.Allow with its deadline \| ≥ 2× redis_rate \| [\d.]+× \([\d.]+–[\d.]+\) \| not checked \|`,
		`\| memory a key, sliding log with 1000 entries \| ≤ 4400 B \| \d+ B`,
		`\| go-zero TokenLimiter \| \d+ \|`,
		`Redis \d+\.\d+`,
	} {
		if !regexp.MustCompile(want).Match(out.Bytes()) {
			t.Errorf("no line like %s in:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "By redis-benchmark") {
		t.Errorf("-run ^(clients|logweight)$ ran other cases too:\n%s", &out)
	}
}

func TestCommandRejectsBadFlags(t *testing.T) {
	for _, args := range [][]string{{"-run", "("}, {"-rounds", "0"}, {"-round", "-1s"}, {"-fast"}} {
		var out, stderr bytes.Buffer
		if got := command(args, &out, &stderr); got != 2 || stderr.Len() == 0 {
			t.Errorf("%q: exit status %d and %q, want 2 and a reason", args, got, &stderr)
		}
	}
}

func TestCommandMissingServerNamesPackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var out, stderr bytes.Buffer
	if got := command(nil, &out, &stderr); got != 1 || !strings.Contains(stderr.String(), "apt-get install redis-server") {
		t.Errorf("without redis-server: exit status %d and %q, want 1 and what to install", got, &stderr)
	}
}

// TestDesignShapesEnforceLimit checks that the designs enforce a limit: on one key, with
// requests at different times, they admit the limit and no more.
func TestDesignShapesEnforceLimit(t *testing.T) {
	b := openBench(t)
	for _, s := range designShapes() {
		for i, w := range s.words {
			if w == largeLimit {
				s.words[i] = "3"
			}
		}
		s.fill(b.server, 0, 0) // loads its script
		granted := 0
		for at := range 5 {
			answer := b.server.client.Do(context.Background(), b.server.client.B().Arbitrary(s.at(7, at)...).Build())
			first, err := answer.AsInt64()
			if list, listErr := answer.AsIntSlice(); listErr == nil {
				first, err = list[0], nil
			}
			if err == nil && first > 0 {
				granted++
			}
		}
		if granted != 3 {
			t.Errorf("%s: %d of 5 calls granted, want 3", s.name, granted)
		}
	}
}

// TestOurShapesMatchStoreCommands compares the state after a shape was sent with the
// store's view of it.
func TestOurShapesMatchStoreCommands(t *testing.T) {
	b := openBench(t)
	ourShape(keyOf("pen"), tokenBucket, 1).fillFresh(b.server, 10, 1)
	store, err := redisstore.Open(t.Context(), "redis://"+b.server.Addr, &redisstore.Options{Timeout: callTimeout})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for _, key := range keyNames("user:pen", 10) {
		d, err := store.Take(t.Context(), penstock.Request{Key: key, Limit: tokenBucket})
		if err != nil || d.Remaining != d.Limit-1 {
			t.Errorf("after one take by its shape, %s has %d of %d left, %v; want one less", key, d.Remaining, d.Limit, err)
		}
	}
}

func TestVerifyKeysCatchesMissingKeys(t *testing.T) {
	s := designShapes()[0]
	for name, c := range map[string]struct {
		came harness.Info
		ok   bool
	}{
		"all":               {harness.Info{"db0.keys": 10, "db0.expires": 10}, true},
		"one missing":       {harness.Info{"db0.keys": 9, "db0.expires": 9}, false},
		"one never expires": {harness.Info{"db0.keys": 10, "db0.expires": 9}, false},
	} {
		if err := s.verifyKeys(c.came, 10); (err == nil) != c.ok {
			t.Errorf("%s: %v, want ok %v", name, err, c.ok)
		}
	}
}

func TestVerifyGrantsCatchesDenialsAndFailures(t *testing.T) {
	s := designShapes()[3] // two writes a grant
	for name, c := range map[string]struct {
		commands harness.Info
		ok       bool
	}{
		"all granted":     {harness.Info{"cmdstat_hincrby.calls": 20}, true},
		"one denied":      {harness.Info{"cmdstat_hincrby.calls": 18}, false},
		"a script failed": {harness.Info{"cmdstat_hincrby.calls": 20, "cmdstat_evalsha.failed_calls": 1}, false},
	} {
		if err := s.verifyGrants(c.commands, 10); (err == nil) != c.ok {
			t.Errorf("%s: %v, want ok %v", name, err, c.ok)
		}
	}
	for name, c := range map[string]struct {
		tally harness.Counts
		ok    bool
	}{
		"all granted": {harness.Counts{Calls: 10}, true},
		"too few":     {harness.Counts{Calls: 9}, false},
		"one denied":  {harness.Counts{Calls: 10, Denied: 1}, false},
		"one failed":  {harness.Counts{Calls: 10, Failed: 1}, false},
	} {
		if err := c.tally.Verify("limiter", 10, false); (err == nil) != c.ok {
			t.Errorf("%s: %v, want ok %v", name, err, c.ok)
		}
	}
}

func TestVerifyLimitsCatchesUnlimited(t *testing.T) {
	b := openBench(t)
	open := trivial
	open.name = "no limiter"
	if err := harness.Try(func() { b.verifyLimits(open) }); err == nil {
		t.Error("a command that decides nothing passed as a limiter")
	}
}

// A limiter that refills a unit every second may grant one with each call of a busy machine.
func TestVerifyLimitCountsSeconds(t *testing.T) {
	for name, c := range map[string]struct {
		grants int           // before a denial
		pause  time.Duration // after each call
		ok     bool
	}{
		"one":                       {1, 0, true},
		"none":                      {0, 0, false},
		"two at once":               {2, 0, false},
		"four, one a second":        {4, time.Second, true},
		"four in a second":          {4, time.Second / 4, false},
		"never a denial":            {1 << 30, time.Second / 2, false},
		"one, and a machine stalls": {1, time.Minute, true},
	} {
		now := time.Unix(1_700_000_000, 0)
		l := limiter{take: func(context.Context, string) (bool, error) {
			now = now.Add(c.pause)
			c.grants--
			return c.grants >= 0, nil
		}}
		if err := harness.Try(func() { verifyLimit(name, l, "key", func() time.Time { return now }) }); (err == nil) != c.ok {
			t.Errorf("%s: %v, want ok %v", name, err, c.ok)
		}
	}
}

func TestSplitTurnMakesCalls(t *testing.T) {
	b := openBench(t)
	b.Turn = 0
	s := b.splitSubject(place{name: "a server", url: "redis://" + b.server.Addr, nodes: []*redistest.Server{b.server.Server}}, 3, 10)
	if s.Measure(&s.Contender); s.Median("rate") <= 0 || s.Median("in all") <= 0 || s.Calls < goroutines {
		t.Errorf("a turn without time: %v, want one call of each goroutine", s.Of("rate"))
	}
	if err := s.Total.Verify(s.Name, 10, false); err != nil {
		t.Error(err)
	}
}

func TestSubjectMakesEveryCall(t *testing.T) {
	seen := make(chan int, 1000)
	s := newLoad("", goroutines, nil, func(i int) (bool, error) {
		seen <- i
		return true, nil
	})
	s.Run(70)
	s.Run(30)
	close(seen)
	different := map[int]bool{}
	for i := range seen {
		different[i] = true
	}
	if len(different) != 100 || !different[0] || !different[99] || s.Total.Calls != 100 {
		t.Errorf("100 calls in two runs: %d different ones, %d counted", len(different), s.Total.Calls)
	}
}

func TestReadTotalParsesCallgrind(t *testing.T) {
	path := filepath.Join(t.TempDir(), "callgrind.out.1")
	if err := os.WriteFile(path, []byte("version: 1\nfn=main\n12 34\n\ntotals: 123456\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readTotal(path); err != nil || got != 123456 {
		t.Errorf("total %d, %v; want 123456", got, err)
	}
	if err := os.WriteFile(path, []byte("version: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := readTotal(path); err == nil {
		t.Errorf("total %d of a file without one, want an error", got)
	}
}
