//go:build !unix

package connlimit

import "net"

// hasQueued is false where the accept queue cannot be inspected.
func hasQueued(net.Listener) bool { return false }
