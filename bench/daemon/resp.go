package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/bench/internal/measure"
	"github.com/penstock-io/penstock/redisstore"
)

// A redisBenchmark is a command that redis-benchmark sends to a server.
type redisBenchmark struct {
	server   *process
	command  []string // the command
	requests int      // a turn
	result
}

// resp compares CL.THROTTLE with redis-server's own INCR, and with the same decision by
// a script on redis-server.
func (b *bench) resp() error {
	redis, err := newRedis(b.startServer)
	if err != nil {
		return err
	}
	defer redis.stop()
	daemon, err := b.serve("resp")
	if err != nil {
		return err
	}
	defer daemon.stop()
	script, err := scriptWords(redis)
	if err != nil {
		return err
	}
	incr := &redisBenchmark{server: redis, command: []string{"INCR", "key:__rand_int__"}}
	throttle := &redisBenchmark{server: daemon, command: []string{"CL.THROTTLE", "key:__rand_int__", "100000", "100000", "60"}}
	inScript := &redisBenchmark{server: redis, command: script}
	if err := throttle.verify(); err != nil {
		return err
	}
	if err := b.benchmarkInTurns("CL.THROTTLE, redis-benchmark -c 50 -P 16", 16, incr, throttle, inScript); err != nil {
		return err
	}
	b.addRateFinding(throttle, incr, 0.95, "redis-server's INCR")
	b.addRateFinding(throttle, inScript, 2.5, "the token bucket's script on redis-server")
	if err := b.benchmarkInTurns("CL.THROTTLE, redis-benchmark -c 50 -P 1", 1, incr, throttle); err != nil {
		return err
	}
	b.addRateFinding(throttle, incr, 0.7, "redis-server's INCR")
	return nil
}

func (b *bench) addRateFinding(p, other *redisBenchmark, least float64, than string) {
	ratio := measure.SpreadOf(measure.Ratios(p.rates, other.rates))
	b.findings.Add(p.title, fmt.Sprintf("≥ %v× %s", least, than), ratio.Median >= least, "%s", measure.TimesWithSpread(ratio))
}

// verify returns an error unless the server decides: of a burst of one, the second take is denied.
func (p *redisBenchmark) verify() error {
	for _, want := range []string{"0 1 0", "1 1 0"} {
		out, err := exec.Command("redis-cli", "-p", portOf(p.server.addr), "CL.THROTTLE", "once", "0", "1", "60").CombinedOutput()
		if err != nil {
			return fmt.Errorf("redis-cli: %w: %s", err, out)
		}
		if got := strings.Join(strings.Fields(string(out)), " "); !strings.HasPrefix(got, want+" ") {
			return fmt.Errorf("CL.THROTTLE replied %q, want it to begin with %q", got, want)
		}
	}
	return nil
}

func (b *bench) benchmarkInTurns(title string, pipeline int, ps ...*redisBenchmark) error {
	b.logf("%s: %d turns of %s for each of %d", title, b.pairs, b.turn, len(ps))
	for _, p := range ps {
		p.result = result{title: title, name: p.server.name + " " + p.command[0]}
		p.requests = 20_000
		rate, err := p.runTurn(pipeline)
		if err != nil {
			return err
		}
		p.requests = max(int(rate*b.turn.Seconds()), 1000)
		p.rates, p.serverCPU = nil, nil
	}
	for range b.pairs {
		for _, p := range ps {
			if _, err := p.runTurn(pipeline); err != nil {
				return err
			}
		}
	}
	for _, p := range ps {
		p.toFloor = measure.SpreadOf(measure.Ratios(p.rates, ps[0].rates))
		b.results = append(b.results, p.result)
	}
	return nil
}

// runTurn sends a turn's requests and returns the rate.
func (p *redisBenchmark) runTurn(pipeline int) (float64, error) {
	before, err := p.server.processor()
	if err != nil {
		return 0, err
	}
	words := append([]string{
		"-p", portOf(p.server.addr), "--csv", "-c", "50", "-P", strconv.Itoa(pipeline),
		"-n", strconv.Itoa(p.requests), "-r", strconv.Itoa(keyCount),
	}, p.command...)
	out, err := exec.Command("redis-benchmark", words...).Output()
	if err != nil {
		return 0, fmt.Errorf("redis-benchmark: %w: %s", err, out)
	}
	rate, err := measure.BenchmarkRate(out)
	if err != nil {
		return 0, err
	}
	after, err := p.server.processor()
	p.rates = append(p.rates, rate)
	p.serverCPU = append(p.serverCPU, float64((after-before)/time.Microsecond)/float64(p.requests))
	return rate, err
}

// scriptWords returns the command that the Redis store sends to take from the same
// bucket, and loads its script into the server.
func scriptWords(redis *process) ([]string, error) {
	l := &recordingClient{}
	store, err := redisstore.New(l, nil)
	if err != nil {
		return nil, err
	}
	limit := penstock.PerMinute(100_000).WithBurst(100_001)
	_, err = store.Take(context.Background(), penstock.Request{Key: "__rand_int__", Limit: limit, Cost: 1})
	if !errors.Is(err, errRecorded) {
		return nil, fmt.Errorf("recording the store's command: %w", err)
	}
	out, err := exec.Command("redis-cli", "-p", portOf(redis.addr), "SCRIPT", "LOAD", l.script.Text).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("redis-cli: %w: %s", err, out)
	}
	words := append([]string{"EVALSHA", l.script.SHA1, strconv.Itoa(len(l.keys))}, l.keys...)
	return append(words, l.args...), nil
}

// A recordingClient records what the store would send.
type recordingClient struct {
	script     *redisstore.Script
	keys, args []string
}

var errRecorded = errors.New("recorded, not sent")

func (l *recordingClient) Do(_ context.Context, calls []redisstore.Call) {
	c := &calls[0]
	l.script, l.keys, l.args = c.Script, slices.Clone(c.Keys), slices.Clone(c.Args)
	c.Err = errRecorded
}

func (l *recordingClient) Info(context.Context) (map[string]string, error) {
	return map[string]string{"node": "redis_version:7.0.0\r\nmaxmemory_policy:noeviction\r\n"}, nil
}

func (l *recordingClient) Sharded() bool { return false }
