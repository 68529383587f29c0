package main

import (
	"fmt"
	"strconv"
	"strings"
)

// A census is what a server says about itself at one moment.
type census struct {
	keys, expires int
	memory        int                 // bytes in use
	cpu           float64             // seconds, of the system's too
	commands      map[string]cmdStats // by name, in lower case
}

// cmdStats is what became of one command, whoever sent it: scripts too.
type cmdStats struct {
	calls, micros, failed int
}

func (s *server) census() (census, error) {
	text, err := s.ask("INFO", "everything")
	if err != nil {
		return census{}, err
	}
	return parseCensus(text)
}

func parseCensus(text string) (census, error) {
	c := census{commands: map[string]cmdStats{}}
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
			return c, fmt.Errorf("INFO says %s:%s: %w", name, value, err)
		}
	}
	return c, nil
}

// fields reads a list such as keys=3,expires=3,avg_ttl=7; what is not a whole
// number in it is not needed.
func fields(list string) map[string]int {
	f := map[string]int{}
	for _, pair := range strings.Split(list, ",") {
		name, value, _ := strings.Cut(pair, "=")
		f[name], _ = strconv.Atoi(value)
	}
	return f
}

// since returns what has changed.
func (c census) since(before census) census {
	d := census{
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
func (c census) failed() int {
	n := 0
	for _, s := range c.commands {
		n += s.failed
	}
	return n
}
