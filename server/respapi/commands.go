package respapi

import (
	"strings"

	"github.com/penstock-io/penstock/server/internal/requestlog"
)

// A command is an entry of the command table.
type command struct {
	name        string // in lower case
	arity       int    // arguments including the name; the minimum if negative
	write       bool   // whether it changes the store
	lastKey     int    // index of the last key argument, -1 for all; 0 without keys
	withoutAuth bool   // whether it is allowed before AUTH
	batched     bool   // asks for a decision, in the batch of its pipeline: counts its arguments and flushes itself
	summary     string
	run         func(*conn, [][]byte)
}

var (
	commands       []*command // in the order of COMMAND LIST
	commandsByName map[string]*command
	clThrottle     *command // found without the map, as it is nearly every command
)

func init() {
	commands = []*command{
		{name: "cl.throttle", arity: -5, write: true, lastKey: 1, batched: true, run: (*conn).throttle, summary: "Takes from the token bucket of a key."},
		{name: "penstock.take", arity: -2, write: true, batched: true, run: (*conn).take, summary: "Takes units of a key under a limit, or by the rules of a domain. See PENSTOCK.TAKE HELP."},
		{name: "penstock.settle", arity: -2, write: true, batched: true, run: (*conn).take, summary: "Makes what was taken under an ID equal to what was used. See PENSTOCK.TAKE HELP."},
		{name: "get", arity: 2, lastKey: 1, run: (*conn).get, summary: "Returns when the bucket of a key will be full, in Unix nanoseconds."},
		{name: "ttl", arity: 2, lastKey: 1, run: (*conn).ttl, summary: "Returns the seconds until the bucket of a key is full."},
		{name: "pttl", arity: 2, lastKey: 1, run: (*conn).pttl, summary: "Returns the milliseconds until the bucket of a key is full."},
		{name: "exists", arity: -2, lastKey: -1, run: (*conn).exists, summary: "Counts the keys whose buckets are not full."},
		{name: "type", arity: 2, lastKey: 1, run: (*conn).keyType, summary: "Returns string for a key whose bucket is not full, none otherwise."},
		{name: "del", arity: -2, write: true, lastKey: -1, run: (*conn).del, summary: "Resets keys: their buckets are full again."},
		{name: "unlink", arity: -2, write: true, lastKey: -1, run: (*conn).del, summary: "Resets keys: their buckets are full again."},
		{name: "flushall", arity: -1, write: true, run: (*conn).rejectFlush, summary: "Disabled."},
		{name: "flushdb", arity: -1, write: true, run: (*conn).rejectFlush, summary: "Disabled."},
		{name: "ping", arity: -1, run: (*conn).ping, summary: "Returns PONG or the argument."},
		{name: "echo", arity: 2, run: (*conn).echo, summary: "Returns the argument."},
		{name: "hello", arity: -1, withoutAuth: true, run: (*conn).hello, summary: "Selects the protocol version."},
		{name: "auth", arity: -2, withoutAuth: true, run: (*conn).auth, summary: "Authenticates with the token."},
		{name: "select", arity: 2, run: (*conn).selectDB, summary: "Selects database 0, the only one."},
		{name: "client", arity: -2, run: (*conn).client, summary: "Gets and sets properties of this connection."},
		{name: "reset", arity: 1, withoutAuth: true, run: (*conn).reset, summary: "Resets the connection's session."},
		{name: "quit", arity: -1, withoutAuth: true, run: (*conn).quit, summary: "Closes the connection."},
		{name: "command", arity: -1, run: (*conn).command, summary: "Returns the commands."},
		{name: "config", arity: -2, run: (*conn).config, summary: "Returns a few settings."},
		{name: "info", arity: -1, run: (*conn).info, summary: "Returns information about the server."},
		{name: "cluster", arity: -2, run: (*conn).replyNoCluster, summary: "Fails: cluster support is disabled."},
		{name: "readonly", arity: 1, run: (*conn).replyNoCluster, summary: "Fails: cluster support is disabled."},
	}
	commandsByName = make(map[string]*command, len(commands))
	for _, cmd := range commands {
		commandsByName[cmd.name] = cmd
	}
	clThrottle = commandsByName["cl.throttle"]
}

// maxCommandName is the length of the longest command name.
const maxCommandName = 15

// findCommand returns the command with a name, in any case, or nil.
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

// execute runs one command and appends its reply.
func (c *conn) execute(args [][]byte) {
	if len(args) == 0 {
		return
	}
	c.executed++
	cmd := findCommand(args[0])
	if cmd == nil || !cmd.batched {
		c.flushBatch()
	} else {
		c.decides = true
	}
	switch {
	case (cmd == nil || c.parser.inline) && c.isHTTP(args):
		c.logInvalid(requestlog.Malformed, "a request of HTTP")
		c.closing = true
	case !c.session.authenticated && (cmd == nil || !cmd.withoutAuth):
		c.reject(requestlog.Forbidden, noAuth)
	case cmd == nil:
		c.replyUnknown(args)
	case !cmd.acceptsArgs(len(args)):
		c.replyWrongArity(cmd.name)
	default:
		c.served = c.served || cmd.batched || cmd.lastKey != 0
		cmd.run(c, args)
	}
}

// acceptsArgs reports whether the command accepts n arguments including its name.
func (cmd *command) acceptsArgs(n int) bool {
	switch {
	case cmd.batched:
		return true
	case cmd.arity >= 0:
		return n == cmd.arity
	}
	return n >= -cmd.arity
}

// isHTTP reports whether the command is part of an HTTP request, which a web page may
// have made a browser send here. The commands in its body must not run.
func (c *conn) isHTTP(args [][]byte) bool {
	first := string(args[0])
	return strings.EqualFold(first, "POST") || strings.EqualFold(first, "Host:") ||
		c.parser.inline && strings.HasPrefix(string(args[len(args)-1]), "HTTP/")
}

// ownPrefix begins the names of commands that Redis does not have. A command that peeks or
// resets is easily guessed, and PENSTOCK.TAKE does both.
const ownPrefix = "PENSTOCK."

func (c *conn) replyUnknown(args [][]byte) {
	// The log gets no arguments: a misspelt AUTH has a password.
	c.logInvalid(requestlog.NotFound, "unknown command "+printedWord(args[0]))
	var b strings.Builder
	b.WriteString("ERR unknown command '" + printedWord(args[0]) + "', with args beginning with: ")
	for _, arg := range args[1:] {
		if b.Len() > maxPrintedWord {
			break
		}
		b.WriteString("'" + printedWord(arg) + "' ")
	}
	if name := string(args[0]); len(name) > len(ownPrefix) && strings.EqualFold(name[:len(ownPrefix)], ownPrefix) {
		b.WriteString("; see PENSTOCK.TAKE HELP")
	}
	c.out.error(b.String())
}

func (c *conn) replyWrongArity(name string) {
	c.reject(requestlog.Arguments, "ERR wrong number of arguments for '"+name+"' command")
}
