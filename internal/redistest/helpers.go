package redistest

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// StartForTest starts a server and stops it when the test ends.
func StartForTest(t testing.TB, o Options) *Server {
	t.Helper()
	server, err := Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return server
}

// startAll starts n servers at the same time and stops them when the test ends.
func startAll(t testing.TB, n int, options func(i int) Options) []*Server {
	t.Helper()
	servers, errs := make([]*Server, n), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { servers[i], errs[i] = Start(options(i)) })
	}
	wg.Wait()
	for _, server := range servers {
		if server != nil {
			t.Cleanup(server.Stop)
		}
	}
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	return servers
}

// MustCommand sends a command and fails the test if the server returns an error.
func MustCommand(t testing.TB, server *Server, words ...string) string {
	t.Helper()
	reply, err := server.Command(words...)
	if err != nil {
		t.Fatalf("%s on %s: %v", strings.Join(words, " "), server.Addr, err)
	}
	return reply
}

// waitLimit only detects hangs: it is longer than any wait takes on a busy machine.
const waitLimit = 2 * time.Minute

// WaitFor polls until the condition holds. It fails the test after two minutes.
func WaitFor(t testing.TB, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: not within %v", what, waitLimit)
		}
	}
}

// InfoField returns a field of INFO, or "".
func InfoField(t testing.TB, server *Server, name string) string {
	t.Helper()
	for line := range strings.Lines(MustCommand(t, server, "INFO", "everything")) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+":"); ok {
			return value
		}
	}
	return ""
}

// InfoCounter returns the sum over the servers of a counter in INFO, such as
// cmdstat_evalsha or errorstat_MOVED.
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

// FreePort returns a port on which nothing listens. It is the test's until the test ends.
func FreePort(t testing.TB) int {
	t.Helper()
	port, release, err := freePort()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	return port
}

// ReservePort is [FreePort] for a program: the port is its own until release is called or it ends.
func ReservePort() (port int, release func(), err error) { return freePort() }

// CheckExpiry fails the test if a key on one of the servers has no expiry.
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
