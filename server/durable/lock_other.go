//go:build !unix

package durable

import "os"

// lockFile opens a file without locking it: on this system the operator must make sure that
// no other process uses the directory.
func lockFile(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
}
