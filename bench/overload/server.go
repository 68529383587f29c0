package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/httplimit"
	"github.com/penstock-io/penstock/internal/simulation/simserver"
	"github.com/penstock-io/penstock/overload"
)

// A serverConfig is what a server process does: each request holds one of its workers while it
// waits for a time, or keeps the processor busy for as long.
type serverConfig struct {
	Limiter string
	Workers int           // 0 if requests keep the processors busy
	Procs   int           // how many processors it has; 0 for all
	Mean    time.Duration // of an exponential distribution
	Equal   bool          // all requests take the mean instead
	Hashes  float64       // that take a millisecond, so that all servers do the same work
}

// computed is how many requests a server could have served that refuses all, and computes meanwhile.
var computed atomic.Int64

func compute(hashes int) {
	for ; ; computed.Add(1) {
		hash(hashes)
	}
}

// serveHTTP is the server process: it prints its address, and ends when its input ends.
func serveHTTP(task string) {
	silenceLogs()
	var c serverConfig
	harness.Check(json.Unmarshal([]byte(task), &c))
	server := &http.Server{Handler: newHandler(c), ReadHeaderTimeout: time.Minute}
	l := harness.Must(net.Listen("tcp", "127.0.0.1:0"))
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		fmt.Println(computed.Load())
		os.Exit(0)
	}()
	fmt.Println(l.Addr())
	harness.Check(server.Serve(l))
}

// newHandler returns the handler behind its limiter: a gate is middleware, as in a real server.
func newHandler(c serverConfig) http.Handler {
	work := func() time.Duration { return time.Duration(rand.ExpFloat64() * float64(c.Mean)) } //nolint:gosec // a workload
	if c.Equal {
		work = func() time.Duration { return c.Mean }
	}
	handler := busyHandler(work, c.Hashes)
	if c.Workers > 0 {
		handler = waitingHandler(work, c.Workers)
	}
	switch c.Limiter {
	case refuseAll:
		for range c.Procs {
			go compute(int(c.Mean.Seconds() * 1000 * c.Hashes))
		}
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) })
	case ours:
		return httplimit.Admit(overload.NewGate(nil), nil)(handler)
	}
	limiter := librariesOf(c.Limiter)[0].make()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leave, ok := limiter.enter(false)
		if !ok {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		defer leave()
		handler.ServeHTTP(w, r)
	})
}

// waitingHandler has workers that wait for something else, such as a database.
func waitingHandler(work func() time.Duration, workers int) http.HandlerFunc {
	free := make(chan struct{}, workers)
	return func(w http.ResponseWriter, r *http.Request) {
		free <- struct{}{}
		defer func() { <-free }()
		if r.Context().Err() == nil { // or else the client has given up
			time.Sleep(work())
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

// busyHandler keeps the processor busy. Requests share it as the scheduler says.
func busyHandler(work func() time.Duration, perMilli float64) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		hash(int(work().Seconds() * 1000 * perMilli))
		w.WriteHeader(http.StatusNoContent)
	}
}

func hash(times int) {
	var block [sha256.Size]byte
	for range times {
		block = sha256.Sum256(block[:])
	}
}

// hashesPerMilli need not be exact, because all servers do the same work.
func hashesPerMilli() float64 {
	begin := time.Now()
	hash(1e5)
	return 1e5 / (1000 * time.Since(begin).Seconds())
}

// A serverProcess is a server that was started.
type serverProcess struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stdout *bufio.Reader
	url    string
}

// startServer starts this program again as a server, by another command if there is one.
func startServer(under string, c serverConfig) *serverProcess {
	cmd := harness.Child(string(harness.Must(json.Marshal(c))))
	if words := strings.Fields(under); len(words) > 0 {
		cmd.Path, cmd.Args = harness.Must(exec.LookPath(words[0])), append(words, cmd.Path)
	}
	if c.Procs > 0 {
		cmd.Env = append(cmd.Env, "GOMAXPROCS="+strconv.Itoa(c.Procs))
	}
	stdin, stdout := harness.Must(cmd.StdinPipe()), harness.Must(cmd.StdoutPipe())
	harness.Check(cmd.Start())
	out := bufio.NewReader(stdout)
	addr := harness.Must(out.ReadString('\n'))
	return &serverProcess{cmd, stdin, out, "http://" + strings.TrimSpace(addr)}
}

