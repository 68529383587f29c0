package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
)

// A generator sends requests to a server at a rate that does not depend on its answers. A
// latency counts from when the request was due, so a generator that is late hides nothing.
type generator struct {
	url    string
	client *http.Client
	begin  time.Time
	sent   sync.WaitGroup

	mu    sync.Mutex
	log   []outcome
	delay []time.Duration // by which requests were sent too late
}

func newGenerator(url string) *generator {
	transport := &http.Transport{MaxIdleConnsPerHost: 10_000, DisableCompression: true}
	return &generator{url: url, client: &http.Client{Transport: transport, Timeout: patience}}
}

// run sends requests at random times until the end, and waits for the answers.
func (g *generator) run(rate func(time.Duration) float64, length time.Duration) {
	g.begin = time.Now()
	for due := time.Duration(0); due < length; due += time.Duration(rand.ExpFloat64() / rate(due) * 1e9) { //nolint:gosec // a workload
		time.Sleep(time.Until(g.begin.Add(due)))
		g.delay = append(g.delay, time.Since(g.begin)-due)
		g.sent.Go(func() { g.send(due) })
	}
	g.sent.Wait()
	g.client.CloseIdleConnections()
}

// lateness is the 99th percentile of how late requests were sent. It says how much other load
// on the machine disturbed the measurement.
func (g *generator) lateness() time.Duration {
	slices.Sort(g.delay)
	return g.delay[len(g.delay)*99/100]
}

