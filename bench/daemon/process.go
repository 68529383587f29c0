package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/internal/redistest"
)

// A process is a measured server.
type process struct {
	name   string
	addr   string
	cmd    *exec.Cmd
	exited chan struct{}
	log    bytes.Buffer
	pids   []int // of a Redis Cluster, which another package has started
}

// startTimeout is how long a server may take to start.
const startTimeout = 2 * time.Minute

// start runs a server and waits until its address accepts connections.
func start(name, addr string, cmd *exec.Cmd) (*process, error) {
	p := &process{name: name, addr: addr, cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	if err := p.awaitListener(addr); err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// awaitListener waits until an address of the server accepts connections.
func (p *process) awaitListener(addr string) error {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		if c, err := net.Dial("tcp", addr); err == nil {
			_ = c.Close()
			return nil
		}
		select {
		case <-p.exited:
			return fmt.Errorf("%s exited:\n%s", p.name, &p.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return fmt.Errorf("%s does not listen at %s", p.name, addr)
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// url and kind return how penstock and envoyproxy/ratelimit are told of a Redis.
func (p *process) url() string {
	if len(p.pids) > 0 {
		return "redis-cluster://" + p.addr
	}
	return "redis://" + p.addr
}

func (p *process) kind() string {
	if len(p.pids) > 0 {
		return "CLUSTER"
	}
	return "SINGLE"
}

// ticksPerSecond is the unit of processor time in /proc on Linux.
const ticksPerSecond = 100

// processor returns the processor time that the server has used so far.
func (p *process) processor() (sum time.Duration, err error) {
	if p.cmd != nil {
		return processorOf(p.cmd.Process.Pid)
	}
	for _, pid := range p.pids {
		spent, err := processorOf(pid)
		if err != nil {
			return 0, err
		}
		sum += spent
	}
	return sum, nil
}

// ownProcessor returns the processor time that the load has used so far.
func ownProcessor() (time.Duration, error) { return processorOf(os.Getpid()) }

func processorOf(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, errors.New("/proc/…/stat is too short")
	}
	user, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, err
	}
	system, err := strconv.Atoi(fields[12])
	return time.Duration(user+system) * time.Second / ticksPerSecond, err
}

// resident returns how many bytes of memory the server has.
func (p *process) resident() (int, error) {
	statm, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(statm))
	if len(fields) < 2 {
		return 0, errors.New("/proc/…/statm is too short")
	}
	pages, err := strconv.Atoi(fields[1])
	return pages * os.Getpagesize(), err
}

// freeAddr returns an address for a server to start. No client's connection gets its port, and no
// other process, until this one ends.
func freeAddr() (string, error) {
	port, _, err := redistest.ReservePort()
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)), err
}

func portOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

// build builds the daemon, and returns a function that removes it.
func (b *bench) build() (done func(), err error) {
	dir, err := os.MkdirTemp("", "penstock-bench")
	if err != nil {
		return nil, err
	}
	b.daemon = filepath.Join(dir, "penstock")
	const module = "github.com/penstock-io/penstock"
	root, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return nil, fmt.Errorf("finding the daemon: %w", err)
	}
	build := exec.Command("go", "build", "-o", b.daemon, module+"/cmd/penstock")
	build.Dir = strings.TrimSpace(string(root)) // by its own go.mod
	if out, err := build.CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("building the daemon: %w\n%s", err, out)
	}
	return func() { _ = os.RemoveAll(dir) }, nil
}

// file writes a file beside the daemon.
func (b *bench) file(name, text string) (string, error) {
	path := filepath.Join(filepath.Dir(b.daemon), name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	return path, os.WriteFile(path, []byte(text), 0o600)
}

// serve starts the daemon with one API enabled, and further flags.
func (b *bench) serve(api string, flags ...string) (*process, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	args := []string{"serve", "--admin", ""}
	for _, d := range []string{"grpc", "http", "resp"} {
		at := ""
		if d == api {
			at = addr
		}
		args = append(args, "--"+d, at)
	}
	return b.startServer("penstock", addr, exec.Command(b.daemon, append(args, flags...)...))
}

// startRedis starts a redis-server without persistence, for a server that is measured.
func startRedis() (*process, error) { return newRedis(start) }

// newRedis starts a redis-server by start.
func newRedis(start func(name, addr string, cmd *exec.Cmd) (*process, error)) (*process, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	return start("redis-server", addr, exec.Command("redis-server", "--port", portOf(addr), "--bind", "127.0.0.1",
		"--save", "", "--appendonly", "no"))
}
