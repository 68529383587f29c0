package respapi

import (
	"strings"
)

// A command is one that clients can send.
type command struct {
	name    string // in lower case
	arity   int    // words, the name included; at least so many if negative
	write   bool   // whether it changes what is stored
	last    int    // of the words that are keys, from the first; 0 if none are
	always  bool   // whether it is for those, too, who have yet to say who they are
	cell    bool   // whether it is redis-cell's: errors are its own, and it settles what waits
	summary string
	run     func(*conn, [][]byte)
}

var (
	commands   []*command // as they are listed
	byName     map[string]*command
	clThrottle *command // most that are sent are this one
)

func init() {
	commands = []*command{
		{name: "cl.throttle", arity: -5, write: true, last: 1, cell: true, run: (*conn).throttle, summary: "Takes from the token bucket of a key."},
		{name: "get", arity: 2, last: 1, run: (*conn).get, summary: "Tells when the bucket of a key will be full again, in nanoseconds."},
		{name: "ttl", arity: 2, last: 1, run: (*conn).ttl, summary: "Tells in how many seconds the bucket of a key will be full again."},
		{name: "pttl", arity: 2, last: 1, run: (*conn).pttl, summary: "Tells in how many milliseconds the bucket of a key will be full again."},
		{name: "exists", arity: -2, last: -1, run: (*conn).exists, summary: "Counts the keys whose buckets are not full."},
		{name: "type", arity: 2, last: 1, run: (*conn).keyType, summary: "Tells whether the bucket of a key is not full."},
		{name: "del", arity: -2, write: true, last: -1, run: (*conn).del, summary: "Fills the buckets of keys."},
		{name: "unlink", arity: -2, write: true, last: -1, run: (*conn).del, summary: "Fills the buckets of keys."},
		{name: "flushall", arity: -1, write: true, run: (*conn).flush, summary: "Is refused."},
		{name: "flushdb", arity: -1, write: true, run: (*conn).flush, summary: "Is refused."},
		{name: "ping", arity: -1, run: (*conn).ping, summary: "Answers."},
		{name: "echo", arity: 2, run: (*conn).echo, summary: "Answers with the same."},
		{name: "hello", arity: -1, always: true, run: (*conn).hello, summary: "Chooses the protocol."},
		{name: "auth", arity: -2, always: true, run: (*conn).auth, summary: "Logs in with the token."},
		{name: "select", arity: 2, run: (*conn).selectDB, summary: "Chooses the only database, 0."},
		{name: "client", arity: -2, run: (*conn).client, summary: "Tells and asks about this connection."},
		{name: "reset", arity: 1, always: true, run: (*conn).resetAll, summary: "Makes the connection as good as new."},
		{name: "quit", arity: -1, always: true, run: (*conn).quit, summary: "Closes the connection."},
		{name: "command", arity: -1, run: (*conn).command, summary: "Tells about commands."},
		{name: "config", arity: -2, run: (*conn).config, summary: "Tells a few settings."},
		{name: "info", arity: -1, run: (*conn).info, summary: "Tells about the server."},
		{name: "cluster", arity: -2, run: (*conn).cluster, summary: "Says that this is no cluster."},
		{name: "readonly", arity: 1, run: (*conn).cluster, summary: "Says that this is no cluster."},
	}
	byName = make(map[string]*command, len(commands))
	for _, cmd := range commands {
		byName[cmd.name] = cmd
	}
	clThrottle = byName["cl.throttle"]
}

// maxName is the length of the longest name of a command.
const maxName = 11

// lookUp returns the command of a name, or nil.
func lookUp(name []byte) *command {
	switch {
	case string(name) == "CL.THROTTLE" || string(name) == "cl.throttle":
		return clThrottle
	case len(name) > maxName:
		return nil
	}
	var lower [maxName]byte
	for i, b := range name {
		if 'A' <= b && b <= 'Z' {
			b |= 0x20
		}
		lower[i] = b
	}
	return byName[string(lower[:len(name)])]
}

