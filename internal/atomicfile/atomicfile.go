// Package atomicfile replaces files that are there whole or not at all.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
)

// Replace renames a new file over an old one, if there is one. Until then its name begins with a dot, so that a
// program which reads the directory ignores it.
func Replace(path string, text []byte, mode os.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // fails once it is renamed
	_, err = f.Write(text)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// SyncDir makes a rename in the directory durable.
func SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
