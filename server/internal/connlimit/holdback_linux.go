package connlimit

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// HoldBack makes the kernel hold back the last bytes of what is written to a TCP connection from now on, to send
// them together with what follows, such as the end of the connection, or after 200 ms. Releasing sends them.
func HoldBack(nc net.Conn, on bool) {
	socket, ok := underlying(nc).(syscall.Conn)
	if !ok {
		return
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return
	}
	value := 0
	if on {
		value = 1
	}
	_ = raw.Control(func(fd uintptr) {
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK, value) // fails for other than TCP
	})
}
