package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
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

	mu  sync.Mutex
	log []outcome
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
		g.sent.Go(func() { g.send(due) })
	}
	g.sent.Wait()
	g.client.CloseIdleConnections()
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
// its answer.
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
	for range 4 {
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

// servers are real servers, in processes of their own, under a real load.
func (b *bench) servers() error {
	waiting := serverCase{"A real HTTP server: 10 workers that wait for 25 ms in the mean", serverConfig{Workers: 10, Mean: 25 * time.Millisecond}, []float64{0.8, 2, 5}}
	busy := serverCase{"A real HTTP server: requests of 10 ms on one processor", serverConfig{Mean: 10 * time.Millisecond}, []float64{2, 5}}
	all := []serverCase{waiting, busy}
	if b.quick {
		waiting.offers = []float64{2}
		all = []serverCase{waiting}
	}
	for _, c := range all {
		if err := b.serversOf(c); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) serversOf(c serverCase) error {
	t := table{title: c.title + ": share of the capacity served in ten times that, p99 beside that of an idle server, refused", head: []string{"limiter"}}
	rows := map[string][]string{}
	for _, times := range c.offers {
		t.head = append(t.head, fmt.Sprintf("%g×", times))
		for _, name := range serverContenders {
			c.Limiter = name
			s, capacity, err := b.loadServer(c.serverConfig, times)
			if err != nil {
				return err
			}
			share, p99 := s.good/capacity, float64(s.p99)/(float64(idleP99)/float64(mean)*float64(c.Mean))
			rows[name] = append(rows[name], fmt.Sprintf("%.2f, %.1f×, %.1f %%", share, p99, 100*s.refused))
			if name == ours {
				b.addServer(c, times, s, share, p99)
			}
		}
	}
	b.addRows(&t, rows)
	return nil
}

func (b *bench) addServer(c serverCase, times float64, s summary, share, p99 float64) {
	kind := "real server, waiting"
	if c.Workers == 0 {
		kind = "real server, processor busy"
	}
	if times < 1 {
		b.findings.Add(kind+fmt.Sprintf(", %g of the capacity: refused", times), "≤ 0.2 %", s.refused <= 0.002, "%.2f %%", 100*s.refused)
		return
	}
	b.findings.Add(fmt.Sprintf("%s, %g× the capacity", kind, times), "≥ 0.95 of the capacity, p99 ≤ 2× idle", share >= 0.95 && p99 <= 2, "%.3f; p99 %.2f×", share, p99)
}

// loadServer starts a server, and returns what it serves of a load, and its capacity. A server
// that keeps the processor busy shares the machine, so its capacity is measured each time.
func (b *bench) loadServer(c serverConfig, times float64) (s summary, capacity float64, err error) {
	p := phases{3 * time.Second, 8 * time.Second, 18 * time.Second}
	if b.quick {
		p = phases{0, time.Second / 2, time.Second}
	}
	capacity = float64(c.Workers) / c.Mean.Seconds()
	if c.Workers == 0 {
		if capacity, err = capacityOf(c, 3*time.Second); err != nil {
			return s, 0, err
		}
	}
	server, err := startServer(c)
	if err != nil {
		return s, 0, err
	}
	defer server.stop()
	g := newGenerator(server.url)
	g.run(overloaded(capacity, times, p.begin), p.until)
	w := &world{log: g.log}
	return w.summary(p.from, p.until, 10*c.Mean, false), capacity, nil
}
