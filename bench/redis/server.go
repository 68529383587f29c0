package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/redis/rueidis"
)

// A server is a redis-server on a free port, without persistence.
type server struct {
	*redistest.Server
	client rueidis.Client // to look at it, not to load it
}

var errNoRedis = errors.New("redis-server and redis-benchmark are needed; on Debian: apt-get install redis-server redis-tools")

// startServer starts a server with more settings, as on its command line, under a
// wrapper command if there is one.
func startServer(wrapper []string, settings ...string) (*server, error) {
	for _, program := range []string{"redis-server", "redis-benchmark"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%w: %w", errNoRedis, err)
		}
	}
	started, err := redistest.Start(redistest.Options{Wrapper: wrapper, Args: append([]string{"--maxclients", "4000"}, settings...)})
	if err != nil {
		return nil, err
	}
	client, err := connect(started.Addr)
	if err != nil {
		started.Stop()
		return nil, err
	}
	return &server{started, client}, nil
}

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

func (s *server) stop() {
	s.client.Close()
	s.Stop()
}

// command sends a command and returns the reply as text.
func (s *server) command(words ...string) (string, error) {
	message, err := s.client.Do(context.Background(), s.client.B().Arbitrary(words...).Build()).ToMessage()
	if err != nil {
		return "", fmt.Errorf("%s: %w", words[0], err)
	}
	if text, err := message.ToString(); err == nil {
		return text, nil
	}
	return message.String(), nil
}

// startClusterNode starts a Cluster of one node, which owns every slot.
func startClusterNode() (*server, error) {
	s, err := startServer(nil, "--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf")
	if err != nil {
		return nil, err
	}
	if _, err = s.command("CLUSTER", "ADDSLOTSRANGE", "0", "16383"); err != nil {
		s.stop()
		return nil, err
	}
	deadline := time.Now().Add(startTimeout)
	for time.Now().Before(deadline) {
		info, err := s.command("CLUSTER", "INFO")
		if err == nil && strings.Contains(info, "cluster_state:ok") {
			return s, nil
		}
		<-time.After(20 * time.Millisecond)
	}
	s.stop()
	return nil, errors.New("a Cluster of one node does not become ready")
}
