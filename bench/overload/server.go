package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/httplimit"
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
		_ = server.Close() // the process ends anyway
	}()
	fmt.Println(l.Addr())
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		harness.Check(err)
	}
}

// newHandler returns the handler behind its limiter: a gate is middleware, as in a real server.
func newHandler(c serverConfig) http.Handler {
	work := func() time.Duration { return exponentialOf(c.Mean) }
	if c.Equal {
		work = func() time.Duration { return c.Mean }
	}
	handler := busyHandler(work)
	if c.Workers > 0 {
		handler = waitingHandler(work, c.Workers)
	}
	if c.Limiter == ours {
		return httplimit.Admit(overload.NewGate(nil), nil)(handler)
	}
	named := librariesOf(c.Limiter)
	if len(named) == 0 {
		harness.Failf("no limiter %q", c.Limiter)
	}
	limiter := named[0].make()
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
func busyHandler(work func() time.Duration) http.HandlerFunc {
	perMilli := hashesPerMilli()
	return func(w http.ResponseWriter, _ *http.Request) {
		hash(int(work().Seconds() * 1000 * perMilli))
		w.WriteHeader(http.StatusNoContent)
	}
}

func exponentialOf(mean time.Duration) time.Duration {
	return time.Duration(rand.ExpFloat64() * float64(mean)) //nolint:gosec // a workload
}

func hash(times int) {
	var block [sha256.Size]byte
	for range times {
		block = sha256.Sum256(block[:])
	}
}

// hashesPerMilli is the best of some rounds, so that other load on the machine matters less.
func hashesPerMilli() float64 {
	const hashes = 2000
	best := time.Hour
	for range 50 {
		begin := time.Now()
		hash(hashes)
		best = min(best, time.Since(begin))
	}
	return hashes / (1000 * best.Seconds())
}

// A serverProcess is a server that was started.
type serverProcess struct {
	cmd   *exec.Cmd
	stdin io.Closer
	url   string
}

// startServer starts this program again as a server.
func startServer(c serverConfig) *serverProcess {
	cmd := harness.Child(string(harness.Must(json.Marshal(c))))
	if c.Procs > 0 {
		cmd.Env = append(cmd.Env, "GOMAXPROCS="+strconv.Itoa(c.Procs))
	}
	stdin, stdout := harness.Must(cmd.StdinPipe()), harness.Must(cmd.StdoutPipe())
	harness.Check(cmd.Start())
	s := &serverProcess{cmd: cmd, stdin: stdin}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		s.stop()
		harness.Failf("server of %s: %w", c.Limiter, err)
	}
	s.url = "http://" + strings.TrimSpace(line)
	return s
}

func (s *serverProcess) stop() {
	_ = s.stdin.Close()
	_ = s.cmd.Wait() // its status says nothing about the measurement
}
