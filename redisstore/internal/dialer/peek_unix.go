//go:build unix

package dialer

import (
	"errors"
	"syscall"
)

// peerClosed peeks at the socket: at the end of the data, or after an error other than
// that there is no data yet, the peer has closed it.
func peerClosed(fd uintptr) bool {
	var b [1]byte
	n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	switch {
	case err == nil:
		return n == 0
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.EWOULDBLOCK), errors.Is(err, syscall.EINTR):
		return false
	}
	return true
}
