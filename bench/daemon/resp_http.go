package main

import (
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
)

// resp compares CL.THROTTLE with redis-server's own INCR, and with the same decision by
// a script on redis-server.
func (b *bench) resp() {
	var server *redistest.Server
	b.onServerProcessor(func() { server = redistest.StartForTest(b, redistest.Options{}) })
	redis, daemon := redisOf("redis-server", server), b.serve("resp")
	harness.Check(checkThrottle(daemon))
	call := harness.StoreCall(penstock.Request{Key: "__rand_int__", Limit: penstock.PerMinute(100_000).WithBurst(100_001), Cost: 1})
	harness.Must(server.Command("SCRIPT", "LOAD", call.Script.Text))
	script := append(append([]string{"EVALSHA", call.Script.SHA1, strconv.Itoa(len(call.Keys))}, call.Keys...), call.Args...)
	throttle := []string{"CL.THROTTLE", "key:__rand_int__", "100000", "100000", "60"}
	for _, c := range []struct {
		pipeline                  int
		leastOfIncr, leastOfEvals float64
	}{{16, 0.95, 2.5}, {1, 0.7, 0}} {
		title := fmt.Sprintf("CL.THROTTLE, redis-benchmark -c 50 -P %d", c.pipeline)
		incr := b.redisBenchmark(redis, c.pipeline, []string{"INCR", "key:__rand_int__"})
		ours := b.redisBenchmark(daemon, c.pipeline, throttle)
		if c.leastOfEvals == 0 {
			b.takeTurns(title, incr, ours)
			b.FindAtLeast(title, ours.rateTo(incr), c.leastOfIncr, "redis-server's INCR")
			continue
		}
		evals := b.redisBenchmark(redis, c.pipeline, script)
		b.takeTurns(title, incr, ours, evals)
		b.FindAtLeast(title, ours.rateTo(incr), c.leastOfIncr, "redis-server's INCR")
		b.FindAtLeast(title, ours.rateTo(evals), c.leastOfEvals, "the token bucket's script on redis-server")
	}
}

// redisBenchmark returns a server to which redis-benchmark sends a command. The first turn says how
// many requests the others take.
func (b *bench) redisBenchmark(server *process, pipeline int, command []string) *subject {
	s := &subject{server: server}
	s.Name = server.name + " " + command[0]
	run := harness.RedisBenchmark{Connections: 50, Pipeline: pipeline, Keys: keyCount}
	port := harness.Must(strconv.Atoi(portOf(server.addr)))
	s.turn = func(length time.Duration) {
		isFirst := run.Requests == 0
		if isFirst {
			run.Requests = 20_000
		}
		before := server.processor()
		rate := harness.Must(run.Run(port, command))
		s.Add("rate", rate)
		s.Add("server", float64((server.processor()-before)/time.Microsecond)/float64(run.Requests))
		if isFirst {
			run.Requests = max(int(rate*b.Turn.Seconds()), 1000)
		}
	}
	return s
}

// checkThrottle returns an error unless the server decides: of a burst of one, the second take is denied.
func checkThrottle(server *process) error {
	for _, want := range []string{"0 1 0", "1 1 0"} {
		out, err := exec.Command("redis-cli", "-p", portOf(server.addr), "CL.THROTTLE", "once", "0", "1", "60").CombinedOutput()
		if err != nil {
			return fmt.Errorf("redis-cli: %w: %s", err, out)
		}
		if got := strings.Join(strings.Fields(string(out)), " "); !strings.HasPrefix(got, want+" ") {
			return fmt.Errorf("CL.THROTTLE replied %q, want it to begin with %q", got, want)
		}
	}
	return nil
}

// http compares the HTTP API with a net/http server with a constant response.
func (b *bench) http() {
	const title = "HTTP take, keep-alive, 10,000 keys, 64 callers"
	floor, ours := httpSubject(b.floor("http")), httpSubject(b.serve("http"))
	b.takeTurns(title, floor, ours)
	b.FindAtLeast(title, ours.rateTo(floor), 0.75, "a net/http server with a constant response")
}

// httpSubject returns a server from which callers take by POST.
func httpSubject(p *process) *subject {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers, DisableCompression: true}}
	bodies := make([]string, keyCount)
	for i := range bodies {
		bodies[i] = fmt.Sprintf(`{"key":"user:%012d","limit":"100000/1m"}`, i)
	}
	url := "http://" + p.addr + "/v1/take"
	return newSubject(p, nil, loadByCallers(func(n int) error {
		response, err := client.Post(url, "application/json", strings.NewReader(bodies[n%len(bodies)]))
		if err != nil {
			return err
		}
		text, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err == nil && (response.StatusCode != http.StatusOK || !strings.Contains(string(text), `"allowed":true`)) {
			err = fmt.Errorf("response %d %s: want a grant", response.StatusCode, text)
		}
		return err
	}))
}
