package redistest

import (
	"fmt"
	"os"
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
