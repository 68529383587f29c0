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
	"github.com/penstock-io/penstock/server/client"
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

// redisBenchmark returns a server to which redis-benchmark sends a command. Each turn says how
// many requests the next takes.
func (b *bench) redisBenchmark(server *process, pipeline int, command []string) *subject {
	s := &subject{}
	s.Name = server.name + " " + command[0]
	run := harness.RedisBenchmark{Connections: 50, Pipeline: pipeline, Keys: keyCount, Requests: 20_000}
	port := harness.Must(strconv.Atoi(portOf(server.addr)))
	s.turn = func(time.Duration) {
		before := server.processor()
		rate := run.Run(port, command)
		s.Add("rate", rate)
		s.Add("server", (server.processor()-before)/float64(run.Requests))
		run.Requests = max(int(rate*b.Turn.Seconds()), 1000)
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

const overrideCallers = 8 // that each daemon answers meanwhile

const overrideRules = "domain: edge\ndescriptors:\n  - {key: user, limit: 1000000000/1s}\n"

// An overridden is a daemon whose overrides are changed. Its address is that of the HTTP API.
type overridden struct {
	*process
	admin  string
	client *client.Client
}

// overrides measures how long it takes until three daemons under load decide by a change,
// and until all overrides are in a Redis that was killed and has come back without them.
func (b *bench) overrides() {
	count, changes := b.Size(100_000, 1000), b.Size(30, 3)
	redis := redistest.StartForTest(b, redistest.Options{})
	daemons := b.serveOverridden(redis)
	b.Logf("overrides: %d of them on %d daemons, %d changes", count, len(daemons), changes)
	daemons[0].importOverrides(count - changes)
	stop := loadAll(daemons)
	defer func() { _ = stop() }()
	slowest := b.change(daemons, changes)
	harness.Check(stop())
	b.Find("an override is in force on 3 daemons under load, of 100,000", "≤ 1 s after its answer, each of them",
		slowest <= time.Second, "the slowest of %d after %.2f s", changes, slowest.Seconds())

	redis.Kill()
	harness.Check(redis.Restart())
	restarted := time.Now()
	redistest.WaitFor(b, "all overrides are in Redis", func() bool {
		n, err := strconv.Atoi(harness.Must(redis.Command("HLEN", "p:overrides")))
		return err == nil && n >= count
	})
	b.Find("Redis is killed and restarts empty", "the daemons write all overrides again", true, "%d after %.1f s", count, time.Since(restarted).Seconds())
}

// serveOverridden starts the daemons.
func (b *bench) serveOverridden(redis *redistest.Server) (all []overridden) {
	timeout := harness.Scale(b.Run, "1s", "10s") // a test is not about a Redis that is late
	rules := b.file("overridden/bench.yaml", overrideRules)
	for range 3 {
		admin := freeAddr()
		p := b.serve("http", "--admin", admin, "--rules", rules, "--store", "redis://"+redis.Addr, "--redis-timeout", timeout)
		b.awaitListener(p, admin) // it is opened after that of the HTTP API
		all = append(all, overridden{p, admin, harness.Must(client.New("http://"+p.addr, nil))})
	}
	return all
}

// importOverrides bans users that send no requests.
func (d overridden) importOverrides(count int) {
	const importSize = 10_000 // the most in one import
	for first := 0; first < count; first += importSize {
		var table strings.Builder
		table.WriteString("rule,key,limit\n")
		for i := first; i < min(first+importSize, count); i++ {
			fmt.Fprintf(&table, "edge/user,other-%d,ban\n", i)
		}
		d.put("text/csv", table.String())
	}
}

// put sets overrides.
func (d overridden) put(contentType, body string) {
	request := harness.Must(http.NewRequest(http.MethodPut, "http://"+d.admin+"/v1/overrides?reason=benchmark", strings.NewReader(body)))
	request.Header.Set("Content-Type", contentType)
	response := harness.Must(http.DefaultClient.Do(request))
	defer func() { _ = response.Body.Close() }()
	if text, _ := io.ReadAll(response.Body); response.StatusCode != http.StatusOK {
		harness.Check(fmt.Errorf("PUT /v1/overrides: %s: %s", response.Status, text))
	}
}

// takes reports whether a user's request is granted.
func (d overridden) takes(user string) (bool, error) {
	entries := []client.Entry{{Key: "user", Value: user}}
	response, err := d.client.Do(context.Background(), client.TakeRequest{Domain: "edge", Cost: 1, Descriptors: []client.Descriptor{{Entries: entries}}})
	return response.Allowed, err
}

// change bans one user after the other, on one daemon after the other, and returns the
// longest time from an answer to a denial by the last daemon.
func (b *bench) change(daemons []overridden, changes int) (slowest time.Duration) {
	for i := range changes {
		user := fmt.Sprintf("banned-%d", i)
		if allowed, err := daemons[0].takes(user); !allowed || err != nil {
			harness.Check(fmt.Errorf("%s before the ban: allowed is %t, %w", user, allowed, err))
		}
		daemons[i%len(daemons)].put("application/json", fmt.Sprintf(`{"rule": "edge/user", "key": %q, "limit": "ban", "reason": "benchmark"}`, user))
		banned := time.Now()
		for _, d := range daemons {
			redistest.WaitFor(b, user+" is banned at "+d.addr, func() bool { return !harness.Must(d.takes(user)) })
		}
		slowest = max(slowest, time.Since(banned))
	}
	return slowest
}

// loadAll sends requests to all daemons until it is stopped, and returns the errors of callers.
func loadAll(daemons []overridden) (stop func() error) {
	return harness.Background(func(stopped func() bool) error {
		_, err := harness.Concurrently(len(daemons)*overrideCallers, func(caller int) error {
			for n := 0; !stopped(); n++ {
				allowed, err := daemons[caller%len(daemons)].takes(fmt.Sprintf("user-%d-%d", caller, n%1000))
				if err != nil || !allowed {
					return fmt.Errorf("a request of the load: allowed is %t, %w", allowed, err)
				}
			}
			return nil
		})
		return err
	})
}
