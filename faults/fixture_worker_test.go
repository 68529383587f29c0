package faults

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// workerURL is set in the environment of a worker: the test binary again, as a process
// that can be killed. It takes units of one key by lease, prints each decision, and
// never exits by itself.
const workerURL = "PENSTOCK_FAULTS_WORKER"

// workerLimit is the limit of that key. Each of two processes leases at most a twentieth.
var workerLimit = penstock.Limit{Count: workerBurst, Period: 300 * 24 * time.Hour}

const (
	workers       = 2
	workerCallers = 4
	workerBurst   = 600_000 // lasts for minutes, however slowly the test goes on
	workerLease   = workerBurst / (10 * workers)
)

// runWorker returns at once in a test, and in a worker only if it fails.
func runWorker() error {
	url := os.Getenv(workerURL)
	if url == "" {
		return nil
	}
	store, err := redisstore.Open(context.Background(), url, &redisstore.Options{Timeout: longTimeout})
	if err != nil {
		return err
	}
	lease := penstock.WithLease(store, &penstock.LeaseOptions{Nodes: workers})
	failed := make(chan error)
	for range workerCallers {
		go func() { failed <- takeForever(lease) }()
	}
	return <-failed
}

// takeForever takes units without end, and prints each decision.
func takeForever(store penstock.Store) error {
	for {
		start := time.Now().UnixNano()
		d, err := store.Take(context.Background(), penstock.Request{Key: "k0", Limit: workerLimit, Cost: 1})
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%d %d %t %d %d\n", start, time.Now().UnixNano(), d.Allowed, d.RetryAfter, d.Source)
		if _, err := os.Stdout.WriteString(line); err != nil {
			return err
		}
		time.Sleep(2 * time.Millisecond) // or else one worker takes all before the other starts
	}
}

// A worker is a worker process, seen from the test.
type worker struct {
	process *exec.Cmd
	reader  sync.WaitGroup
	granted atomic.Int64
	leased  atomic.Int64
	denied  atomic.Int64
}

// startWorker starts a worker whose calls are added to the run's history.
func (r *run) startWorker(node int, url string) *worker {
	r.Helper()
	return r.startProcess(workerURL+"="+url, func(w *worker, line string) { w.readCall(r, node, line) })
}

// startProcess starts the test binary with a variable that makes it a worker. Its output is
// read line by line until it is killed; the last line may be incomplete.
func (r *run) startProcess(variable string, read func(w *worker, line string)) *worker {
	r.Helper()
	path, err := os.Executable()
	if err != nil {
		r.Fatal(err)
	}
	w := &worker{process: exec.Command(path)}
	w.process.Env, w.process.Stderr = append(os.Environ(), variable), os.Stderr
	redistest.DieWithParent(w.process)
	out, err := w.process.StdoutPipe()
	if err != nil {
		r.Fatal(err)
	}
	if err := w.process.Start(); err != nil {
		r.Fatal(err)
	}
	w.reader.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			read(w, lines.Text())
		}
	})
	r.Cleanup(w.kill)
	return w
}

// readCall reads a line that takeForever has written.
func (w *worker) readCall(r *run, node int, line string) {
	var start, ended int64
	e := event{node: node, cost: 1}
	d := &e.decision
	if n, _ := fmt.Sscan(line, &start, &ended, &d.Allowed, &d.RetryAfter, &d.Source); n < 5 {
		return
	}
	if d.Allowed {
		d.Granted = 1
		w.granted.Add(1)
	}
	if d.Source == penstock.SourceLease {
		w.leased.Add(1)
	}
	e.begin, e.end = r.history.since(start), r.history.since(ended)
	r.history.add(e)
}

// kill kills a worker and reads the rest of its output.
func (w *worker) kill() {
	_ = w.process.Process.Kill()
	w.reader.Wait()
	_ = w.process.Wait()
}

// killLeaseHolder is F17: a process is killed while it holds leased units, a successor
// takes its place, and a survivor continues.
func killLeaseHolder(r *run) {
	server := r.redis()
	url := "redis://" + server.Addr
	store := r.open(url, longTimeout)
	left := func() int64 {
		d, err := store.Take(context.Background(), penstock.Request{Key: "k0", Limit: workerLimit})
		if err != nil {
			r.Fatal(err)
		}
		return d.Remaining
	}
	victim, survivor := r.startWorker(0, url), r.startWorker(1, url)
	spent := func() int64 { return victim.granted.Load() + survivor.granted.Load() }
	redistest.WaitFor(r, "both hold leases", func() bool {
		return victim.leased.Load() > 300 && survivor.leased.Load() > 300 && left()+spent() < workerBurst-50
	})
	victim.kill()
	r.prove("processes killed by a signal", -victim.process.ProcessState.ExitCode())
	before := survivor.granted.Load()
	redistest.WaitFor(r, "the survivor continues", func() bool { return survivor.granted.Load() > before+300 })
	survivor.kill()
	r.prove("leased units that were lost", int(workerLimit.Count-left()-spent()))
	successor := r.startWorker(0, url)
	redistest.WaitFor(r, "a successor takes its place", func() bool { return successor.leased.Load() > 300 })
	successor.kill()
	r.history.record(0, 0, workerBurst, func() (penstock.Decision, error) {
		return store.Take(context.Background(), penstock.Request{Key: "k0", Limit: workerLimit, Cost: workerBurst, AtMost: true})
	})
}
