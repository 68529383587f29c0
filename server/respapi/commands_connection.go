package respapi

import (
	"fmt"
	"strings"

	"github.com/penstock-io/penstock/server/callers"
	"github.com/penstock-io/penstock/server/internal/auth"
	"github.com/penstock-io/penstock/server/internal/requestlog"
)

// A session is the state that AUTH, HELLO and CLIENT set.
type session struct {
	name, libName, libVer string
	authenticated         bool // whether it may run all commands
	identity              callers.Identity
}

// resetSession sets the state of a new connection.
func (c *conn) resetSession() {
	c.session = session{authenticated: !c.server.options.RequireAuth}
	if c.session.authenticated {
		c.session.identity = c.server.engine.Identify(c.caller(""))
	}
	c.out.resp3 = false
	c.parser.unauthenticated = !c.session.authenticated
}

// mayRefund reports whether the client may reset keys, and has no ceilings for its limits.
func (c *conn) mayRefund() bool { return c.session.identity.MayRefund }

// caller returns the client as the engine knows it.
func (c *conn) caller(token string) callers.Caller {
	peer := c.net.RemoteAddr()
	return callers.Caller{Local: auth.IsLocalPeer(peer), Token: token, Address: auth.PeerAddr(peer)}
}

// login authenticates the connection if the password is a token of the engine, and the user
// is "default" or the name of the token.
func (c *conn) login(user, password string) bool {
	i := c.server.engine.Identify(c.caller(password))
	if !i.ByToken || user != "default" && user != i.Name {
		return false
	}
	c.session.authenticated, c.session.identity = true, i
	c.parser.unauthenticated = false
	return true
}

// Redis's error replies.
const (
	wrongPass  = "WRONGPASS invalid username-password pair or user is disabled."
	noAuth     = "NOAUTH Authentication required."
	noProto    = "NOPROTO unsupported protocol version"
	notInteger = "ERR value is not an integer or out of range"
	syntax     = "ERR syntax error"

	helloNoAuth = "NOAUTH HELLO must be called with the client already authenticated, otherwise the " +
		"HELLO <proto> AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time"
)

func (c *conn) auth(args [][]byte) {
	user, password := "default", string(args[len(args)-1])
	if len(args) == 3 {
		user = string(args[1])
	}
	switch {
	case len(args) > 3:
		c.out.error(syntax)
	case !c.login(user, password):
		c.rejectPassword()
	default:
		c.out.ok()
	}
}

// rejectPassword answers a login that failed. Where no password can be right, the reply says
// so, because a client that is configured with one gets no further.
func (c *conn) rejectPassword() {
	if !c.server.engine.HasToken() {
		c.reject(requestlog.Forbidden, "WRONGPASS the server has no token: connect without a password")
		return
	}
	c.reject(requestlog.Forbidden, wrongPass)
}

// hello answers HELLO [2|3 [AUTH user password] [SETNAME name]].
func (c *conn) hello(args [][]byte) {
	resp3, name := c.out.resp3, c.session.name
	if len(args) > 1 {
		if resp3 = string(args[1]) == "3"; !resp3 && string(args[1]) != "2" {
			c.out.error(noProto)
			return
		}
	}
	if !c.helloOptions(args[min(2, len(args)):], &name) {
		return
	}
	if !c.session.authenticated {
		c.reject(requestlog.Forbidden, helloNoAuth)
		return
	}
	c.out.resp3, c.session.name = resp3, name
	c.replyHello()
}

// helloOptions applies AUTH, stores the name of SETNAME, and reports whether all options
// are valid. If not, it appends the error.
func (c *conn) helloOptions(options [][]byte, name *string) bool {
	for len(options) > 0 {
		switch option := strings.ToUpper(string(options[0])); {
		case option == "AUTH" && len(options) >= 3:
			if !c.login(string(options[1]), string(options[2])) {
				c.rejectPassword()
				return false
			}
			options = options[3:]
		case option == "SETNAME" && len(options) >= 2:
			*name = string(options[1])
			if problem := problemOfName("Client names", *name); problem != "" {
				c.out.error(problem)
				return false
			}
			options = options[2:]
		default:
			c.out.error("ERR Syntax error in HELLO option '" + string(options[0]) + "'")
			return false
		}
	}
	return true
}

