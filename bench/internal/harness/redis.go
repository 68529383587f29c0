package harness

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/redistest"
	"github.com/penstock-io/penstock/redisstore"
)

// StartStore starts a server without persistence for the rest of the case, and opens a store on it.
func (r *Run) StartStore(timeout time.Duration) (*redistest.Server, *redisstore.Store) {
	server := redistest.StartForTest(r, redistest.Options{})
	return server, r.OpenStore("redis://"+server.Addr, timeout)
}

// OpenStore opens a store with its own client for the rest of the case.
func (r *Run) OpenStore(url string, timeout time.Duration) *redisstore.Store {
	store := Must(redisstore.Open(context.Background(), url, &redisstore.Options{Timeout: timeout}))
	r.Cleanup(store.Close)
	return store
}

// A RedisBenchmark is the settings of redis-benchmark.
type RedisBenchmark struct {
	Connections, Pipeline int
	Requests              int
	Keys                  int // of which each request takes one at random
}

// Run sends a command to the server at a port and returns the requests a second.
func (b RedisBenchmark) Run(port int, command []string) float64 {
	words := append([]string{
		"-p", strconv.Itoa(port), "--csv", "-c", strconv.Itoa(b.Connections), "-P", strconv.Itoa(b.Pipeline),
		"-n", strconv.Itoa(b.Requests), "-r", strconv.Itoa(b.Keys),
	}, command...)
	return Must(benchmarkRate(Output(exec.Command("redis-benchmark", words...))))
}

// Sent returns how many requests are sent: whole pipelines.
func (b RedisBenchmark) Sent() int { return (b.Requests + b.Pipeline - 1) / b.Pipeline * b.Pipeline }

// ratePattern finds the requests a second: the first of seven figures at the end of the output of
// redis-benchmark --csv, after the command, which has unescaped quotes and commas.
var ratePattern = regexp.MustCompile(`"([0-9.]+)"(?:,"[0-9.]+"){6}\s*$`)

func benchmarkRate(out string) (float64, error) {
	rate := ratePattern.FindStringSubmatch(out)
	if rate == nil {
		return 0, fmt.Errorf("unexpected output of redis-benchmark: %q", out)
	}
	return strconv.ParseFloat(rate[1], 64)
}

// Info is the numbers in the INFO of a Redis server, by name; those in lists such as db0:keys=3,expires=3 by
// the names of both, "db0.keys".
type Info map[string]float64

// InfoOf returns the INFO of a server.
func InfoOf(s *redistest.Server) Info { return ParseInfo(Must(s.Command("INFO", "everything"))) }

// ParseInfo parses the reply to INFO.
func ParseInfo(text string) Info {
	i := Info{}
	for line := range strings.Lines(text) {
		name, values, _ := strings.Cut(strings.TrimSpace(line), ":")
		for _, value := range strings.Split(values, ",") {
			field, number, inList := strings.Cut(value, "=")
			if !inList {
				field, number = "", value
			}
			if x, err := strconv.ParseFloat(number, 64); err == nil {
				i[strings.TrimSuffix(name+"."+field, ".")] = x
			}
		}
	}
	return i
}

// Since returns the difference to an earlier one.
func (i Info) Since(before Info) Info {
	d := Info{}
	for name, x := range i {
		d[name] = x - before[name]
	}
	for name, x := range before { // a database without keys has no line
		if _, still := i[name]; !still {
			d[name] = -x
		}
	}
	return d
}

// Keys and Expires are how many keys there are, and how many of them expire.
func (i Info) Keys() int    { return int(i["db0.keys"]) }
func (i Info) Expires() int { return int(i["db0.expires"]) }

// Processor returns the processor time, of the system's too, in microseconds.
func (i Info) Processor() float64 { return 1e6 * (i["used_cpu_user"] + i["used_cpu_sys"]) }

// Calls and Micros are how often a command was called, from scripts too, and for how many microseconds it ran.
func (i Info) Calls(command string) int  { return int(i["cmdstat_"+command+".calls"]) }
func (i Info) Micros(command string) int { return int(i["cmdstat_"+command+".usec"]) }

// Failed counts the commands that ended in an error.
func (i Info) Failed() (n int) {
	for name, x := range i {
		if strings.HasSuffix(name, ".failed_calls") || strings.HasSuffix(name, ".rejected_calls") {
			n += int(x)
		}
	}
	return n
}

// Scripts returns how many scripts the server has run, and for how many microseconds.
func (i Info) Scripts() (calls, micros int) {
	for _, name := range []string{"eval", "evalsha", "fcall"} {
		calls += i.Calls(name)
		micros += i.Micros(name)
	}
	return calls, micros
}

// StoreCall returns the call that the Redis store makes for a request.
func StoreCall(r penstock.Request) redisstore.Call {
	recorder := &recordingClient{}
	store := Must(redisstore.New(recorder, nil))
	if _, err := store.Take(context.Background(), r); !errors.Is(err, errRecorded) {
		Check(fmt.Errorf("recording the store's command: %w", err))
	}
	return recorder.call
}

// A recordingClient records what the store would send.
type recordingClient struct{ call redisstore.Call }

var errRecorded = errors.New("recorded, not sent")

func (r *recordingClient) Do(_ context.Context, calls []redisstore.Call) {
	c := &calls[0]
	r.call = redisstore.Call{Script: c.Script, Keys: slices.Clone(c.Keys), Args: slices.Clone(c.Args)}
	c.Err = errRecorded
}

func (r *recordingClient) Info(context.Context) (map[string]string, error) {
	return map[string]string{"node": "redis_version:7.0.0\r\nmaxmemory_policy:noeviction\r\n"}, nil
}

// Sharded keeps the store from looking for what a server behind it does with scripts.
func (r *recordingClient) Sharded() bool { return true }
