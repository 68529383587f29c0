package redistest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// StartForTest starts a server for one test, and stops it with that.
func StartForTest(t testing.TB, o Options) *Server {
	t.Helper()
	server, err := startSomewhere(func() Options { return o })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return server
}

// startSomewhere tries a few times, because a port that was free may be taken
// before the server has it.
func startSomewhere(options func() Options) (server *Server, err error) {
	for range 5 {
		if server, err = Start(options()); err == nil {
			return server, nil
		}
	}
	return nil, err
}

// MustCommand gives a server a command that it must carry out.
func MustCommand(t testing.TB, server *Server, words ...string) string {
	t.Helper()
	answer, err := server.Command(words...)
	if err != nil {
		t.Fatalf("%s on %s: %v", strings.Join(words, " "), server.Addr, err)
	}
	return answer
}

// patience is after what time a test gives up, on the slowest of machines.
const patience = 40 * time.Second

// WaitFor waits until something is the case.
func WaitFor(t testing.TB, what string, is func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

// InfoField returns a field of what INFO says.
func InfoField(t testing.TB, server *Server, name string) string {
	t.Helper()
	for line := range strings.Lines(MustCommand(t, server, "INFO", "everything")) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return value
		}
	}
	return ""
}

// InfoCounter returns a number that INFO counts, as cmdstat_evalsha or errorstat_MOVED.
func InfoCounter(t testing.TB, name string, servers ...*Server) (sum int) {
	t.Helper()
	for _, server := range servers {
		_, count, _ := strings.Cut(InfoField(t, server, name), "=")
		count, _, _ = strings.Cut(count, ",")
		n, _ := strconv.Atoi(count)
		sum += n
	}
	return sum
}

// FreePort returns a port that nobody uses.
func FreePort(t testing.TB) int {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// CheckExpiry fails if a key on one of these servers would stay for ever.
func CheckExpiry(t testing.TB, servers ...*Server) {
	t.Helper()
	for _, server := range servers {
		var keys, expiring int
		if text := InfoField(t, server, "db0"); text != "" {
			if _, err := fmt.Sscanf(text, "keys=%d,expires=%d", &keys, &expiring); err != nil {
				t.Fatalf("%s: %q: %v", server.Addr, text, err)
			}
		}
		if keys != expiring {
			t.Errorf("%s: %d keys, of which %d expire", server.Addr, keys, expiring)
		}
	}
}