func (g *generator) send(due time.Duration) {
	status, err := g.get()
	latency := time.Since(g.begin) - due
	switch {
	case err != nil || latency > patience:
		latency = gaveUp
	case status == http.StatusServiceUnavailable:
		latency = refused
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.log = append(g.log, outcome{at: time.Since(g.begin), latency: latency})
}

func (g *generator) get() (status int, err error) {
	resp, err := g.client.Get(g.url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// capacityOf is what a server without limiter serves to a few clients, each of which waits for
// its answer. They are enough to keep all workers busy.
func capacityOf(c serverConfig, length time.Duration) float64 {
	c.Limiter = noLimiter
	s := startServer(c)
	defer s.stop()
	g := newGenerator(s.url)
	var served atomic.Int64
	begin := time.Now()
	took, _ := harness.Concurrently(max(4, 2*c.Workers), func(int) error {
		for time.Since(begin) < length || served.Load() == 0 && time.Since(begin) < time.Minute {
			if status, err := g.get(); err == nil && status == http.StatusNoContent {
				served.Add(1)
			}
		}
		return nil
	})
	if served.Load() == 0 {
		harness.Check(errors.New("server serves nothing"))
	}
	return float64(served.Load()) / took.Seconds()
}

// serverLibraries are those that come closest to the gate in the simulations, and none.
var serverLibraries = slices.DeleteFunc(slices.Clone(libraries), func(l library) bool {
	return !slices.Contains([]string{ours, "Envoy gradient", "gradient2", "failsafe-go", noLimiter}, l.name)
})

// waitingServers are real servers, in processes of their own, whose workers wait.
func (b *bench) waitingServers() {
	offers := []float64{0.8, 2, 5}
	if b.Quick {
		offers = []float64{2}
	}
	b.serversOf("A real HTTP server: 10 workers that wait for 50 ms in the mean", "real server, waiting", serverConfig{Workers: 10, Mean: 50 * time.Millisecond}, offers)
}

// busyServers are real servers whose requests keep one processor busy.
func (b *bench) busyServers() {
	b.serversOf("A real HTTP server: requests of 10 ms on one processor", "real server, processor busy", serverConfig{Mean: 10 * time.Millisecond}, []float64{2})
}

func (b *bench) serversOf(title, kind string, c serverConfig, offers []float64) {
	title += ": share of the capacity served in ten times that, p99 beside that of an idle server, refused (how late the generator was, p99)"
	b.grid(title, offers, serverLibraries, func(l library, times float64) string {
		c.Limiter = l.name
		s := b.loadServer(c, times)
		share, p99 := s.good/s.capacity, float64(s.p99)/(float64(idleP99)/float64(mean)*float64(s.mean))
		if l.name == ours {
			b.findServer(kind, times, s.summary, share, p99)
		}
		return fmt.Sprintf("%.2f, %.1f×, %.1f %% (%s)", share, p99, 100*s.refused, s.lateness.Round(time.Millisecond/10))
	})
}

func (b *bench) findServer(kind string, times float64, s summary, share, p99 float64) {
	if times < 1 {
		b.Find(kind+fmt.Sprintf(", %g of the capacity: refused", times), "≤ 0.2 %", s.refused <= 0.002, "%.2f %%", 100*s.refused)
		return
	}
	const least, most = 0.95, 2.0
	b.Find(fmt.Sprintf("%s, %g× the capacity", kind, times), fmt.Sprintf("≥ %g of the capacity, p99 ≤ %g× idle", least, most),
		share >= least && p99 <= most, "%.3f; p99 %.2f×", share, p99)
}

// virtualServers are HTTP servers in virtual time, over connections in memory. Their workers are
// exact and neither they nor the clients wait for a processor, so the figures do not depend on
// the machine.
func (b *bench) virtualServers() {
	c := serverConfig{Workers: 10, Mean: 50 * time.Millisecond}
	offers, runs, p := []float64{0.8, 2, 5}, 3, phases{5 * time.Second, 15 * time.Second, 40 * time.Second}
	if b.Quick {
		offers, runs, p = offers[1:2], 1, phases{0, time.Second / 2, time.Second}
	}
	const title = "An HTTP server in virtual time: 10 workers that wait for 50 ms in the mean: share of the capacity served in ten times that, p99 beside that of an idle server, refused"
	capacity := float64(c.Workers) / c.Mean.Seconds()
	b.grid(title, offers, serverLibraries, func(l library, times float64) string {
		c.Limiter = l.name
		var mean summary
		for range runs {
			mean.add(harness.Must(b.loadVirtual(c, overloaded(capacity, times, p.begin), p)), runs)
		}
		share, p99 := mean.good/capacity, float64(mean.p99)/(math.Log(100)*float64(c.Mean))
		if l.name == ours && !b.Quick {
			b.findServer("HTTP server in virtual time", times, mean, share, p99)
		}
		return fmt.Sprintf("%.2f, %.1f×, %.1f %%", share, p99, 100*mean.refused)
	})
}

// loadVirtual runs a server and its clients in a bubble.
func (b *bench) loadVirtual(c serverConfig, rate func(time.Duration) float64, p phases) (s summary, err error) {
	b.simulate(func() {
		var handler http.Handler
		if handler, err = newHandler(c); err != nil {
			return
		}
		l := &memoryListener{conns: make(chan net.Conn), closed: make(chan struct{})}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
		var serving sync.WaitGroup
		serving.Go(func() { _ = server.Serve(l) }) // until it is closed
		g := newGenerator("http://server")
		g.client.Transport = &http.Transport{MaxIdleConnsPerHost: 10_000, DisableCompression: true, DialContext: l.dial}
		g.run(rate, p.until)
		time.Sleep(time.Minute) // for calls that clients have given up
		_ = server.Close()      // connections in memory do not fail
		serving.Wait()
		w := &world{log: g.log}
		s = w.summary(p.from, p.until, 10*c.Mean, false)
	})
	return s, err
}

// A memoryListener accepts connections within the process.
type memoryListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (l *memoryListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memoryListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *memoryListener) Addr() net.Addr { return &net.UnixAddr{Name: "memory"} }

func (l *memoryListener) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case l.conns <- server:
		return client, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A serverResult is what a server served of a load.
type serverResult struct {
	summary
	capacity float64
	mean     time.Duration // of the time that a request takes at an idle server
	lateness time.Duration // of the generator
}

// On a machine with other work, a run is repeated while that disturbs it, and the run that was
// disturbed least is reported.
const (
	maxLateness = 5 * time.Millisecond
	maxAttempts = 2
)

func (b *bench) loadServer(c serverConfig, times float64) (best serverResult) {
	for attempt := range maxAttempts {
		if r := b.loadOnce(c, times); attempt == 0 || r.lateness < best.lateness {
			best = r
		}
		if best.lateness <= maxLateness || b.Quick {
			break
		}
	}
	return best
}

// loadOnce starts a server, and returns what it serves of a load, beside what it can serve before
// and after that: sleeps take longer than they should, and the machine has other work. The load
// is measured from ten seconds after it began, as in the simulations.
func (b *bench) loadOnce(c serverConfig, times float64) (r serverResult) {
	p, warm := phases{2 * time.Second, 12 * time.Second, 27 * time.Second}, 4*time.Second
	if b.Quick {
		p, warm = phases{0, time.Second / 2, time.Second}, time.Second/5
	}
	before := capacityOf(c, warm)
	server := startServer(c)
	g := newGenerator(server.url)
	g.run(overloaded(before, times, p.begin), p.until)
	server.stop() // or else it would work on what clients have given up
	r.capacity = (before + capacityOf(c, warm)) / 2
	r.mean = c.Mean
	if c.Workers == 0 { // what a processor is to a process that shares it with others
		r.mean = time.Duration(1e9 / r.capacity)
	}
	w := &world{log: g.log}
	r.summary, r.lateness = w.summary(p.from, p.until, 10*r.mean, false), g.lateness()
	return r
}
