package rules_test

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-io/penstock/rules"
)

// Opening a named pipe would block until it has a writer.
func TestLoadRejectsNamedPipe(t *testing.T) {
	f := newTestDir(t)
	f.must(syscall.Mkfifo(f.join("pipe"), 0o644))
	for _, path := range []string{f.path, f.join("pipe")} {
		want := f.join("pipe") + ": neither a regular file nor a directory"
		if _, err := rules.Load(path, nil); err == nil || err.Error() != want {
			t.Errorf("%s: got %v, want %s", path, err, want)
		}
	}
}

// Changes through mapped memory, and on many network file systems, cause no
// notification. Polling finds them.
func TestWatchPollFindsUnreportedChange(t *testing.T) {
	f := newTestDir(t)
	f.write("api.yaml", ruleFile("api", 1))
	file, err := os.OpenFile(f.join("api.yaml"), os.O_RDWR, 0)
	f.must(err)
	defer func() { f.must(file.Close()) }()
	text, err := syscall.Mmap(int(file.Fd()), 0, len(ruleFile("api", 1)), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	f.must(err)
	defer func() { f.must(syscall.Munmap(text)) }()
	w := watch(t, f.path, 50*time.Millisecond)
	w.source.Reload()
	w.next() // Watch has read the file and waits
	copy(text, ruleFile("api", 2))
	w.until("api", 2)
}
