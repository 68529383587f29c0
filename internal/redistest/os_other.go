//go:build !linux

package redistest

import (
	"net"
	"os/exec"
	"strconv"
)

// DieWithParent does nothing on systems without a parent death signal.
func DieWithParent(*exec.Cmd) {}

// reserve reserves nothing where a bound port excludes servers. It fails if a server listens.
func reserve(port int) (release func(), err error) {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	return func() {}, l.Close()
}

// awaitStopped does not wait on systems without /proc.
func awaitStopped(int) error { return nil }
