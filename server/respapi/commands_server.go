package respapi

import (
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// redisVersion is the Redis version reported to clients that choose features by it.
const redisVersion = "7.0.0"

// connLimits returns the connection limit and the number of rejected connections.
func (s *Server) connLimits() (limit int, rejected int64) {
	if l := s.options.Listener; l != nil {
		return l.Max(), l.Refused()
	}
	return 0, 0
}

// infoSections returns the sections of the reply to INFO, each under a line with its name.
func (s *Server) infoSections() []string {
	s.mu.Lock()
	open := len(s.conns)
	s.mu.Unlock()
	limit, rejected := s.connLimits()
	all := []string{
		fmt.Sprintf("# Server\nserver_name:penstock\nredis_version:%s\nredis_mode:standalone\nprocess_id:%d\nuptime_in_seconds:%d\n",
			redisVersion, os.Getpid(), int64(s.now().Sub(s.started)/time.Second)),
		fmt.Sprintf("# Clients\nconnected_clients:%d\nmaxclients:%d\n", open, limit),
		"# Persistence\nloading:0\n",
		fmt.Sprintf("# Stats\ntotal_connections_received:%d\ntotal_commands_processed:%d\nrejected_connections:%d\n",
			s.accepted.Load(), s.commands.Load(), rejected),
		"# Replication\nrole:master\nconnected_slaves:0\n",
		"# Cluster\ncluster_enabled:0\n",
	}
	if s.keyCounter != nil {
		all = append(all, fmt.Sprintf("# Keyspace\ndb0:keys=%d,expires=%[1]d,avg_ttl=0\n", s.keyCounter.Stats().Keys))
	}
	return all
}

// info answers INFO [section ...].
func (c *conn) info(args [][]byte) {
	wanted := map[string]bool{}
	for _, name := range args[1:] {
		wanted[strings.ToLower(string(name))] = true
	}
	all := len(args) == 1 || wanted["all"] || wanted["default"] || wanted["everything"]
	c.flushCounters() // so that the reply counts this command
	sections := slices.DeleteFunc(c.server.infoSections(), func(section string) bool {
		title, _, _ := strings.Cut(section, "\n")
		return !all && !wanted[strings.ToLower(strings.TrimPrefix(title, "# "))]
	})
	c.out.text(strings.ReplaceAll(strings.Join(sections, "\n"), "\n", "\r\n"))
}

// config answers CONFIG GET pattern ... for the settings that clients and benchmarks read.
func (c *conn) config(args [][]byte) {
	if !strings.EqualFold(string(args[1]), "GET") || len(args) < 3 {
		c.out.error("ERR only CONFIG GET is supported; settings come from penstock's flags, environment and file")
		return
	}
	limit, _ := c.server.connLimits()
	settings := [][2]string{
		{"appendonly", "no"},
		{"databases", "1"},
		{"maxclients", strconv.Itoa(limit)},
		{"save", ""},
		{"timeout", strconv.FormatInt(int64(c.server.timeouts[idle]/time.Second), 10)},
	}
	var found []string
	for _, s := range settings {
		if matchesAny(args[2:], s[0]) {
			found = append(found, s[0], s[1])
		}
	}
	c.out.mapHeader(len(found) / 2)
	c.out.texts(found...)
}

func matchesAny(patterns [][]byte, name string) bool {
	for _, p := range patterns {
		if ok, _ := path.Match(strings.ToLower(string(p)), name); ok { // an invalid pattern matches nothing
			return true
		}
	}
	return false
}

func (c *conn) replyNoCluster([][]byte) {
	c.out.error("ERR This instance has cluster support disabled")
}

// command answers COMMAND and its subcommands.
func (c *conn) command(args [][]byte) {
	if len(args) == 1 {
		c.replyCommandInfo(commands)
		return
	}
	selected := findCommands(args[2:])
	switch strings.ToUpper(string(args[1])) {
	case "COUNT":
		c.out.integer(int64(len(commands)))
	case "LIST":
		c.out.arrayHeader(len(commands))
		for _, cmd := range commands {
			c.out.text(cmd.name)
		}
	case "INFO":
		c.replyCommandInfo(selected)
	case "DOCS":
		c.replyCommandDocs(selected)
	default:
		c.out.error("ERR unknown subcommand '" + string(args[1]) + "'. Try COMMAND COUNT, LIST, INFO or DOCS.")
	}
}

// findCommands returns the commands with these names, nil for an unknown one, or all
// commands without names.
func findCommands(names [][]byte) []*command {
	if len(names) == 0 {
		return commands
	}
	selected := make([]*command, len(names))
	for i, name := range names {
		selected[i] = findCommand(name)
	}
	return selected
}

// replyCommandInfo replies with what a client needs to route commands by their keys.
func (c *conn) replyCommandInfo(list []*command) {
	c.out.arrayHeader(len(list))
	for _, cmd := range list {
		if cmd == nil {
			c.out.null()
			continue
		}
		c.out.arrayHeader(10)
		c.out.text(cmd.name)
		c.out.integer(int64(cmd.arity))
		c.out.arrayHeader(1)
		c.out.simple(cmd.flag())
		first, step := int64(0), int64(0)
		if cmd.lastKey != 0 {
			first, step = 1, 1
		}
		c.out.integer(first)
		c.out.integer(int64(cmd.lastKey))
		c.out.integer(step)
		for range 4 { // categories, tips, key specifications, subcommands
			c.out.arrayHeader(0)
		}
	}
}

func (cmd *command) flag() string {
	if cmd.write {
		return "write"
	}
	return "readonly"
}

// replyCommandDocs replies with the summaries that redis-cli shows as hints.
func (c *conn) replyCommandDocs(list []*command) {
	known := slices.DeleteFunc(slices.Clone(list), func(cmd *command) bool { return cmd == nil })
	c.out.mapHeader(len(known))
	for _, cmd := range known {
		c.out.text(cmd.name)
		c.out.mapHeader(2)
		c.out.texts("summary", cmd.summary, "group", "generic")
	}
}
