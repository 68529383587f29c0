package peertest_test

import (
	"bufio"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// A statsdServer adds up counters by name.
type statsdServer struct {
	port string

	mu     sync.Mutex
	counts map[string]int
}

func startStatsd(t *testing.T) *statsdServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // the listener of a test
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s := &statsdServer{port: strconv.Itoa(l.Addr().(*net.TCPAddr).Port), counts: map[string]int{}}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go s.read(conn)
		}
	}()
	return s
}

func (s *statsdServer) read(conn net.Conn) {
	for lines := bufio.NewScanner(conn); lines.Scan(); {
		name, rest, _ := strings.Cut(lines.Text(), ":")
		text, kind, _ := strings.Cut(rest, "|")
		if n, err := strconv.Atoi(text); err == nil && kind == "c" && n != 0 {
			s.mu.Lock()
			s.counts[name] += n
			s.mu.Unlock()
		}
	}
}

// counters returns the counters whose names are compared.
func (s *statsdServer) counters(compares func(name string) bool) map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := maps.Clone(s.counts)
	maps.DeleteFunc(all, func(name string, _ int) bool { return !compares(name) })
	return all
}
