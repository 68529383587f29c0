package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/rueidis"
)

// A server is a redis-server of this run's own, on a port that nobody uses,
// without persistence.
type server struct {
	addr, port string
	dir        string // its files, which go with it
	process    *exec.Cmd
	exited     chan struct{}
	log        bytes.Buffer
	client     rueidis.Client // to look at it, not to load it
}

var errNoRedis = errors.New("redis-server and redis-benchmark are needed; on Debian: apt-get install redis-server redis-tools")

// startServer starts a server with more settings, as on its command line, inside
// what the wrapper says, if anything.
func startServer(wrapper []string, settings ...string) (*server, error) {
	for _, program := range []string{"redis-server", "redis-benchmark"} {
		if _, err := exec.LookPath(program); err != nil {
			return nil, fmt.Errorf("%w: %w", errNoRedis, err)
		}
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "penstock-bench")
	if err != nil {
		return nil, err
	}
	s := &server{addr: net.JoinHostPort("127.0.0.1", port), port: port, dir: dir, exited: make(chan struct{})}
	words := append(wrapper[:len(wrapper):len(wrapper)], "redis-server", "--port", port, "--bind", "127.0.0.1",
		"--dir", dir, "--save", "", "--appendonly", "no", "--maxclients", "4000")
	words = append(words, settings...)
	s.process = exec.Command(words[0], words[1:]...)
	s.process.Dir, s.process.Stdout, s.process.Stderr = dir, &s.log, &s.log
	if err := s.run(); err != nil {
		s.stop()
		return nil, err
	}
	return s, nil
}

func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), nil
}

// startTimeout is long enough for a server that a simulator runs.
const startTimeout = time.Minute

func (s *server) run() error {
	if err := s.process.Start(); err != nil {
		close(s.exited)
		return err
	}
	go func() {
		_ = s.process.Wait()
		close(s.exited)
	}()
	deadline := time.Now().Add(startTimeout)
	for time.Now().Before(deadline) {
		client, err := connect(s.addr)
		if err == nil {
			s.client = client
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("redis-server ended:\n%s", &s.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return fmt.Errorf("redis-server does not answer:\n%s", &s.log)
}

// connect opens a client as the store's own is: the same buffers, one
// connection a processor, nothing repeated.
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
	if s.client != nil {
		s.client.Close()
	}
	if s.process.Process != nil {
		_ = s.process.Process.Kill()
		<-s.exited
	}
	_ = os.RemoveAll(s.dir)
}

// ask sends a command and returns the answer as text.
func (s *server) ask(words ...string) (string, error) {
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
	if _, err = s.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383"); err != nil {
		s.stop()
		return nil, err
	}
	deadline := time.Now().Add(startTimeout)
	for time.Now().Before(deadline) {
		info, err := s.ask("CLUSTER", "INFO")
		if err == nil && strings.Contains(info, "cluster_state:ok") {
			return s, nil
		}
		<-time.After(20 * time.Millisecond)
	}
	s.stop()
	return nil, errors.New("a Cluster of one node does not become ready")
}

// file returns the path of one of the server's files.
func (s *server) file(name string) string { return filepath.Join(s.dir, name) }
