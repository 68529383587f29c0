package harness

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os/exec"
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
func (b RedisBenchmark) Run(port int, command []string) (float64, error) {
	words := append([]string{
		"-p", strconv.Itoa(port), "--csv", "-c", strconv.Itoa(b.Connections), "-P", strconv.Itoa(b.Pipeline),
		"-n", strconv.Itoa(b.Requests), "-r", strconv.Itoa(b.Keys),
	}, command...)
	var stderr bytes.Buffer
	cmd := exec.Command("redis-benchmark", words...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return 0, fmt.Errorf("redis-benchmark: %w: %s", err, &stderr)
	}
	return benchmarkRate(out)
}

// Sent returns how many requests are sent: whole pipelines.
func (b RedisBenchmark) Sent() int { return (b.Requests + b.Pipeline - 1) / b.Pipeline * b.Pipeline }

// benchmarkRate returns the requests a second in the output of redis-benchmark --csv.
// The command is the first column, with unescaped quotes and commas.
func benchmarkRate(out []byte) (float64, error) {
	const columns = 8
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	last := lines[len(lines)-1]
	r := csv.NewReader(bytes.NewReader(last))
	r.LazyQuotes = true
	cells, err := r.Read()
	if err != nil || len(cells) < columns {
		return 0, fmt.Errorf("unexpected output of redis-benchmark: %q", last)
	}
	return strconv.ParseFloat(cells[len(cells)-columns+1], 64)
}

// Info is the INFO of a Redis server.
type Info struct {
	Keys, Expires int
	Memory        int                     // bytes in use
	CPU           float64                 // seconds, of the system's too
	Commands      map[string]CommandStats // by name, in lower case
}

// CommandStats are the counters of one command, including calls from scripts.
type CommandStats struct{ Calls, Micros, Failed int }

// InfoOf returns the INFO of a server.
func InfoOf(s *redistest.Server) Info {
	return Must(ParseInfo(Must(s.Command("INFO", "everything"))))
}

// ParseInfo parses the reply to INFO.
func ParseInfo(text string) (Info, error) {
	i := Info{Commands: map[string]CommandStats{}}
	var err error
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		command, isCommand := strings.CutPrefix(name, "cmdstat_")
		switch {
		case name == "used_memory":
			i.Memory, err = strconv.Atoi(value)
		case name == "used_cpu_user", name == "used_cpu_sys":
			var seconds float64
			seconds, err = strconv.ParseFloat(value, 64)
			i.CPU += seconds
		case name == "db0":
			f := infoFields(value)
			i.Keys, i.Expires = f["keys"], f["expires"]
		case isCommand:
			f := infoFields(value)
			i.Commands[command] = CommandStats{f["calls"], f["usec"], f["failed_calls"] + f["rejected_calls"]}
		}
		if err != nil {
			return i, fmt.Errorf("INFO has %s:%s: %w", name, value, err)
		}
	}
	return i, nil
}

// infoFields parses a list such as keys=3,expires=3,avg_ttl=7, and ignores values that are
// not integers.
func infoFields(list string) map[string]int {
	f := map[string]int{}
	for _, pair := range strings.Split(list, ",") {
		name, value, _ := strings.Cut(pair, "=")
		f[name], _ = strconv.Atoi(value)
	}
	return f
}

// Since returns the difference to an earlier one.
func (i Info) Since(before Info) Info {
	i.Keys -= before.Keys
	i.Expires -= before.Expires
	i.Memory -= before.Memory
	i.CPU -= before.CPU
	commands := map[string]CommandStats{}
	for name, c := range i.Commands {
		b := before.Commands[name]
		commands[name] = CommandStats{c.Calls - b.Calls, c.Micros - b.Micros, c.Failed - b.Failed}
	}
	i.Commands = commands
	return i
}

// Failed counts the commands that ended in an error.
func (i Info) Failed() (n int) {
	for _, c := range i.Commands {
		n += c.Failed
	}
	return n
}

// Scripts returns how many scripts the server has run, and for how many microseconds.
func (i Info) Scripts() (calls, micros int) {
	for _, name := range []string{"eval", "evalsha", "fcall"} {
		calls += i.Commands[name].Calls
		micros += i.Commands[name].Micros
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
