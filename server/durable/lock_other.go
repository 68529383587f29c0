//go:build !unix

package durable

import "os"

// lockFile opens a file. Systems without locks leave it to whoever runs the
// process that no other one uses the folder.
func lockFile(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
}
