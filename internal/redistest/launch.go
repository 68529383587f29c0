package redistest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Launch starts a server for one test, and stops it with that.
func Launch(t testing.TB, o Options) *Server {
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

// Tell gives a server a command that it must carry out.
func Tell(t testing.TB, server *Server, words ...string) string {
	t.Helper()
	answer, err := server.Command(words...)
	if err != nil {
		t.Fatalf("%s on %s: %v", strings.Join(words, " "), server.Addr, err)
	}
	return answer
}

// patience is after what time a test gives up, on the slowest of machines.
const patience = 40 * time.Second

// Await waits until something is the case.
func Await(t testing.TB, what string, is func() bool) {
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

// Field returns a field of what INFO says.
func Field(t testing.TB, server *Server, name string) string {
	t.Helper()
	for line := range strings.Lines(Tell(t, server, "INFO", "everything")) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return value
		}
	}
	return ""
}

// Stat returns a number that INFO counts, as cmdstat_evalsha or errorstat_MOVED.
func Stat(t testing.TB, name string, servers ...*Server) (sum int) {
	t.Helper()
	for _, server := range servers {
		_, count, _ := strings.Cut(Field(t, server, name), "=")
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

// Mortal fails if a key on one of these servers would stay for ever.
func Mortal(t testing.TB, servers ...*Server) {
	t.Helper()
	for _, server := range servers {
		var keys, expiring int
		if text := Field(t, server, "db0"); text != "" {
			if _, err := fmt.Sscanf(text, "keys=%d,expires=%d", &keys, &expiring); err != nil {
				t.Fatalf("%s: %q: %v", server.Addr, text, err)
			}
		}
		if keys != expiring {
			t.Errorf("%s: %d keys, of which %d expire", server.Addr, keys, expiring)
		}
	}
}
