//go:build unix

package durable

import (
	"errors"
	"os"
	"syscall"

	"github.com/penstock-io/penstock/internal/regularfile"
)

// lockFile opens and locks a file, until it is closed or the process ends.
func lockFile(name string) (*os.File, error) {
	f, err := regularfile.Open(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.New("directory is in use by another process")
		}
		return nil, err
	}
	return f, nil
}
