package redistest

import (
	"os/exec"
	"syscall"
)

// DieWithParent has the kernel kill the command when the test process ends for any
// reason. Call it before the command is started.
func DieWithParent(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
