//go:build !linux

package redistest

import "os/exec"

// DieWithParent does nothing on systems without a parent death signal.
func DieWithParent(*exec.Cmd) {}

// reserve reserves nothing where a bound port excludes servers.
func reserve(int) (release func(), err error) { return func() {}, nil }

// awaitStopped does not wait on systems without /proc.
func awaitStopped(int) error { return nil }
