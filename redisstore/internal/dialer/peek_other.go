//go:build !unix

package dialer

// peek sees nothing: there is no portable way to look into a socket.
func peek(uintptr) (closed bool, first byte) { return false, 0 }
