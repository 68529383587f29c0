//go:build !linux

package connlimit

import "net"

// HoldBack does nothing where the operating system cannot hold back what is written.
func HoldBack(net.Conn, bool) {}
