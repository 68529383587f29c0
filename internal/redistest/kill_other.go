//go:build !linux

package redistest

import "os/exec"

// DieWithParent does nothing on systems without a parent death signal.
func DieWithParent(*exec.Cmd) {}
