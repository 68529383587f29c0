package redistest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The server follows the fake clock forward and back, also after a restart, and
// leaves no files behind.
func TestServerFakeClockSurvivesRestart(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	server, err := Start(Options{FakeClock: true})
	if err != nil {
		t.Fatal(err)
	}
	check := func(year int) {
		t.Helper()
		now := time.Date(year, 1, 2, 3, 4, 5, 6000, time.UTC)
		server.Clock.Set(now)
		want := fmt.Sprintf("%d\n6", now.Unix())
		if got, err := server.Command("TIME"); err != nil || got != want {
			t.Errorf("TIME in %d: got %q, %v, want %q", year, got, err, want)
		}
	}
	check(2042)
	check(1999)
	server.Kill()
	if err := server.Restart(); err != nil {
		t.Fatal(err)
	}
	check(2042)
	server.Stop()
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v, want nothing", left, err)
	}
}

// A server is not mistaken for one of another process on the same port.
func TestStartFailsOnPortOfAnotherServer(t *testing.T) {
	other := StartForTest(t, Options{})
	server, err := Start(Options{Port: other.Port})
	if err == nil {
		server.Stop()
		t.Fatal("a server has started on the port of another one")
	}
	if _, err := other.Command("PING"); err != nil {
		t.Errorf("the other server: %v", err)
	}
}

// A free port stays the test's: others do not get it, a server can listen on it, and
// until then connections are refused.
func TestFreePortIsReserved(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("ports are only reserved on Linux")
	}
	port := FreePort(t)
	if release, err := reserve(port); err == nil {
		release()
		t.Errorf("port %d was reserved twice", port)
	}
	addr := fmt.Sprintf("127.0.0.1:%d", port)
	if conn, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("dialing the reserved port: %v, %v, want it refused", conn, err)
	}
	for _, listen := range []string{addr, fmt.Sprintf(":%d", port)} {
		l, err := net.Listen("tcp", listen)
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
	}
}

// A killed server keeps its port.
func TestServerKeepsPortUntilStop(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("ports are only reserved on Linux")
	}
	server := StartForTest(t, Options{})
	server.Kill()
	if release, err := reserve(server.Port); err == nil {
		release()
		t.Errorf("the port %d of a killed server is free", server.Port)
	}
	if err := server.Restart(); err != nil {
		t.Error(err)
	}
}

// A paused server answers nothing, from the moment that Pause returns.
func TestPauseStopsServer(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	server := StartForTest(t, Options{})
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", server.PID()))
	if err != nil || !strings.Contains(string(stat), ") T ") {
		t.Errorf("after Pause: %q, %v, want state T", stat, err)
	}
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Command("PING"); err != nil {
		t.Errorf("after Resume: %v", err)
	}
}
