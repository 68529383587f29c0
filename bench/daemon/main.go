// Command daemon measures the daemon through each of its APIs, beside a floor: a bare
// gRPC server with a constant response, redis-server's own INCR, a bare net/http server.
// Servers run in their own processes, on one processor, and the load on the others. Floor and
// daemon take turns, and the result is the ratio within a pair of turns.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
)

func main() {
	harness.RunIfChild(serveFloor)
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

// A bench is one run.
type bench struct {
	*harness.Run
	daemon string // the path of the program
	shared bool   // whether servers share all processors with their Redis and the load

	onServerProcessor []string // the command by which a server that is measured gets its processor; nil for none
}

// command runs the cases and returns the exit status.
func command(args []string, stdout, stderr io.Writer) int {
	b := &bench{Run: harness.New("daemon", stdout, stderr)}
	b.TurnFlags("pairs", "turn", harness.Turns{Rounds: 10, Turn: 2 * time.Second}, harness.Turns{Rounds: 1, Turn: 50 * time.Millisecond})
	b.Flags.BoolVar(&b.shared, "shared", false, "let servers share all processors with their Redis and the load, instead of having one of their own")
	b.Settings = func() string { return fmt.Sprintf("%d pairs of turns of %s", b.Rounds, b.Turn) }
	b.Prepare = b.build
	return b.Main(args, []harness.Case{
		{Name: "rls", Run: b.separated(b.rlsOnMemory)},
		{Name: "rlsredis", Run: b.separated(b.rlsOnRedis)},
		{Name: "rlscluster", Run: b.separated(b.rlsOnCluster)},
		{Name: "resp", Run: b.separated(b.resp)},
		{Name: "http", Run: b.separated(b.http)},
		{Name: "overrides", Run: b.overrides},
		{Name: "additions", Run: b.separated(b.compareAdditions)},
		{Name: "weight", Run: b.weigh},
	})
}

// callers is the number of concurrent calls, as of a busy proxy.
const callers = 64

// keyCount is the number of keys that are used in turn.
const keyCount = 10_000

// A subject is a server under load. Its figures are the rate, the p99 in milliseconds, and the
// processor time of a call in microseconds: of the server, of its backend, of both, of the load, and of all.
type subject struct {
	harness.Contender
	turn func(length time.Duration)
}

// A load makes calls until the time is up, and returns how long each took, or an error if a response
// is wrong.
type load func(until time.Time) ([]time.Duration, error)

// newSubject returns a server under a load. The backend is the server's own server, such as redis-server, or nil.
func newSubject(server, backend *process, l load) *subject {
	self, s := &process{pids: []int{os.Getpid()}}, &subject{}
	s.Name = server.name
	processors := func() map[string]float64 {
		times := map[string]float64{"load": self.processor(), "server": server.processor()}
		if backend != nil {
			times["backend"] = backend.processor()
		}
		return times
	}
	s.turn = func(length time.Duration) {
		before, begin := processors(), time.Now()
		latencies, err := l(begin.Add(length))
		if err != nil {
			harness.Failf("%s: %w", server.name, err)
		}
		s.AddCalls(len(latencies), time.Since(begin), processors, before)
		s.Add("p99", harness.Millis(harness.Quantile(latencies, 0.99)))
		s.Add("served", s.last("in all")-s.last("load"))
	}
	return s
}

func (s *subject) last(figure string) float64 { return s.Of(figure)[len(s.Of(figure))-1] }

// takeTurns measures the subjects in turns, after a warm-up, and adds rows to the table.
func (b *bench) takeTurns(title string, subjects ...*subject) {
	b.Logf("%s: %d turns of %s for each of %d", title, b.Rounds, b.Turn, len(subjects))
	for _, s := range subjects {
		s.turn(b.Turn / 4)
		s.Forget()
		s.Measure = func(*harness.Contender) { s.turn(b.Turn) }
	}
	harness.TakeTurns(b.Rounds, subjects...)
	t := b.Table("Rates: medians of the turns, in brackets the 10th to the 90th percentile of the pairs",
		"case", "server", "thousand a second", "to the first row", "p99, ms", "server µs a call", "redis-server", "load")
	for _, c := range subjects {
		row := []any{title, c.Name, harness.Decimals(1)(c.Median("rate") / 1000), c.To(subjects[0], "rate")}
		t.Row(append(row, c.Medians(2, "p99", "server", "backend", "load")...)...)
	}
}

// loadByCallers returns a load of concurrent callers, each of which makes one call after the other, at
// least one. send makes the n-th call.
func loadByCallers(send func(n int) error) load {
	var sent atomic.Int64
	return func(until time.Time) ([]time.Duration, error) {
		return harness.CallUntil(callers, until, func(int) error { return send(int(sent.Add(1))) })
	}
}

// A process is a server that is measured, or its backend: a Redis, or the nodes of a Cluster.
type process struct {
	name   string
	addr   string
	pids   []int
	cmd    *exec.Cmd // nil if another package has started it
	exited chan struct{}
	log    bytes.Buffer
}

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
	b.awaitListener(p, addr)
	return p
}

// awaitListener waits until an address of a server accepts connections.
func (b *bench) awaitListener(p *process, addr string) {
	redistest.WaitFor(b, p.name+" listens at "+addr, func() bool {
		select {
		case <-p.exited:
			harness.Failf("%s exited:\n%s", p.name, &p.log)
		default:
		}
		c, err := net.Dial("tcp", addr)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
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
	root := strings.TrimSpace(harness.Output(exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module)))
	harness.Output(exec.Command("go", "-C", root, "build", "-o", b.daemon, module+"/cmd/penstock")) // by its own go.mod
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
		harness.Output(exec.Command("taskset", words...))
	}
}

// floor starts a server with a constant response: this program itself.
func (b *bench) floor(kind string) *process {
	addr := freeAddr()
	return b.start("constant", addr, harness.Child(kind+"@"+addr))
}

// serveFloor is that server, of kind@address.
func serveFloor(floor string) {
	kind, addr, _ := strings.Cut(floor, "@")
	l := harness.Must(net.Listen("tcp", addr))
	if descriptors, isGRPC := map[string]int{"grpc1": 1, "grpc3": 3}[kind]; isGRPC {
		harness.Check(serveConstantRLS(l, descriptors))
	}
	harness.Check(http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { //nolint:gosec // on loopback, for seconds
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, constantJSON)
	})))
}

// constantJSON resembles a decision.
const constantJSON = `{"allowed":true,"granted":1,"limit":1000,"remaining":999,"reset_after":3.6}` + "\n"

// constantRLS is a rate limit service with the generated stubs that always responds OK.
type constantRLS struct {
	rlspb.UnimplementedRateLimitServiceServer
	response *rlspb.RateLimitResponse
}

func (c *constantRLS) ShouldRateLimit(context.Context, *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	return c.response, nil
}

func serveConstantRLS(l net.Listener, descriptors int) error {
	status := &rlspb.RateLimitResponse_DescriptorStatus{
		Code:           rlspb.RateLimitResponse_OK,
		CurrentLimit:   &rlspb.RateLimitResponse_RateLimit{RequestsPerUnit: 1000, Unit: rlspb.RateLimitResponse_RateLimit_HOUR},
		LimitRemaining: 999,
	}
	response := &rlspb.RateLimitResponse{OverallCode: rlspb.RateLimitResponse_OK}
	response.Statuses = slices.Repeat([]*rlspb.RateLimitResponse_DescriptorStatus{status}, descriptors)
	s := grpc.NewServer()
	rlspb.RegisterRateLimitServiceServer(s, &constantRLS{response: response})
	return s.Serve(l)
}
