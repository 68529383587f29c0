//go:build unix

package durable

import (
	"errors"
	"os"
	"syscall"
)

// lockFile opens a file that nobody else can lock until it is closed, or until
// the process ends.
func lockFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errors.New("another process uses this folder")
		}
		return nil, err
	}
	return f, nil
}
