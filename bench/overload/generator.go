package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"
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
	r, err := http.NewRequestWithContext(context.Background(), http.MethodGet, g.url, nil)
	if err != nil {
		return 0, err
	}
	resp, err := g.client.Do(r)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// capacityOf is what a server without limiter serves to a few clients, each of which waits for
// its answer. They are enough to keep all workers busy.
func capacityOf(c serverConfig, length time.Duration) (float64, error) {
	c.Limiter = noLimiter
	s, err := startServer(c)
	if err != nil {
		return 0, err
	}
	defer s.stop()
	g := newGenerator(s.url)
	var served atomic.Int64
	var clients sync.WaitGroup
	begin := time.Now()
	for range max(4, 2*c.Workers) {
		clients.Go(func() {
			for time.Since(begin) < length {
				if status, err := g.get(); err == nil && status == http.StatusNoContent {
					served.Add(1)
				}
			}
		})
	}
	clients.Wait()
	if served.Load() == 0 {
		return 0, fmt.Errorf("server serves nothing")
	}
	return float64(served.Load()) / time.Since(begin).Seconds(), nil
}

// serverContenders are those that come closest to the gate in the simulations, and none.
var serverContenders = []string{ours, "Envoy gradient", "gradient2", "failsafe-go", noLimiter}

// A serverCase is a kind of server, and how much it is offered.
type serverCase struct {
	title string
	serverConfig
	offers []float64
}

// waitingServers are real servers, in processes of their own, whose workers wait.
func (b *bench) waitingServers() error {
	c := serverCase{"A real HTTP server: 10 workers that wait for 50 ms in the mean", serverConfig{Workers: 10, Mean: 50 * time.Millisecond}, []float64{0.8, 2, 5}}
	if b.quick {
		c.offers = []float64{2}
	}
	return b.serversOf(c)
}

// busyServers are real servers whose requests keep one processor busy.
func (b *bench) busyServers() error {
	return b.serversOf(serverCase{"A real HTTP server: requests of 10 ms on one processor", serverConfig{Mean: 10 * time.Millisecond}, []float64{2}})
}

func (b *bench) serversOf(c serverCase) error {
	t := table{title: c.title + ": share of the capacity served in ten times that, p99 beside that of an idle server, refused (how late the generator was, p99)", head: []string{"limiter"}}
	rows := map[string][]string{}
	for _, times := range c.offers {
		t.head = append(t.head, fmt.Sprintf("%g×", times))
		for _, name := range serverContenders {
			c.Limiter = name
			s, err := b.loadServer(c.serverConfig, times)
			if err != nil {
				return err
			}
			share, p99 := s.good/s.capacity, float64(s.p99)/(float64(idleP99)/float64(mean)*float64(s.mean))
			rows[name] = append(rows[name], fmt.Sprintf("%.2f, %.1f×, %.1f %% (%s)", share, p99, 100*s.refused, s.lateness.Round(time.Millisecond/10)))
			if name == ours {
				b.addServer(c, times, s, share, p99)
			}
		}
	}
	b.addRows(&t, rows)
	return nil
}

func (b *bench) addServer(c serverCase, times float64, s serverResult, share, p99 float64) {
	kind := "real server, waiting"
	if c.Workers == 0 {
		kind = "real server, processor busy"
	}
	if times < 1 {
		b.findings.Add(kind+fmt.Sprintf(", %g of the capacity: refused", times), "≤ 0.2 %", s.refused <= 0.002, "%.2f %%", 100*s.refused)
		return
	}
	least, most := 0.95, 2.0
	if c.Workers == 0 { // see the one with a run queue: no fixed limit is better
		least, most = 0.85, 3.5
	}
	b.findings.Add(fmt.Sprintf("%s, %g× the capacity", kind, times), fmt.Sprintf("≥ %g of the capacity, p99 ≤ %g× idle", least, most),
		share >= least && p99 <= most, "%.3f; p99 %.2f×", share, p99)
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

func (b *bench) loadServer(c serverConfig, times float64) (best serverResult, err error) {
	for attempt := range maxAttempts {
		r, err := b.loadOnce(c, times)
		if err != nil {
			return r, err
		}
		if attempt == 0 || r.lateness < best.lateness {
			best = r
		}
		if best.lateness <= maxLateness || b.quick {
			break
		}
	}
	return best, nil
}

// loadOnce starts a server, and returns what it serves of a load, beside what it can serve before
// and after that: sleeps take longer than they should, and the machine has other work. The load
// is measured from ten seconds after it began, as in the simulations.
func (b *bench) loadOnce(c serverConfig, times float64) (r serverResult, err error) {
	p, warm := phases{2 * time.Second, 12 * time.Second, 27 * time.Second}, 4*time.Second
	if b.quick {
		p, warm = phases{0, time.Second / 2, time.Second}, time.Second/5
	}
	if r.capacity, err = capacityOf(c, warm); err != nil {
		return r, err
	}
	server, err := startServer(c)
	if err != nil {
		return r, err
	}
	g := newGenerator(server.url)
	g.run(overloaded(r.capacity, times, p.begin), p.until)
	server.stop() // or else it would work on what clients have given up
	after, err := capacityOf(c, warm)
	if err != nil {
		return r, err
	}
	r.capacity = (r.capacity + after) / 2
	r.mean = c.Mean
	if c.Workers == 0 { // what a processor is to a process that shares it with others
		r.mean = time.Duration(1e9 / r.capacity)
	}
	w := &world{log: g.log}
	r.summary, r.lateness = w.summary(p.from, p.until, 10*r.mean, false), g.lateness()
	return r, nil
}
