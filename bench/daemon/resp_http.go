package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/harness"
	"github.com/penstock-io/penstock/internal/redistest"
)

// resp compares CL.THROTTLE with redis-server's own INCR, and with the same decision by
// a script on redis-server.
func (b *bench) resp() {
	server := redistest.StartForTest(b, redistest.Options{Wrapper: b.onServerProcessor})
	redis, daemon := redisOf("redis-server", server), b.serve("resp")
	client := b.connect(daemon)
	throttle(client, []string{"once"}, []any{int64(0), int64(1), int64(0), int64(-1), int64(60)}, 0, 1, 60) // of a burst of one
	if reply := harness.Must(client.Do(context.Background(), "CL.THROTTLE", "once", 0, 1, 60).Slice()); reply[0] != int64(1) {
		b.Fatalf("the second take of a burst of one: %v, want a denial", reply)
	}
	call := harness.StoreCall(penstock.Request{Key: "__rand_int__", Limit: penstock.PerMinute(100_000).WithBurst(100_001), Cost: 1})
	harness.Must(server.Command("SCRIPT", "LOAD", call.Script.Text))
	script := append(append([]string{"EVALSHA", call.Script.SHA1, strconv.Itoa(len(call.Keys))}, call.Keys...), call.Args...)
	command := []string{"CL.THROTTLE", "key:__rand_int__", "100000", "100000", "60"}
	for _, pipeline := range []int{16, 1} {
		title := fmt.Sprintf("CL.THROTTLE, redis-benchmark -c 50 -P %d", pipeline)
		incr := b.redisBenchmark(redis, pipeline, []string{"INCR", "key:__rand_int__"})
		ours := b.redisBenchmark(daemon, pipeline, command)
		evals := b.redisBenchmark(redis, pipeline, script)
		b.takeTurns(title, incr, ours, evals)
		if pipeline == 1 {
			b.FindAtLeast(title, ours.To(incr, "rate"), 0.7, "redis-server's INCR")
			continue
		}
		b.FindAtLeast(title, ours.To(incr, "rate"), 0.95, "redis-server's INCR")
		b.FindAtLeast(title, ours.To(evals, "rate"), 2.5, "the token bucket's script on redis-server")
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

// connect opens a client of the RESP API for the rest of the case.
func (b *bench) connect(daemon *process) *goredis.Client {
	client := goredis.NewClient(&goredis.Options{Addr: daemon.addr, ReadTimeout: time.Minute})
	b.Cleanup(func() { _ = client.Close() })
	return client
}

// throttle sends CL.THROTTLE for keys in one pipeline, and ends the case unless each reply is the one
// that is wanted.
func throttle(client *goredis.Client, keys []string, want []any, args ...any) {
	commands := harness.Must(client.Pipelined(context.Background(), func(p goredis.Pipeliner) error {
		for _, key := range keys {
			p.Do(context.Background(), append([]any{"CL.THROTTLE", key}, args...)...)
		}
		return nil
	}))
	for _, c := range commands {
		if got := harness.Must(c.(*goredis.Cmd).Slice()); !slices.Equal(got, want) {
			harness.Failf("%v: reply %v, want %v", c.Args(), got, want)
		}
	}
}

// http compares the HTTP API with a net/http server with a constant response.
func (b *bench) http() {
	const title = "HTTP take, keep-alive, 10,000 keys, 64 callers"
	floor, ours := httpSubject(b.floor("http")), httpSubject(b.serve("http"))
	b.takeTurns(title, floor, ours)
	b.FindAtLeast(title, ours.To(floor, "rate"), 0.75, "a net/http server with a constant response")
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
	fill(b.connect(daemon), keys)
	full := daemon.resident()
	const mb = 1e6
	b.Find("memory of the process, idle", "≤ 40 MB", idle <= 40*mb, "%.1f MB", float64(idle)/mb)
	b.Find(fmt.Sprintf("memory of the process, %d keys", keys), "≤ 150 MB", full <= 150*mb, "%.1f MB", float64(full)/mb)
}

// fill takes each key once, so that it is in debt for an hour, and checks that each was
// granted as the first of its key.
func fill(client *goredis.Client, keys int) {
	const batch = 1000
	names := make([]string, batch)
	for first := 0; first < keys; first += batch {
		for i := range names {
			names[i] = fmt.Sprintf("user:%012d", first+i)
		}
		throttle(client, names, []any{int64(0), int64(10), int64(9), int64(-1), int64(3600)}, 9, 1, 3600)
	}
}
