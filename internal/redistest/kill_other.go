//go:build !linux

package redistest

import "os/exec"

// DieWithParent does nothing where there is no way to.
func DieWithParent(*exec.Cmd) {}
