// Package faults breaks real servers and real daemons under load, and checks what was
// admitted against the bounds in docs/reliability.md.
package faults

import (
	"context"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

var (
	full   = flag.Bool("faults.full", false, "inject every fault, at full length")
	update = flag.Bool("faults.update", false, "write the table into docs/reliability.md")
)

// A fault is a failure that a test injects. Its inject function also records evidence
// that the failure happened.
type fault struct {
	id       string // its number in docs/reliability.md
	name     string
	topology string
	quick    bool // whether ordinary tests inject it too
	guarantee
	noRefill bool // whether the load leaves out the key that refills
	inject   func(*run)
}

// title is unique, also among the faults of one number.
func (f *fault) title() string {
	return f.id + " " + f.topology + ": " + f.name + ", " + string(f.layers)
}

// A run injects one fault.
type run struct {
	testing.TB
	fault
	history  *history
	load     *load
	servers  []*redistest.Server
	affected func(key int) bool // whether the key's downtime counts
	evidence []string

	goroutines int // when the load started
}

func TestFaults(t *testing.T) {
	var rows []row
	for _, f := range faults {
		if f.selected() {
			t.Run(f.title(), func(t *testing.T) { rows = append(rows, f.execute(t)) })
		}
	}
	if len(rows) > 0 {
		publishTable(t, rows)
	}
	t.Run("document", checkDocument)
	if *full || *soakTime > 0 {
		t.Run("soak", runSoak)
	}
}

// selected reports whether a fault is injected: all of them with -faults.full, and the
// quick ones otherwise. Those of the Redis store alone run without the race detector,
// because the store has race tests of its own.
func (f *fault) selected() bool {
	return *full || f.quick && (!racing || f.layers != redisOnly)
}

// execute injects a fault under load, and fails if it did not happen or an invariant
// was broken.
func (f *fault) execute(t testing.TB) row {
	t.Helper()
	r := newRun(t, *f)
	f.inject(r)
	if r.load != nil {
		r.load.finish()
	}
	length := time.Since(r.history.start)
	for _, problem := range r.problems() {
		t.Error(problem)
	}
	r.checkLeaks()
	got := r.row(length)
	t.Log(got.summary())
	return got
}

// checkLeaks waits until the load's goroutines have ended, apart from those of some
// connections (INV-24), and searches Redis for keys without expiry (INV-23).
func (r *run) checkLeaks() {
	r.Helper()
	redistest.CheckExpiry(r, r.servers...)
	if r.goroutines > 0 {
		redistest.WaitFor(r, "INV-24 goroutines end", func() bool { return runtime.NumGoroutine() <= r.goroutines+50 })
	}
}

func newRun(t testing.TB, f fault) *run {
	if f.nodes == 0 {
		f.nodes = 1
	}
	if f.bursts == 0 {
		f.bursts = 1
	}
	if f.limits == nil {
		f.limits = slowLimits
	}
	return &run{TB: t, fault: f, history: &history{start: time.Now()}, affected: func(int) bool { return true }}
}

// prove records evidence that the fault happened: a count of something that nothing
// else causes. It fails if that is zero.
func (r *run) prove(what string, times int) {
	r.Helper()
	r.Logf("%s: %d", what, times)
	if times > 0 {
		r.evidence = append(r.evidence, what)
		return
	}
	r.Errorf("%s: none, so the fault did not happen", what)
}

// problems returns the broken invariants of the run, at most five of each.
func (r *run) problems() (problems []string) {
	if len(r.evidence) == 0 {
		problems = append(problems, "nothing proves that the fault happened")
	}
	if len(r.history.events) == 0 {
		problems = append(problems, "no call was made")
	}
	for _, v := range validators {
		broken := v.check(r.guarantee, r.history)
		for _, problem := range broken[:min(len(broken), 5)] {
			problems = append(problems, v.invariant+": "+problem)
		}
	}
	return problems
}

// scale returns how often to do something: three times as often with -faults.full.
func (r *run) scale(n int) int {
	if *full {
		return 3 * n
	}
	return n
}

func (r *run) request(key int, cost int64) penstock.Request {
	return penstock.Request{Key: "k" + strconv.Itoa(key), Limit: r.limitOf(key), Cost: cost}
}

// redis starts a server.
func (r *run) redis(args ...string) *redistest.Server {
	r.Helper()
	server := redistest.StartForTest(r, redistest.Options{Args: args})
	r.servers = append(r.servers, server)
	return server
}

// restart starts a killed server again.
func (r *run) restart(server *redistest.Server) {
	r.Helper()
	if err := server.Restart(); err != nil {
		r.Fatal(err)
	}
}

const (
	// longTimeout is a deadline that no healthy server misses, however busy the machine.
	longTimeout = time.Minute

	// drainTimeout is the deadline of calls that are repeated until they succeed. It is
	// shorter, because a silent connection is closed after two or three of them.
	drainTimeout = 10 * time.Second

	// leaseAge is the MaxAge of leases.
	leaseAge = 500 * time.Millisecond
)

// start puts a store under load: one client for each node, wrapped in the fault's
// layers.
func (r *run) start(url string) *load {
	r.Helper()
	timeout := 50 * time.Millisecond
	if r.noErrors && r.layers == redisOnly {
		timeout = longTimeout
	}
	l := &load{run: r, close: func() {}}
	if r.layers != redisOnly {
		l.pause = shortPause
	}
	for range r.nodes {
		l.nodes = append(l.nodes, r.wrap(l, r.open(url, timeout)))
	}
	direct := r.open(url, drainTimeout)
	l.drain = func(q penstock.Request) (penstock.Decision, error) { return direct.Take(context.Background(), q) }
	r.load, r.goroutines = l, runtime.NumGoroutine()
	l.start()
	return l
}

// open opens a store. With a short timeout, Open fails if the server is silent for a
// second, as it may be on a busy machine, so it is repeated.
func (r *run) open(url string, timeout time.Duration) (store *redisstore.Store) {
	r.Helper()
	redistest.WaitFor(r, "the store opens", func() (ok bool) {
		var err error
		if store, err = redisstore.Open(context.Background(), url, &redisstore.Options{Timeout: timeout}); err != nil {
			r.Log(err)
		}
		return err == nil
	})
	r.Cleanup(store.Close)
	return store
}

// wrap wraps a store in the fault's layers.
func (r *run) wrap(l *load, store penstock.Store) penstock.Store {
	o := &penstock.FallbackOptions{Share: 1 / float64(r.nodes), OnChange: func(c penstock.FallbackChange) {
		r.Logf("%v down %v: %v", time.Since(r.history.start).Round(time.Millisecond), c.Down, c.Err)
	}}
	switch r.layers {
	case withFallback:
		return penstock.WithDenyCache(penstock.WithFallback(store, nil, o), nil)
	case withLeases:
		lease := penstock.WithLease(penstock.WithFallback(store, nil, o), &penstock.LeaseOptions{Nodes: r.nodes, MaxAge: leaseAge})
		before := l.close
		l.close = func() {
			before()
			if err := lease.Close(context.Background()); err != nil {
				r.Logf("returning unused lease units: %v", err)
			}
		}
		return lease
	}
	return store
}

func TestMain(m *testing.M) {
	flag.Parse()
	for _, run := range []func() error{runWorker, runHolder, runTaker} {
		if err := run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	code := m.Run()
	removeBinary()
	os.Exit(code)
}
