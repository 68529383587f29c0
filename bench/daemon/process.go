package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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

// A placement says on which processors the processes of a comparison run. If the server that is
// measured shares all of them with its Redis and the load, the kernel often wakes a process on
// the processor of the one that wakes it, though another is idle, so that the faster server
// leaves more of the machine unused. In production these are different machines.
type placement struct {
	server, others unix.CPUSet
}

// separated returns a case during which servers that are measured have a processor of their own.
func (b *bench) separated(run func()) func() {
	return func() {
		defer b.separate()()
		run()
	}
}

// separate keeps the first processor free for servers that are measured, until undo: the load,
// and every other process that it starts, runs on the others. With one processor, or -shared, it
// does nothing.
func (b *bench) separate() (undo func()) {
	var all unix.CPUSet
	harness.Check(unix.SchedGetaffinity(0, &all))
	if b.shared || all.Count() < 2 {
		return func() {}
	}
	p := splitProcessors(all)
	harness.Check(moveThreads(&p.others))
	b.placement = &p
	return func() {
		b.placement = nil
		_ = moveThreads(&all) // it was possible before
	}
}

// splitProcessors returns the first processor of a set, and the others.
func splitProcessors(all unix.CPUSet) (p placement) {
	p.others = all
	first := 0
	for !all.IsSet(first) {
		first++
	}
	p.server.Set(first)
	p.others.Clear(first)
	return p
}

// moveThreads moves all threads of this process, until there is no new one: a thread begins on
// the processors of the one that started it.
func moveThreads(to *unix.CPUSet) error {
	moved := map[string]bool{}
	for {
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		before := len(moved)
		for _, t := range threads {
			if moved[t.Name()] {
				continue
			}
			moved[t.Name()] = true
			if err := moveThread(t.Name(), to); err != nil {
				return err
			}
		}
		if len(moved) == before {
			return nil
		}
	}
}

func moveThread(name string, to *unix.CPUSet) error {
	id, err := strconv.Atoi(name)
	if err != nil {
		return err
	}
	if err := unix.SchedSetaffinity(id, to); err != unix.ESRCH { // it has ended
		return err
	}
	return nil
}

// onServerProcessor calls a function that starts a server that is measured. A process begins on the
// processors of the thread that starts it.
func (b *bench) onServerProcessor(start func()) {
	if b.placement == nil {
		start()
		return
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	harness.Check(unix.SchedSetaffinity(0, &b.placement.server))
	defer func() { harness.Check(unix.SchedSetaffinity(0, &b.placement.others)) }()
	start()
}
