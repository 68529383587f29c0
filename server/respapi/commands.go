package respapi

import (
	"strings"
)

// A command is one that clients can send.
type command struct {
	name    string // in lower case
	arity   int    // words, the name included; at least so many if negative
	write   bool   // whether it changes what is stored
	lastKey    int    // of the words that are keys, from the first; 0 if none are
	withoutAuth  bool   // whether it is for those, too, who have yet to say who they are
	redisCell    bool   // whether it is redis-cell's: errors are its own, and it settles what waits
	summary string
	run     func(*conn, [][]byte)
}

var (
	commands   []*command // as they are listed
	commandsByName     map[string]*command
	clThrottle *command // most that are sent are this one
)

func init() {
	commands = []*command{
		{name: "cl.throttle", arity: -5, write: true, lastKey: 1, redisCell: true, run: (*conn).throttle, summary: "Takes from the token bucket of a key."},
		{name: "get", arity: 2, lastKey: 1, run: (*conn).get, summary: "Tells when the bucket of a key will be full again, in nanoseconds."},
		{name: "ttl", arity: 2, lastKey: 1, run: (*conn).ttl, summary: "Tells in how many seconds the bucket of a key will be full again."},
		{name: "pttl", arity: 2, lastKey: 1, run: (*conn).pttl, summary: "Tells in how many milliseconds the bucket of a key will be full again."},
		{name: "exists", arity: -2, lastKey: -1, run: (*conn).exists, summary: "Counts the keys whose buckets are not full."},
		{name: "type", arity: 2, lastKey: 1, run: (*conn).keyType, summary: "Tells whether the bucket of a key is not full."},
		{name: "del", arity: -2, write: true, lastKey: -1, run: (*conn).del, summary: "Fills the buckets of keys."},
		{name: "unlink", arity: -2, write: true, lastKey: -1, run: (*conn).del, summary: "Fills the buckets of keys."},
		{name: "flushall", arity: -1, write: true, run: (*conn).rejectFlush, summary: "Is refused."},
		{name: "flushdb", arity: -1, write: true, run: (*conn).rejectFlush, summary: "Is refused."},
		{name: "ping", arity: -1, run: (*conn).ping, summary: "Answers."},
		{name: "echo", arity: 2, run: (*conn).echo, summary: "Answers with the same."},
		{name: "hello", arity: -1, withoutAuth: true, run: (*conn).hello, summary: "Chooses the protocol."},
		{name: "auth", arity: -2, withoutAuth: true, run: (*conn).auth, summary: "Logs in with the token."},
		{name: "select", arity: 2, run: (*conn).selectDB, summary: "Chooses the only database, 0."},
		{name: "client", arity: -2, run: (*conn).client, summary: "Tells and asks about this connection."},
		{name: "reset", arity: 1, withoutAuth: true, run: (*conn).reset, summary: "Makes the connection as good as new."},
		{name: "quit", arity: -1, withoutAuth: true, run: (*conn).quit, summary: "Closes the connection."},
		{name: "command", arity: -1, run: (*conn).command, summary: "Tells about commands."},
		{name: "config", arity: -2, run: (*conn).config, summary: "Tells a few settings."},
		{name: "info", arity: -1, run: (*conn).info, summary: "Tells about the server."},
		{name: "cluster", arity: -2, run: (*conn).replyNoCluster, summary: "Says that this is no cluster."},
		{name: "readonly", arity: 1, run: (*conn).replyNoCluster, summary: "Says that this is no cluster."},
	}
	commandsByName = make(map[string]*command, len(commands))
	for _, cmd := range commands {
		commandsByName[cmd.name] = cmd
	}
	clThrottle = commandsByName["cl.throttle"]
}

// maxCommandName is the length of the longest name of a command.
const maxCommandName = 11

// findCommand returns the command of a name, or nil.
func findCommand(name []byte) *command {
	switch {
	case string(name) == "CL.THROTTLE" || string(name) == "cl.throttle":
		return clThrottle
	case len(name) > maxCommandName:
		return nil
	}
	var lower [maxCommandName]byte
	for i, b := range name {
		if 'A' <= b && b <= 'Z' {
			b |= 0x20
		}
		lower[i] = b
	}
	return commandsByName[string(lower[:len(name)])]
}

// execute does what a command says.
func (c *conn) execute(args [][]byte) {
	if len(args) == 0 {
		return
	}
	c.executed++
	cmd := findCommand(args[0])
	if cmd == nil || !cmd.redisCell {
		c.flushBatch()
	}
	switch {
	case (cmd == nil || c.parser.inline) && c.isHTTP(args):
		c.closing = true
	case !c.session.authenticated && (cmd == nil || !cmd.withoutAuth):
		c.out.error(noAuth)
	case cmd == nil:
		c.replyUnknown(args)
	case !cmd.acceptsArgs(len(args)):
		c.replyWrongArity(cmd.name)
	default:
		cmd.run(c, args)
	}
}

// acceptsArgs reports whether the command can have so many words.
func (cmd *command) acceptsArgs(words int) bool {
	switch {
	case cmd.redisCell:
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

func (c *conn) replyUnknown(args [][]byte) {
	var b strings.Builder
	b.WriteString("ERR unknown command '" + printable(args[0][:min(len(args[0]), 128)]) + "', with args beginning with: ")
	for _, arg := range args[1:] {
		if b.Len() > 128 {
			break
		}
		b.WriteString("'" + printable(arg[:min(len(arg), 128)]) + "' ")
	}
	c.out.error(b.String())
}

func (c *conn) replyWrongArity(name string) {
	c.out.error("ERR wrong number of arguments for '" + name + "' command")
}

func (c *conn) replyNoCluster([][]byte) {
	c.out.error("ERR This instance has cluster support disabled")
}

// command is COMMAND and its subcommands.
func (c *conn) command(args [][]byte) {
	if len(args) == 1 {
		c.replyCommandInfo(commands)
		return
	}
	chosen := findCommands(args[2:])
	switch strings.ToUpper(string(args[1])) {
	case "COUNT":
		c.out.integer(int64(len(commands)))
	case "LIST":
		c.out.arrayHeader(len(commands))
		for _, cmd := range commands {
			c.out.text(cmd.name)
		}
	case "INFO":
		c.replyCommandInfo(chosen)
	case "DOCS":
		c.replyCommandDocs(chosen)
	default:
		c.out.error("ERR unknown subcommand '" + string(args[1]) + "'. Try COMMAND COUNT, LIST, INFO or DOCS.")
	}
}

// findCommands returns the commands of some names, with nil for those there are not, or
// all of them.
func findCommands(names [][]byte) []*command {
	if len(names) == 0 {
		return commands
	}
	chosen := make([]*command, len(names))
	for i, name := range names {
		chosen[i] = findCommand(name)
	}
	return chosen
}

// replyCommandInfo tells what a client that routes commands by their keys needs.
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

// replyCommandDocs tells what redis-cli shows as a hint.
func (c *conn) replyCommandDocs(list []*command) {
	known := 0
	for _, cmd := range list {
		if cmd != nil {
			known++
		}
	}
	c.out.mapHeader(known)
	for _, cmd := range list {
		if cmd == nil {
			continue
		}
		c.out.text(cmd.name)
		c.out.mapHeader(2)
		c.out.text("summary")
		c.out.text(cmd.summary)
		c.out.text("group")
		c.out.text("generic")
	}
}
