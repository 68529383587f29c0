//go:build unix

package regularfile_test

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/penstock-io/penstock/internal/regularfile"
)

func TestOpenRefusesWhatIsNoFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := syscall.Mkfifo(path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", path("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, link := range []string{"fifo", "file"} {
		if err := os.Symlink(path(link), path("link to "+link)); err != nil {
			t.Fatal(err)
		}
	}
	for _, flag := range []int{os.O_RDONLY, os.O_RDWR | os.O_CREATE, os.O_WRONLY | os.O_CREATE | os.O_TRUNC} {
		for _, name := range []string{path("fifo"), path("socket"), path("link to fifo"), dir, os.DevNull} {
			if _, err := regularfile.Open(name, flag, 0o600); err == nil {
				t.Errorf("%s with flags %#x: want an error", name, flag)
			}
		}
	}
	for _, name := range []string{"file", "link to file"} {
		f, err := regularfile.Open(path(name), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := f.WriteString("text"); err != nil || f.Close() != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
