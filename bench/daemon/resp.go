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

// A pressed server is one that redis-benchmark presses.
type pressed struct {
	server   *process
	words    []string // the command
	requests int      // a turn
	result
}

// resp measures CL.THROTTLE beside redis-server's own INCR, and beside the same
// decision by a script on redis-server.
func (b *bench) resp() error {
	redis, err := startRedis()
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
	incr := &pressed{server: redis, words: []string{"INCR", "key:__rand_int__"}}
	throttle := &pressed{server: daemon, words: []string{"CL.THROTTLE", "key:__rand_int__", "100000", "100000", "60"}}
	inScript := &pressed{server: redis, words: script}
	if err := throttle.prove(); err != nil {
		return err
	}
	if err := b.pressInTurns("CL.THROTTLE, redis-benchmark -c 50 -P 16", 16, incr, throttle, inScript); err != nil {
		return err
	}
	b.judgeRate(throttle, incr, 0.85, "redis-server's INCR")
	b.judgeRate(throttle, inScript, 2.5, "the token bucket's script on redis-server")
	if err := b.pressInTurns("CL.THROTTLE, redis-benchmark -c 50 -P 1", 1, incr, throttle); err != nil {
		return err
	}
	b.judgeRate(throttle, incr, 0.7, "redis-server's INCR")
	return nil
}

func (b *bench) judgeRate(p, other *pressed, least float64, than string) {
	ratio := measure.SpreadOf(measure.Ratios(p.rates, other.rates))
	b.findings.Add(p.title, fmt.Sprintf("≥ %v× %s", least, than), ratio.Median >= least, "%s", measure.TimesWithSpread(ratio))
}

// prove returns an error unless the server decides: a burst of one is spent by one.
func (p *pressed) prove() error {
	for _, want := range []string{"0 1 0", "1 1 0"} {
		out, err := exec.Command("redis-cli", "-p", portOf(p.server.addr), "CL.THROTTLE", "once", "0", "1", "60").CombinedOutput()
		if err != nil {
			return fmt.Errorf("redis-cli: %w: %s", err, out)
		}
		if got := strings.Join(strings.Fields(string(out)), " "); !strings.HasPrefix(got, want+" ") {
			return fmt.Errorf("CL.THROTTLE says %q, want it to begin with %q", got, want)
		}
	}
	return nil
}

func (b *bench) pressInTurns(title string, pipeline int, ps ...*pressed) error {
	b.say("%s: %d turns of %s for each of %d", title, b.pairs, b.turn, len(ps))
	for _, p := range ps {
		p.result = result{title: title, who: p.server.name + " " + p.words[0]}
		p.requests = 20_000
		rate, err := p.press(pipeline)
		if err != nil {
			return err
		}
		p.requests = max(int(rate*b.turn.Seconds()), 1000)
		p.rates, p.processor = nil, nil
	}
	for range b.pairs {
		for _, p := range ps {
			if _, err := p.press(pipeline); err != nil {
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

// press sends a turn's requests and returns the rate.
func (p *pressed) press(pipeline int) (float64, error) {
	before, err := p.server.processor()
	if err != nil {
		return 0, err
	}
	words := append([]string{
		"-p", portOf(p.server.addr), "--csv", "-c", "50", "-P", strconv.Itoa(pipeline),
		"-n", strconv.Itoa(p.requests), "-r", strconv.Itoa(keyCount),
	}, p.words...)
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
	p.processor = append(p.processor, float64((after-before)/time.Microsecond)/float64(p.requests))
	return rate, err
}

// scriptWords returns the command by which the Redis store takes from the same
// bucket, by listening to it, and makes the server know its script.
func scriptWords(redis *process) ([]string, error) {
	l := &listener{}
	store, err := redisstore.New(l, nil)
	if err != nil {
		return nil, err
	}
	limit := penstock.PerMinute(100_000).WithBurst(100_001)
	_, err = store.Take(context.Background(), penstock.Request{Key: "__rand_int__", Limit: limit, Cost: 1})
	if !errors.Is(err, errOnlyListening) {
		return nil, fmt.Errorf("listening to the store: %w", err)
	}
	out, err := exec.Command("redis-cli", "-p", portOf(redis.addr), "SCRIPT", "LOAD", l.script.Text).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("redis-cli: %w: %s", err, out)
	}
	words := append([]string{"EVALSHA", l.script.SHA1, strconv.Itoa(len(l.keys))}, l.keys...)
	return append(words, l.args...), nil
}

// A listener is a client that hears what the store would send.
type listener struct {
	script     *redisstore.Script
	keys, args []string
}

var errOnlyListening = errors.New("only listening")

func (l *listener) Do(_ context.Context, calls []redisstore.Call) {
	c := &calls[0]
	l.script, l.keys, l.args = c.Script, slices.Clone(c.Keys), slices.Clone(c.Args)
	c.Err = errOnlyListening
}

func (l *listener) Info(context.Context) (map[string]string, error) {
	return map[string]string{"nobody": "redis_version:7.0.0\r\nmaxmemory_policy:noeviction\r\n"}, nil
}

func (l *listener) Sharded() bool { return false }
