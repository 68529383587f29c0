//go:build !unix

package dialer

// peerClosed reports false: there is no portable way to peek at a socket.
func peerClosed(uintptr) bool { return false }
