//go:build !unix

package connlimit

import "net"

// hasQueued is false where the accept queue cannot be inspected.
func hasQueued(net.Listener) bool { return false }

// HasUnread is false where received bytes cannot be detected without reading.
func HasUnread(net.Conn) bool { return false }
