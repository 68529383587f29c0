// Package faults breaks real servers and real daemons under load, and holds what
// was admitted meanwhile against what docs/reliability.md promises.
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
	full   = flag.Bool("faults.full", false, "make every fault, at length")
	update = flag.Bool("faults.update", false, "write the table into docs/reliability.md")
)

// A fault is something that goes wrong. Making it also proves that it happened.
type fault struct {
	name  string // its number in docs/reliability.md
	what  string
	on    string // topology
	quick bool   // whether it is made in ordinary tests too
	promise
	still bool // whether there is no key of which units come back
	make  func(*run)
}

// title tells apart the faults of one number.
func (f *fault) title() string { return f.name + " " + f.on + ": " + f.what + ", " + string(f.layers) }

// A run is one making of a fault.
type run struct {
	testing.TB
	fault
	history *history
	load    *load
	servers []*redistest.Server
	counted func(key int) bool // whose downtime it is
	proofs  []string

	goroutines int // when the load began
}

func TestFaults(t *testing.T) {
	var rows []row
	for _, f := range faults {
		t.Run(f.title(), func(t *testing.T) {
			if why := f.skipped(); why != "" {
				t.Skip(why)
			}
			rows = append(rows, f.execute(t))
		})
	}
	publish(t, rows)
}

// skipped says why a fault is not made now.
func (f *fault) skipped() string {
	switch {
	case *full:
		return ""
	case !f.quick:
		return "takes long: make faults"
	case racing && f.layers == alone:
		return "nothing but the store, which has race tests of its own"
	}
	return ""
}

// execute makes a fault, under load, and fails if it did not happen or a promise
// was broken.
func (f *fault) execute(t testing.TB) row {
	t.Helper()
	r := newRun(t, *f)
	f.make(r)
	if r.load != nil {
		r.load.finish()
	}
	length := time.Since(r.history.began)
	for _, complaint := range r.verdict() {
		t.Error(complaint)
	}
	r.leavesNothing()
	got := r.row(length)
	t.Log(got.numbers())
	return got
}

// leavesNothing waits until nothing runs that did not before the load, but for some
// connections (INV-24), and looks for keys that would stay for ever (INV-23).
func (r *run) leavesNothing() {
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
	if f.lives == 0 {
		f.lives = 1
	}
	if f.limits == nil {
		f.limits = slowLimits
	}
	return &run{TB: t, fault: f, history: &history{began: time.Now()}, counted: func(int) bool { return true }}
}

// happened proves that the fault did: something was counted that nothing else
// would have caused.
func (r *run) happened(what string, times int) {
	r.Helper()
	r.Logf("%s: %d", what, times)
	if times > 0 {
		r.proofs = append(r.proofs, what)
		return
	}
	r.Errorf("%s: none, so the fault did not happen", what)
}

// verdict returns every complaint about the run; of each kind a few.
func (r *run) verdict() (complaints []string) {
	if len(r.proofs) == 0 {
		complaints = append(complaints, "nothing proves that the fault happened")
	}
	if len(r.history.events) == 0 {
		complaints = append(complaints, "nobody asked for anything")
	}
	for _, v := range validators {
		broken := v.check(r.promise, r.history)
		for _, complaint := range broken[:min(len(broken), 5)] {
			complaints = append(complaints, v.invariant+": "+complaint)
		}
	}
	return complaints
}

// few returns how often to do something: more often when there is time.
func (r *run) few(n int) int {
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

// restart starts a server again that was killed.
func (r *run) restart(server *redistest.Server) {
	r.Helper()
	if err := server.Restart(); err != nil {
		r.Fatal(err)
	}
}

const (
	// generous is a deadline that no healthy server misses, however busy the machine.
	generous = 10 * time.Second

	// leaseAge is how long leases are held.
	leaseAge = 500 * time.Millisecond
)

// start puts a store under load: one connection, or more, for each node, with
// what the fault has around it.
func (r *run) start(url string) *load {
	r.Helper()
	timeout := 50 * time.Millisecond
	if r.calm && r.layers == alone {
		timeout = generous
	}
	l := &load{run: r, close: func() {}}
	if r.layers != alone {
		l.pace = brisk
	}
	for range r.nodes {
		l.nodes = append(l.nodes, r.around(l, r.open(url, timeout)))
	}
	patient := r.open(url, generous)
	l.drain = func(q penstock.Request) (penstock.Decision, error) { return patient.Take(context.Background(), q) }
	r.load, r.goroutines = l, runtime.NumGoroutine()
	l.start()
	return l
}

func (r *run) open(url string, timeout time.Duration) *redisstore.Store {
	r.Helper()
	store, err := redisstore.Open(context.Background(), url, &redisstore.Options{Timeout: timeout})
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(store.Close)
	return store
}

// around puts layers around a store.
func (r *run) around(l *load, store penstock.Store) penstock.Store {
	o := &penstock.FallbackOptions{Share: 1 / float64(r.nodes), OnChange: func(c penstock.FallbackChange) {
		r.Logf("%v away %v: %v", time.Since(r.history.began).Round(time.Millisecond), c.Down, c.Err)
	}}
	switch r.layers {
	case guarded:
		return penstock.WithDenyCache(penstock.WithFallback(store, nil, o), nil)
	case leased:
		lease := penstock.WithLease(penstock.WithFallback(store, nil, o), &penstock.LeaseOptions{Nodes: r.nodes, MaxAge: leaseAge})
		before := l.close
		l.close = func() {
			before()
			if err := lease.Close(context.Background()); err != nil {
				r.Logf("giving back what is left of leases: %v", err)
			}
		}
		return lease
	}
	return store
}

func TestMain(m *testing.M) {
	flag.Parse()
	if err := work(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	removeBinary()
	os.Exit(code)
}