// replyHello appends the properties of server and connection.
func (c *conn) replyHello() {
	c.out.mapHeader(7)
	c.out.texts("server", "penstock", "version", redisVersion)
	c.out.field("proto", c.out.version())
	c.out.field("id", c.id)
	c.out.texts("mode", "standalone", "role", "master", "modules")
	c.out.arrayHeader(0)
}

// maxName is the longest name that a connection keeps: its client may have as many connections
// as the listener.
const maxName = 256

// problemOfName returns an error reply if a name has anything but printable ASCII without
// spaces, or is too long; otherwise "".
func problemOfName(what, name string) string {
	switch {
	case len(name) > maxName:
		return fmt.Sprintf("ERR %s cannot be longer than %d bytes.", what, maxName)
	case strings.ContainsFunc(name, func(r rune) bool { return r < '!' || r > '~' }):
		return "ERR " + what + " cannot contain spaces, newlines or special characters."
	}
	return ""
}

func (c *conn) ping(args [][]byte) {
	switch len(args) {
	case 1:
		c.out.simple("PONG")
	case 2:
		c.out.bulk(args[1])
	default:
		c.replyWrongArity("ping")
	}
}

func (c *conn) echo(args [][]byte) { c.out.bulk(args[1]) }

func (c *conn) quit([][]byte) {
	c.out.ok()
	c.closing = true
}

func (c *conn) reset([][]byte) {
	c.resetSession()
	c.out.simple("RESET")
}

// selectDB answers SELECT. There is one database, 0.
func (c *conn) selectDB(args [][]byte) {
	switch n, ok := parseNatural(args[1]); {
	case !ok:
		c.out.error(notInteger)
	case n != 0:
		c.out.error("ERR DB index is out of range")
	default:
		c.out.ok()
	}
}

// client answers CLIENT and its subcommands.
func (c *conn) client(args [][]byte) {
	sub := strings.ToUpper(string(args[1]))
	switch rest := args[2:]; {
	case sub == "ID" && len(rest) == 0:
		c.out.integer(c.id)
	case sub == "GETNAME" && len(rest) == 0:
		c.getName()
	case sub == "SETNAME" && len(rest) == 1:
		c.setName(string(rest[0]))
	case sub == "SETINFO" && len(rest) == 2:
		c.setInfo(strings.ToUpper(string(rest[0])), string(rest[1]))
	case sub == "INFO" && len(rest) == 0, sub == "LIST":
		c.out.text(c.clientLine()) // LIST does not show other connections
	case (sub == "NO-EVICT" || sub == "NO-TOUCH") && len(rest) == 1:
		c.out.ok()
	case sub == "TRACKING" && len(rest) >= 1:
		c.out.ok() // no invalidation ever follows: client-side caching needs MULTI, which is not supported
	default:
		c.out.error(fmt.Sprintf("ERR unknown subcommand or wrong number of arguments for '%s'. Try CLIENT ID, GETNAME, SETNAME, SETINFO, INFO or LIST.", args[1]))
	}
}

func (c *conn) getName() {
	if c.session.name == "" {
		c.out.null()
		return
	}
	c.out.text(c.session.name)
}

func (c *conn) setName(name string) {
	if problem := problemOfName("Client names", name); problem != "" {
		c.out.error(problem)
		return
	}
	c.session.name = name
	c.out.ok()
}

func (c *conn) setInfo(option, value string) {
	switch problem := problemOfName(strings.ToLower(option), value); {
	case problem != "":
		c.out.error(problem)
	case option == "LIB-NAME":
		c.session.libName = value
		c.out.ok()
	case option == "LIB-VER":
		c.session.libVer = value
		c.out.ok()
	default:
		c.out.error("ERR Unrecognized option '" + option + "'")
	}
}

// clientLine returns the connection's line of CLIENT LIST.
func (c *conn) clientLine() string {
	s := &c.session
	return fmt.Sprintf("id=%d addr=%s laddr=%s name=%s db=0 user=default lib-name=%s lib-ver=%s resp=%d\n",
		c.id, c.net.RemoteAddr(), c.net.LocalAddr(), s.name, s.libName, s.libVer, c.out.version())
}