// obey does what a command says.
func (c *conn) obey(args [][]byte) {
	if len(args) == 0 {
		return
	}
	c.obeyed++
	cmd := lookUp(args[0])
	if cmd == nil || !cmd.cell {
		c.settle()
	}
	switch {
	case (cmd == nil || c.parser.inline) && c.isHTTP(args):
		c.leaving = true
	case !c.session.admitted && (cmd == nil || !cmd.always):
		c.out.fail(noAuth)
	case cmd == nil:
		c.unknown(args)
	case !cmd.takes(len(args)):
		c.wrongArity(cmd.name)
	default:
		cmd.run(c, args)
	}
}

// takes reports whether the command can have so many words.
func (cmd *command) takes(words int) bool {
	switch {
	case cmd.cell:
		return true
	case cmd.arity >= 0:
		return words == cmd.arity
	}
	return words >= -cmd.arity
}

// isHTTP reports whether this is no Redis client, but a browser that was talked into
// sending a request here. It must not get to the commands in its body.
func (c *conn) isHTTP(args [][]byte) bool {
	first := string(args[0])
	return strings.EqualFold(first, "POST") || strings.EqualFold(first, "Host:") ||
		c.parser.inline && strings.HasPrefix(string(args[len(args)-1]), "HTTP/")
}

func (c *conn) unknown(args [][]byte) {
	var b strings.Builder
	b.WriteString("ERR unknown command '" + printable(args[0][:min(len(args[0]), 128)]) + "', with args beginning with: ")
	for _, arg := range args[1:] {
		if b.Len() > 128 {
			break
		}
		b.WriteString("'" + printable(arg[:min(len(arg), 128)]) + "' ")
	}
	c.out.fail(b.String())
}

func (c *conn) wrongArity(name string) {
	c.out.fail("ERR wrong number of arguments for '" + name + "' command")
}

func (c *conn) cluster([][]byte) {
	c.out.fail("ERR This instance has cluster support disabled")
}

// command is COMMAND and its subcommands.
func (c *conn) command(args [][]byte) {
	if len(args) == 1 {
		c.listCommands(commands)
		return
	}
	chosen := choose(args[2:])
	switch strings.ToUpper(string(args[1])) {
	case "COUNT":
		c.out.integer(int64(len(commands)))
	case "LIST":
		c.out.array(len(commands))
		for _, cmd := range commands {
			c.out.text(cmd.name)
		}
	case "INFO":
		c.listCommands(chosen)
	case "DOCS":
		c.document(chosen)
	default:
		c.out.fail("ERR unknown subcommand '" + string(args[1]) + "'. Try COMMAND COUNT, LIST, INFO or DOCS.")
	}
}

// choose returns the commands of some names, with nil for those there are not, or
// all of them.
func choose(names [][]byte) []*command {
	if len(names) == 0 {
		return commands
	}
	chosen := make([]*command, len(names))
	for i, name := range names {
		chosen[i] = lookUp(name)
	}
	return chosen
}

// listCommands tells what a client that routes commands by their keys needs.
func (c *conn) listCommands(list []*command) {
	c.out.array(len(list))
	for _, cmd := range list {
		if cmd == nil {
			c.out.null()
			continue
		}
		c.out.array(10)
		c.out.text(cmd.name)
		c.out.integer(int64(cmd.arity))
		c.out.array(1)
		c.out.simple(cmd.flag())
		first, step := int64(0), int64(0)
		if cmd.last != 0 {
			first, step = 1, 1
		}
		c.out.integer(first)
		c.out.integer(int64(cmd.last))
		c.out.integer(step)
		for range 4 { // categories, tips, key specifications, subcommands
			c.out.array(0)
		}
	}
}

func (cmd *command) flag() string {
	if cmd.write {
		return "write"
	}
	return "readonly"
}

// document tells what redis-cli shows as a hint.
func (c *conn) document(list []*command) {
	known := 0
	for _, cmd := range list {
		if cmd != nil {
			known++
		}
	}
	c.out.pairs(known)
	for _, cmd := range list {
		if cmd == nil {
			continue
		}
		c.out.text(cmd.name)
		c.out.pairs(2)
		c.out.text("summary")
		c.out.text(cmd.summary)
		c.out.text("group")
		c.out.text("generic")
	}
}
