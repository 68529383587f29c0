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

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
)

// A process is a server that is measured, or its backend: a Redis, or the nodes of a Cluster.
type process struct {
	name   string
	addr   string
	pids   []int
	cmd    *exec.Cmd // nil if another package has started it
	exited chan struct{}
	log    bytes.Buffer
}

// startTimeout is how long a server may take to start.
const startTimeout = 2 * time.Minute

// start runs a server that is measured, on its processor, and waits until its address accepts
// connections.
func (b *bench) start(name, addr string, cmd *exec.Cmd) *process {
	p := &process{name: name, addr: addr, cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	b.onServerProcessor(func() { harness.Check(cmd.Start()) })
	p.pids = []int{cmd.Process.Pid}
	go func() {
		_ = cmd.Wait()
		close(p.exited)
	}()
	b.Cleanup(p.stop)
	p.awaitListener(addr)
	return p
}

// awaitListener waits until an address of the server accepts connections.
func (p *process) awaitListener(addr string) {
	for deadline := time.Now().Add(startTimeout); time.Now().Before(deadline); {
		if c, err := net.Dial("tcp", addr); err == nil {
			_ = c.Close()
			return
		}
		select {
		case <-p.exited:
			harness.Check(fmt.Errorf("%s exited:\n%s", p.name, &p.log))
		case <-time.After(20 * time.Millisecond):
		}
	}
	harness.Check(fmt.Errorf("%s does not listen at %s", p.name, addr))
}

// stop ends a server, if it still runs.
func (p *process) stop() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// redisOf is servers that another package has started.
func redisOf(name string, servers ...*redistest.Server) *process {
	p := &process{name: name}
	var addrs []string
	for _, s := range servers {
		addrs, p.pids = append(addrs, s.Addr), append(p.pids, s.PID())
	}
	p.addr = strings.Join(addrs, ",")
	return p
}

// startRedis starts a redis-server for a server that is measured.
func (b *bench) startRedis() *process {
	return redisOf("redis-server", redistest.StartForTest(b, redistest.Options{}))
}

// isCluster reports whether this is the nodes of a Cluster.
func (p *process) isCluster() bool { return len(p.pids) > 1 }

// ticksPerSecond is the unit of processor time in /proc on Linux.
const ticksPerSecond = 100

// processor returns the processor time that the server has used so far.
func (p *process) processor() (sum time.Duration) {
	for _, pid := range p.pids {
		sum += processorOf(pid)
	}
	return sum
}

func processorOf(pid int) time.Duration {
	_, rest, _ := strings.Cut(string(harness.Must(os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)))), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		harness.Check(errors.New("/proc/…/stat is too short"))
	}
	ticks := harness.Must(strconv.Atoi(fields[11])) + harness.Must(strconv.Atoi(fields[12]))
	return time.Duration(ticks) * time.Second / ticksPerSecond
}

// resident returns how many bytes of memory the server has.
func (p *process) resident() int {
	fields := strings.Fields(string(harness.Must(os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.pids[0])))))
	if len(fields) < 2 {
		harness.Check(errors.New("/proc/…/statm is too short"))
	}
	return harness.Must(strconv.Atoi(fields[1])) * os.Getpagesize()
}

// freeAddr returns an address for a server to start. No client's connection gets its port, and no
// other process, until this one ends.
func freeAddr() string {
	port, _, err := redistest.ReservePort()
	harness.Check(err)
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}

func portOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

// build builds the daemon.
func (b *bench) build() {
	dir := harness.Must(os.MkdirTemp("", "penstock-bench"))
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	b.daemon = filepath.Join(dir, "penstock")
	const module = "github.com/penstock-io/penstock"
	root := harness.Must(exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output())
	build := exec.Command("go", "build", "-o", b.daemon, module+"/cmd/penstock")
	build.Dir = strings.TrimSpace(string(root)) // by its own go.mod
	if out, err := build.CombinedOutput(); err != nil {
		b.Fatalf("building the daemon: %w\n%s", err, out)
	}
}

// file writes a file beside the daemon.
func (b *bench) file(name, text string) string {
	path := filepath.Join(filepath.Dir(b.daemon), name)
	harness.Check(os.MkdirAll(filepath.Dir(path), 0o755))
	harness.Check(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// serve starts the daemon with one API enabled, and further flags.
func (b *bench) serve(api string, flags ...string) *process {
	addr := freeAddr()
	args := []string{"serve", "--admin", "", "--grpc", "", "--http", "", "--resp", "", "--" + api, addr}
	return b.start("penstock", addr, exec.Command(b.daemon, append(args, flags...)...))
}
