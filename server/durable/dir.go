package durable

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/penstock-io/penstock/internal/atomicfile"
	"github.com/penstock-io/penstock/internal/regularfile"
)

// A Dir is a directory for what a process keeps across restarts. Files in it are replaced
// completely or not at all. It must be closed. It is safe for concurrent use, except that a
// file has one writer.
type Dir struct {
	path string

	mu   sync.RWMutex
	lock *os.File // nil once it is closed
}

const lockName = "lock"

var errDirClosed = errors.New("durable: directory is closed")

// OpenDir returns a directory, which is created if it does not exist. It is locked until it
// is closed or the process ends.
func OpenDir(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("durable: %w", err)
	}
	lock, err := lockFile(filepath.Join(path, lockName))
	if err != nil {
		return nil, fmt.Errorf("durable: %s: %w", path, err)
	}
	return &Dir{path: path, lock: lock}, nil
}

// Path returns the path of a file in the directory.
func (d *Dir) Path(name string) string { return filepath.Join(d.path, name) }

// ReadFile returns the content of a file. The error is [fs.ErrNotExist] if it has not been
// written yet. A file that is larger than maxBytes is an error.
func (d *Dir) ReadFile(name string, maxBytes int64) ([]byte, error) {
	f, err := regularfile.Open(d.Path(name), os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	content, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err == nil && int64(len(content)) > maxBytes {
		err = fmt.Errorf("%s: is larger than %d bytes", f.Name(), maxBytes)
	}
	return content, err
}

// WriteFile replaces a file by what the function writes: into a new file, which is synced
// and renamed. If that fails, the previous file stays. Only the owner can read it.
func (d *Dir) WriteFile(name string, write func(io.Writer) error) error {
	d.mu.RLock() // the lock is held until the file is there
	defer d.mu.RUnlock()
	if d.lock == nil {
		return errDirClosed
	}
	unfinished := d.Path(name + ".new")
	if err := writeAndSync(unfinished, write); err != nil {
		_ = os.Remove(unfinished)
		return err
	}
	if err := os.Rename(unfinished, d.Path(name)); err != nil {
		return err
	}
	return atomicfile.SyncDir(d.path)
}

func writeAndSync(path string, write func(io.Writer) error) error {
	f, err := regularfile.Open(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err = write(f); err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// SetAside renames a file of a kind that cannot be used, such as "damaged", so that it can be examined
// and the next one does not replace it. It returns the new path, which is unique.
func (d *Dir) SetAside(name, kind string) (string, error) {
	path := d.Path(name + "." + kind + "-" + time.Now().UTC().Format("20060102T150405.000000000"))
	return path, os.Rename(d.Path(name), path)
}

// Close unlocks the directory. After that it cannot be written to.
func (d *Dir) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lock == nil {
		return nil
	}
	lock := d.lock
	d.lock = nil
	return lock.Close()
}
