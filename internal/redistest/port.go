package redistest

import (
	"fmt"
	"math/rand/v2"
)

// Ports come from below the range from which the kernel picks the local ports of
// outgoing connections: otherwise a client could take the port of a server that is
// being restarted, or connect to itself while the server is down. The bus of a
// Cluster node is by default at the port plus 10000, which must stay below 65536.
const (
	firstPort = 10_000
	lastPort  = 32_000
)

// freePort reserves a port on which nothing listens: no other process gets it from
// freePort until release is called or this process ends.
func freePort() (port int, release func(), err error) {
	for range 100 {
		port = firstPort + rand.IntN(lastPort-firstPort)
		if release, err = reserve(port); err == nil {
			return port, release, nil
		}
	}
	return 0, nil, fmt.Errorf("redistest: no free port: %w", err)
}
