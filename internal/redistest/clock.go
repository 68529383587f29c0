package redistest

import (
	_ "embed" // for the shim
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

// The name keeps the go command from looking for cgo.
//
//go:embed clock.c.txt
var shimSource []byte

// A Clock is the fake wall clock of a server.
type Clock struct {
	page []byte
	path string
	lag  time.Duration // until the server sees a new time
}

// newClock returns a clock in a memory-mapped file.
func newClock(dir string) (*Clock, error) {
	path := filepath.Join(dir, "clock")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(8); err != nil {
		return nil, err
	}
	page, err := syscall.Mmap(int(f.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	c := &Clock{page: page, path: path}
	c.Set(time.Now())
	return c, nil
}

// Set sets the time of the server, in microseconds.
func (c *Clock) Set(now time.Time) {
	if c.lag > 0 { // it adds up to a millisecond to the time that it has read
		now = now.Truncate(time.Millisecond)
	}
	binary.NativeEndian.PutUint64(c.page, uint64(now.UnixMicro()))
	if c.lag > 0 {
		<-time.After(c.lag)
	}
}

func (c *Clock) close() { _ = syscall.Munmap(c.page) }

// shim returns the shim library, compiled once per process. It is kept in memory
// because there is no event after the last server to delete a file.
var shim = sync.OnceValues(compileShim)

func compileShim() ([]byte, error) {
	dir, err := os.MkdirTemp("", "redistest-shim")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	if err := os.WriteFile(source, shimSource, 0o600); err != nil {
		return nil, err
	}
	out, err := exec.Command("cc", "-O2", "-shared", "-fPIC", "-o", library, source).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("redistest: compiling the clock: %w\n%s", err, out)
	}
	return os.ReadFile(library)
}
