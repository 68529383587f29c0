package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"golang.org/x/sys/unix"
)

// onTerminal runs a command whose output is a terminal, and returns what the terminal gets. That must fit into
// the few KB that a terminal holds.
func onTerminal(t *testing.T, words ...string) string {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skip("no terminals here:", err)
	}
	defer func() { _ = user.Close() }()
	if err := unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Skip("no terminals here:", err)
	}
	number, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip("no terminals here:", err)
	}
	if code := run(words, terminal, terminal); code != exitOK {
		t.Errorf("%q: exit code %d", words, code)
	}
	_ = terminal.Close()
	text, _ := io.ReadAll(user) // it ends with an error, since the other end is closed
	return strings.ReplaceAll(string(text), "\r\n", "\n")
}

// A file gets the rules as they are, to be loaded; a terminal gets nothing that it acts on, as from an export.
func TestImportedRulesAreHarmlessOnATerminal(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sentinel.json")
	for _, text := range hostile {
		quoted, err := json.Marshal(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(`[{"resource":`+string(quoted)+`,"count":5,"grade":1}]`), 0o600); err != nil {
			t.Fatal(err)
		}
		words := []string{"rules", "import", "--from", "sentinel", "--domain", "sms", path}
		got := onTerminal(t, words...)
		if !strings.Contains(got, "\ndescriptors:\n") {
			t.Errorf("%q prints %q, want rules", words, got)
		}
		for _, r := range got {
			if r != '\n' && !unicode.IsPrint(r) {
				t.Errorf("%q prints %q", words, r)
			}
		}
	}
	quoted, _ := json.Marshal("\u202egnp.exe")
	if err := os.WriteFile(path, []byte(`[{"resource":`+string(quoted)+`,"count":5,"grade":1}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	var out, notes strings.Builder
	code := run([]string{"rules", "import", "--from", "sentinel", path}, &out, &notes)
	if code != exitOK || !strings.Contains(out.String(), "\u202egnp.exe") {
		t.Errorf("a file gets %q with exit code %d, want the name as it is", out.String(), code)
	}
}