// stop ends the server, and returns the work that it did beside requests.
func (s *serverProcess) stop() (computed float64) {
	_ = s.stdin.Close()
	_, _ = fmt.Fscan(s.stdout, &computed)
	_ = s.cmd.Wait() // its status says nothing about the measurement
	return computed
}

// A generator is clients of an HTTP server. A latency counts from when the request was due, so a
// generator that is late hides nothing.
type generator struct {
	clients
	url    string
	client *http.Client
}

// newGenerator returns clients that dial as usual, or by a function.
func newGenerator(url string, dial func(context.Context, string, string) (net.Conn, error)) *generator {
	transport := &http.Transport{MaxIdleConnsPerHost: 10_000, DisableCompression: true, DialContext: dial}
	return &generator{url: url, client: &http.Client{Transport: transport, Timeout: patience}}
}

// run sends requests until the end, and waits for the answers.
func (g *generator) run(rate simserver.Rate, length time.Duration, seed int) {
	g.send(rate, newRandom(seed), length, func(due time.Duration) {
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

func (g *generator) get() (status int, err error) {
	resp, err := g.client.Get(g.url)
	if err != nil {
		return 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, err
}

// virtualServers is an HTTP server in virtual time, over connections in memory. Its workers are exact, and neither
// they nor the clients wait for a processor, so the figures do not depend on the machine.
func (b *bench) virtualServers() {
	const kind, title = "HTTP server in virtual time", "An HTTP server in virtual time: 10 workers that wait for 50 ms in the mean: " +
		"share of the capacity served in ten times that, p99 beside that of an idle server, refused, in the mean of ten runs"
	config := serverConfig{Workers: 10, Mean: 50 * time.Millisecond}
	capacity, idle := float64(config.Workers)/config.Mean.Seconds(), float64(p99OfIdle(config.Mean))
	closest := librariesOf(ours, "Envoy gradient", "gradient2", "failsafe-go", noLimiter) // to the gate in the simulations, and none
	b.grid(title, harness.Scale(b.Run, []float64{0.8, 2, 5}, []float64{2}), closest, func(l library, times float64) string {
		config.Limiter = l.name
		s := b.loadVirtual(config, capacity, times)
		share, p99 := s.good/capacity, float64(s.p99)/idle
		if l.name == ours {
			b.Find(fmt.Sprintf("%s, %g× the capacity", kind, times), "≥ 0.95 of the capacity, or ≤ 0.2 % refused below it, p99 ≤ 2× idle",
				(share >= 0.95 || times < 1 && s.refused <= 0.002) && p99 <= 2, "%.3f; %.2f %% refused; p99 %.2f×", share, 100*s.refused, p99)
		}
		return fmt.Sprintf("%.2f, %.1f×, %.1f %%", share, p99, 100*s.refused)
	})
}

// loadVirtual returns the mean of some runs of a server and its clients in bubbles.
func (b *bench) loadVirtual(c serverConfig, capacity, times float64) (mean summary) {
	p := harness.Scale(b.Run, phases{5 * time.Second, 15 * time.Second, 40 * time.Second}, phases{0, time.Second / 2, time.Second})
	runs := b.Size(10, 1)
	for run := range runs {
		b.simulate(func() {
			l := bufconn.Listen(1 << 16)
			server := &http.Server{Handler: newHandler(c), ReadHeaderTimeout: time.Minute}
			var serving sync.WaitGroup
			serving.Go(func() { _ = server.Serve(l) }) // until it is closed
			g := newGenerator("http://server", func(ctx context.Context, _, _ string) (net.Conn, error) { return l.DialContext(ctx) })
			g.run(overloaded(capacity, times, p.begin), p.until, run+1)
			time.Sleep(time.Minute) // for calls that clients have given up
			_ = server.Close()      // connections in memory do not fail
			serving.Wait()
			mean.add(g.summary(p.from, p.until, 10*c.Mean, false), runs)
		})
	}
	return mean
}
