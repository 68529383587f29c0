package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"

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
	if wrapper := b.onServerProcessor; wrapper != nil {
		cmd.Args = slices.Concat(wrapper, []string{cmd.Path}, cmd.Args[1:])
		cmd.Path = harness.Must(exec.LookPath(wrapper[0]))
	}
	p := &process{name: name, addr: addr, cmd: cmd, exited: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = &p.log, &p.log
	harness.Check(cmd.Start())
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

// processor returns the processor time that the server has used so far, in microseconds.
func (p *process) processor() (micros float64) {
	for _, pid := range p.pids {
		micros += 1e6 * statOf(pid).CPUTime()
	}
	return micros
}

// resident returns how many bytes of memory the server has.
func (p *process) resident() int { return statOf(p.pids[0]).ResidentMemory() }

// statOf returns what the kernel says of a process.
func statOf(pid int) procfs.ProcStat {
	return harness.Must(harness.Must(procfs.NewProc(pid)).Stat())
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
	b.daemon = filepath.Join(b.TempDir(), "penstock")
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

// separated returns a case during which servers that are measured have a processor of their own, unless
// there is only one, or -shared. If such a server shares all of them with its Redis and the load, the
// kernel often wakes a process on the processor of the one that wakes it, though another is idle, so
// that the faster server leaves more of the machine unused. In production these are different machines.
func (b *bench) separated(run func()) func() {
	return func() {
		defer b.separate()()
		run()
	}
}

// separate keeps the first processor free for servers that are measured, until undo: the load,
// and every other process that it starts, runs on the others.
func (b *bench) separate() (undo func()) {
	all := processorsOf(0)
	if b.shared || len(all) < 2 {
		return func() {}
	}
	pin(all[1:])
	b.onServerProcessor = []string{"taskset", "--cpu-list", all[0]}
	return func() {
		b.onServerProcessor = nil
		pin(all)
	}
}

// processorsOf returns the processors on which a process may run, by number; 0 is this process.
func processorsOf(pid int) (all []string) {
	var set unix.CPUSet
	harness.Check(unix.SchedGetaffinity(pid, &set))
	for i := range 64 * len(set) {
		if set.IsSet(i) {
			all = append(all, strconv.Itoa(i))
		}
	}
	return all
}

// pin moves all threads of this process, and those that have begun meanwhile: a thread, and a process,
// begins on the processors of the thread that starts it.
func pin(processors []string) {
	for range 2 {
		words := []string{"--all-tasks", "--cpu-list", "--pid", strings.Join(processors, ","), strconv.Itoa(os.Getpid())}
		if out, err := exec.Command("taskset", words...).CombinedOutput(); err != nil {
			harness.Failf("taskset: %w: %s", err, out)
		}
	}
}
