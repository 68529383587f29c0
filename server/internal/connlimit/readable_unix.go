//go:build unix

package connlimit

import (
	"errors"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// hasQueued reports whether a connection waits in the accept queue of a socket. It is
// false for a closed socket, and for a listener that is not a socket.
func hasQueued(l net.Listener) bool { return isReadable(l) }

// HasUnread reports whether a connection has received bytes, or its end, that were not
// read yet. It is always false where the operating system cannot tell.
func HasUnread(nc net.Conn) bool { return isReadable(underlying(nc)) }

// isReadable polls a listener or a connection for input, without waiting. An Accept or
// Read with a deadline cannot replace it: if the goroutine is scheduled after the deadline,
// they fail without checking for input.
func isReadable(socket any) (readable bool) {
	s, ok := socket.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) { readable = pollInput(int32(fd)) })
	return err == nil && readable
}

func pollInput(fd int32) bool {
	fds := []unix.PollFd{{Fd: fd, Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(fds, 0)
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}
