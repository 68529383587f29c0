package audit

import (
	"os"
	"sync"
)

// A File appends to a file, which only its owner can read: keys and reasons may name
// people. It is safe for concurrent use.
type File struct {
	path string

	mu   sync.Mutex
	file *os.File
}

// OpenFile opens a file for appending, and creates it if it does not exist.
func OpenFile(path string) (*File, error) {
	f := &File{path: path}
	return f, f.Reopen()
}

// Reopen opens the path again, after a rotation has renamed the file. If that fails, the
// old file stays in use.
func (f *File) Reopen() error {
	const ownerOnly = 0o600
	file, err := os.OpenFile(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, ownerOnly)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file != nil {
		_ = f.file.Close() // every line was written already
	}
	f.file = file
	return nil
}

// Write implements [io.Writer].
func (f *File) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.Write(line)
}

// Close closes the file. Writing fails from then on.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.Close()
}
