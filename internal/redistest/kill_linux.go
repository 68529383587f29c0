package redistest

import (
	"os/exec"
	"syscall"
)

// DieWithParent makes a command that is about to be started end when the process
// of the test does, however that ended.
func DieWithParent(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
