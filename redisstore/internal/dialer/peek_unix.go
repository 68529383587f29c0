//go:build unix

package dialer

import (
	"errors"
	"syscall"
)

// peek looks at the socket: at the end of the data, or after an error other than that there is no data yet, the peer has
// closed it. It returns the first byte that is still to be read, or 0.
func peek(fd uintptr) (closed bool, first byte) {
	var b [1]byte
	n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	switch {
	case err == nil:
		return n == 0, b[0]
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EWOULDBLOCK), errors.Is(err, syscall.EINTR):
		return false, 0
	}
	return true, 0
}
