package main

import (
	"fmt"
	"strconv"
	"strings"
)

// A serverStats is the parsed INFO of a server.
type serverStats struct {
	keys, expires int
	memory        int                 // bytes in use
	cpu           float64             // seconds, of the system's too
	commands      map[string]cmdStats // by name, in lower case
}

// cmdStats are the counters of one command, including calls from scripts.
type cmdStats struct {
	calls, micros, failed int
}

func (s *server) stats() (serverStats, error) {
	text, err := s.command("INFO", "everything")
	if err != nil {
		return serverStats{}, err
	}
	return parseServerStats(text)
}

func parseServerStats(text string) (serverStats, error) {
	c := serverStats{commands: map[string]cmdStats{}}
	var err error
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		command, isCommand := strings.CutPrefix(name, "cmdstat_")
		switch {
		case name == "used_memory":
			c.memory, err = strconv.Atoi(value)
		case name == "used_cpu_user", name == "used_cpu_sys":
			var seconds float64
			seconds, err = strconv.ParseFloat(value, 64)
			c.cpu += seconds
		case name == "db0":
			f := fields(value)
			c.keys, c.expires = f["keys"], f["expires"]
		case isCommand:
			f := fields(value)
			c.commands[command] = cmdStats{f["calls"], f["usec"], f["failed_calls"] + f["rejected_calls"]}
		}
		if err != nil {
			return c, fmt.Errorf("INFO has %s:%s: %w", name, value, err)
		}
	}
	return c, nil
}

// fields parses a list such as keys=3,expires=3,avg_ttl=7, and ignores values that are
// not integers.
func fields(list string) map[string]int {
	f := map[string]int{}
	for _, pair := range strings.Split(list, ",") {
		name, value, _ := strings.Cut(pair, "=")
		f[name], _ = strconv.Atoi(value)
	}
	return f
}

// since returns the difference.
func (c serverStats) since(before serverStats) serverStats {
	d := serverStats{
		keys: c.keys - before.keys, expires: c.expires - before.expires,
		memory: c.memory - before.memory, cpu: c.cpu - before.cpu,
		commands: map[string]cmdStats{},
	}
	for name, s := range c.commands {
		b := before.commands[name]
		d.commands[name] = cmdStats{s.calls - b.calls, s.micros - b.micros, s.failed - b.failed}
	}
	return d
}

// failed counts the commands that ended in an error.
func (c serverStats) failed() int {
	n := 0
	for _, s := range c.commands {
		n += s.failed
	}
	return n
}
