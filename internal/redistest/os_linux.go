package redistest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// DieWithParent has the kernel kill the command when the test process ends for any
// reason. Call it before the command is started.
func DieWithParent(c *exec.Cmd) {
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// reserve binds a port without listening on it. Bound without SO_REUSEADDR, it excludes
// all other reservations, and fails if a server listens; with it set afterwards, servers,
// which set it too, can listen. Connections are refused until one does.
//
// It must not listen itself to try: a process that this one forks at that moment would keep
// the socket open for a while, and the server could not listen.
func reserve(port int) (release func(), err error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	release = func() { _ = syscall.Close(fd) }
	if err = syscall.Bind(fd, &syscall.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err == nil {
		err = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1)
	}
	if err != nil {
		release()
		return nil, err
	}
	return release, nil
}

// awaitStopped waits until a process that got SIGSTOP is stopped: the signal alone
// leaves it the time to answer a call.
func awaitStopped(pid int) error {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return err
		}
		if _, state, _ := bytes.Cut(stat, []byte(") ")); bytes.HasPrefix(state, []byte("T")) {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("redistest: process %d does not stop", pid)
		}
	}
}
