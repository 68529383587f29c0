package faults

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// Some runs need another process that can be killed. It is this one again: one that
// finds a URL in its environment asks for units of one key by lease, says what it
// got, and never ends by itself.
const workerURL = "PENSTOCK_FAULTS_WORKER"

// workerLimit is of that key. Each of two processes holds at most a twentieth of it.
var workerLimit = penstock.Limit{Count: workerBurst, Period: 300 * 24 * time.Hour}

const (
	workers       = 2
	workerCallers = 4
	workerBurst   = 60_000
	workerHolds   = workerBurst / (10 * workers)
)

// work does not return in a worker, unless it fails.
func work() error {
	url := os.Getenv(workerURL)
	if url == "" {
		return nil
	}
	store, err := redisstore.Open(context.Background(), url, &redisstore.Options{Timeout: generous})
	if err != nil {
		return err
	}
	lease := penstock.WithLease(store, &penstock.LeaseOptions{Nodes: workers})
	failed := make(chan error)
	for range workerCallers {
		go func() { failed <- spend(lease) }()
	}
	return <-failed
}

// spend asks for ever, and writes down each grant when it has it.
func spend(store penstock.Store) error {
	for {
		began := time.Now().UnixNano()
		d, err := store.Take(context.Background(), penstock.Request{Key: "k0", Limit: workerLimit, Cost: 1})
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%d %d %t %d %d\n", began, time.Now().UnixNano(), d.Allowed, d.RetryAfter, d.Source)
		if _, err := os.Stdout.WriteString(line); err != nil {
			return err
		}
		time.Sleep(300 * time.Microsecond) // or else one has taken all when the other begins
	}
}

// A worker is such a process, as seen from here.
type worker struct {
	process *exec.Cmd
	heard   sync.WaitGroup
	granted atomic.Int64
	leased  atomic.Int64
}

// hire starts a worker, whose calls are written into the run's history.
func (r *run) hire(node int, url string) *worker {
	r.Helper()
	path, err := os.Executable()
	if err != nil {
		r.Fatal(err)
	}
	w := &worker{process: exec.Command(path)}
	w.process.Env, w.process.Stderr = append(os.Environ(), workerURL+"="+url), os.Stderr
	redistest.DieWithParent(w.process)
	out, err := w.process.StdoutPipe()
	if err != nil {
		r.Fatal(err)
	}
	if err := w.process.Start(); err != nil {
		r.Fatal(err)
	}
	w.heard.Go(func() { w.listen(r, node, out) })
	r.Cleanup(w.kill)
	return w
}

// listen reads what a worker says, until it is killed. The last line may be half a
// line.
func (w *worker) listen(r *run, node int, out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var began, ended int64
		e := event{node: node, cost: 1}
		d := &e.decision
		if n, _ := fmt.Sscan(lines.Text(), &began, &ended, &d.Allowed, &d.RetryAfter, &d.Source); n < 5 {
			continue
		}
		if d.Allowed {
			d.Granted = 1
			w.granted.Add(1)
		}
		if d.Source == penstock.SourceLease {
			w.leased.Add(1)
		}
		epoch := r.history.began.UnixNano()
		e.begin, e.end = time.Duration(began-epoch), time.Duration(ended-epoch)
		r.history.add(e)
	}
}

// kill ends a worker at once, and hears out what it said before.
func (w *worker) kill() {
	_ = w.process.Process.Kill()
	w.heard.Wait()
	_ = w.process.Wait()
}

// dieLeasing is F17: a process dies with units in its hands, another takes its
// place, and a third goes on all the time.
func dieLeasing(r *run) {
	server := r.redis()
	url := "redis://" + server.Addr
	store := r.open(url, generous)
	left := func() int64 {
		d, err := store.Take(context.Background(), penstock.Request{Key: "k0", Limit: workerLimit})
		if err != nil {
			r.Fatal(err)
		}
		return d.Remaining
	}
	victim, survivor := r.hire(0, url), r.hire(1, url)
	spent := func() int64 { return victim.granted.Load() + survivor.granted.Load() }
	redistest.WaitFor(r, "both lease", func() bool {
		return victim.leased.Load() > 300 && survivor.leased.Load() > 300 && left()+spent() < workerBurst-50
	})
	victim.kill()
	r.happened("processes killed by a signal", -victim.process.ProcessState.ExitCode())
	before := survivor.granted.Load()
	redistest.WaitFor(r, "the other goes on", func() bool { return survivor.granted.Load() > before+300 })
	survivor.kill()
	r.happened("units that were in their hands", int(workerLimit.Count-left()-spent()))
	successor := r.hire(0, url)
	redistest.WaitFor(r, "a successor takes its place", func() bool { return successor.leased.Load() > 300 })
	successor.kill()
	r.history.ask(0, 0, workerBurst, func() (penstock.Decision, error) {
		return store.Take(context.Background(), penstock.Request{Key: "k0", Limit: workerLimit, Cost: workerBurst, AtMost: true})
	})
}
