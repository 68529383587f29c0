package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
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
		s.Add("server", (server.processor()-before)/float64(run.Requests))
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

// weigh measures the daemon's memory with all APIs enabled: idle, and with live keys.
func (b *bench) weigh() {
	keys := b.Size(1_000_000, 10_000)
	b.Logf("memory, idle and with %d keys", keys)
	anywhere := "127.0.0.1:0"
	daemon := b.serve("resp", "--grpc", anywhere, "--http", anywhere, "--admin", anywhere)
	<-time.After(time.Second)
	idle := daemon.resident()
	harness.Check(fill(daemon.addr, keys))
	full := daemon.resident()
	const mb = 1e6
	b.Find("memory of the process, idle", "≤ 40 MB", idle <= 40*mb, "%.1f MB", float64(idle)/mb)
	b.Find(fmt.Sprintf("memory of the process, %d keys", keys), "≤ 150 MB", full <= 150*mb, "%.1f MB", float64(full)/mb)
}

// fill takes each key once, so that it is in debt for an hour, and checks that each was
// granted as the first of its key.
func fill(addr string, keys int) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	r, w := bufio.NewReader(c), bufio.NewWriter(c)
	const batch = 1000
	for first := 0; first < keys; first += batch {
		for i := range batch {
			fmt.Fprintf(w, "*5\r\n$11\r\nCL.THROTTLE\r\n$17\r\nuser:%012d\r\n$1\r\n9\r\n$1\r\n1\r\n$4\r\n3600\r\n", first+i)
		}
		if err := w.Flush(); err != nil {
			return err
		}
		for range batch {
			if err := readGrant(r); err != nil {
				return err
			}
		}
	}
	return nil
}

func readGrant(r *bufio.Reader) error {
	var reply [6]string
	for i := range reply {
		line, err := r.ReadString('\n')
		if err != nil {
			return err
		}
		reply[i] = strings.TrimSpace(line)
	}
	if want := [6]string{"*5", ":0", ":10", ":9", ":-1", ":3600"}; reply != want {
		return fmt.Errorf("reply %q, want %q", reply, want)
	}
	return nil
}
