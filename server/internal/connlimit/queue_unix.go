//go:build unix

package connlimit

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// hasQueued reports whether a connection waits in the accept queue of a socket. It is
// false for a socket that is closed, or none of the operating system's.
//
// A deadline for Accept would not do: if the goroutine is not scheduled in time, Accept
// fails without a look at the queue.
func hasQueued(l net.Listener) (queued bool) {
	socket, ok := l.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) { queued = isReadable(int32(fd)) })
	return err == nil && queued
}

func isReadable(fd int32) bool {
	fds := []unix.PollFd{{Fd: fd, Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}
