package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/simulation/simserver"
)

// A generator is clients of an HTTP server. A latency counts from when the request was due, so a
// generator that is late hides nothing.
type generator struct {
	clients
	url    string
	client *http.Client
	delay  []time.Duration // by which requests were sent too late
}

// newGenerator returns clients that dial as usual, or by a function.
func newGenerator(url string, dial func(context.Context, string, string) (net.Conn, error)) *generator {
	transport := &http.Transport{MaxIdleConnsPerHost: 10_000, DisableCompression: true, DialContext: dial}
	return &generator{url: url, client: &http.Client{Transport: transport, Timeout: patience}}
}

// run sends requests until the end, and waits for the answers.
func (g *generator) run(rate simserver.Rate, length time.Duration, seed int) {
	g.send(rate, newRandom(seed), length, func(due time.Duration) {
		g.delay = append(g.delay, time.Since(g.begin)-due)
		g.calls.Go(func() {
			status, err := g.get()
			latency := time.Since(g.begin) - due
			if err != nil {
				latency = gaveUp
			} else if status == http.StatusServiceUnavailable && latency <= patience {
				latency = refused
			}
			g.record(latency, false)
		})
	})
	g.calls.Wait()
	g.client.CloseIdleConnections()
}

// lateness is the 99th percentile of how late requests were sent. It says how much other load
// on the machine disturbed the measurement.
func (g *generator) lateness() time.Duration { return harness.Quantile(g.delay, 0.99) }

func (g *generator) get() (status int, err error) {
	resp, err := g.client.Get(g.url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// serverLibraries are those that come closest to the gate in the simulations, and none.
var serverLibraries = librariesOf(ours, "Envoy gradient", "gradient2", "failsafe-go", noLimiter)

// A serverCase is an HTTP server at multiples of its capacity.
type serverCase struct {
	title, kind string
	config      serverConfig
	offers      []float64
}

var (
	waiting = serverConfig{Workers: 10, Mean: 50 * time.Millisecond}

	// Virtual servers are in virtual time, over connections in memory. Their workers are exact and neither
	// they nor the clients wait for a processor, so the figures do not depend on the machine.
	virtualServers = serverCase{
		"An HTTP server in virtual time: 10 workers that wait for 50 ms in the mean", "HTTP server in virtual time", waiting, []float64{0.8, 2, 5},
	}
)

// servers returns the case of servers. A quick run has one load.
func (b *bench) servers(c serverCase) func() {
	return func() {
		title := c.title + ": share of the capacity served in ten times that, p99 beside that of an idle server, refused"
		b.grid(title, harness.Scale(b.Run, c.offers, []float64{2}), serverLibraries, func(l library, times float64) string {
			config := c.config
			config.Limiter = l.name
			s := b.loadVirtual(config, times)
			share, p99 := s.good/s.capacity, float64(s.p99)/float64(p99OfIdle(s.mean))
			if l.name == ours {
				b.findServer(c.kind, times, s.summary, share, p99)
			}
			return fmt.Sprintf("%.2f, %.1f×, %.1f %%", share, p99, 100*s.refused)
		})
	}
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

// A serverResult is what a server served of a load.
type serverResult struct {
	summary
	capacity float64
	mean     time.Duration // of the time that a request takes at an idle server
}

// loadVirtual returns the mean of some runs of a server and its clients in bubbles.
func (b *bench) loadVirtual(c serverConfig, times float64) serverResult {
	p := harness.Scale(b.Run, phases{5 * time.Second, 15 * time.Second, 40 * time.Second}, phases{0, time.Second / 2, time.Second})
	r, runs := serverResult{capacity: float64(c.Workers) / c.Mean.Seconds(), mean: c.Mean}, b.Size(3, 1)
	for run := range runs {
		b.simulate(func() {
			l := bufconn.Listen(1 << 16)
			server := &http.Server{Handler: newHandler(c), ReadHeaderTimeout: time.Minute}
			var serving sync.WaitGroup
			serving.Go(func() { _ = server.Serve(l) }) // until it is closed
			g := newGenerator("http://server", func(ctx context.Context, _, _ string) (net.Conn, error) { return l.DialContext(ctx) })
			g.run(overloaded(r.capacity, times, p.begin), p.until, run+1)
			time.Sleep(time.Minute) // for calls that clients have given up
			_ = server.Close()      // connections in memory do not fail
			serving.Wait()
			r.add(g.summary(p.from, p.until, 10*c.Mean, false), runs)
		})
	}
	return r
}
