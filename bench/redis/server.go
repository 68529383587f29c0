package main

import (
	"os/exec"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/redis/rueidis"
)

// A server is a redis-server on a free port, without persistence.
type server struct {
	*redistest.Server
	client rueidis.Client // to fill it, not to load it
}

// startServer starts a server with more settings, as on its command line, under a
// wrapper command if there is one.
func (b *bench) startServer(wrapper []string, settings ...string) *server {
	for _, program := range []string{"redis-server", "redis-benchmark"} {
		if _, err := exec.LookPath(program); err != nil {
			b.Fatalf("redis-server and redis-benchmark are needed; on Debian: apt-get install redis-server redis-tools: %w", err)
		}
	}
	s := &server{Server: redistest.StartForTest(b, redistest.Options{Wrapper: wrapper, Args: append([]string{"--maxclients", "4000"}, settings...)})}
	s.client = harness.Must(connect(s.Addr))
	b.Cleanup(s.client.Close)
	return s
}

// startClusterNode starts a Cluster of one node, which owns every slot.
func (b *bench) startClusterNode() *server {
	s := b.startServer(nil, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
	redistest.MustCommand(b, s.Server, "CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	redistest.WaitFor(b, "a Cluster of one node is ready", func() bool {
		return strings.Contains(redistest.MustCommand(b, s.Server, "CLUSTER", "INFO"), "cluster_state:ok")
	})
	return s
}

// empty deletes all keys. Scripts stay loaded.
func (s *server) empty() { harness.Must(s.Command("FLUSHALL", "SYNC")) }

// info returns what the server says of itself.
func (s *server) info() harness.Info { return harness.InfoOf(s.Server) }

// startTimeout is how long a server may take to respond under a simulator.
const startTimeout = time.Minute

// connect opens a client with the settings of the store's own: the same buffers, one
// connection per processor, no retries.
func connect(addr string) (rueidis.Client, error) {
	return rueidis.NewClient(rueidis.ClientOption{
		InitAddress:         []string{addr},
		ForceSingleClient:   true,
		DisableCache:        true,
		DisableRetry:        true,
		RingScaleEachConn:   12,
		ReadBufferEachConn:  1 << 16,
		WriteBufferEachConn: 1 << 16,
		ConnWriteTimeout:    startTimeout,
	})
}
