package redistest

import "syscall"

// diesWithParent makes a server end when the process of the test does, however
// that ended.
func diesWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
