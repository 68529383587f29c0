package redisproxy

import (
	"fmt"
	"slices"
	"strings"
)

// What Alibaba's proxy replies to a script that it refuses. The last two are assumed: no user has
// reported them.
const (
	badScript     = "ERR bad lua script for redis cluster, "
	badKey        = badScript + "all the keys that the script uses should be passed using the KEYS array, and KEYS should not be in expression"
	badName       = badScript + "first parameter of redis.call/redis.pcall must be a single literal string"
	badArity      = badScript + "redis.call/pcall, wrong number of arguments for '%s' command"
	badCommand    = badScript + "redis.call/pcall, unknown command '%s'"
	badExpression = badScript + "redis.call/pcall and unpack should not be in the arguments of another"
)

// CheckScript returns the error with which Alibaba's proxy refuses the text of a script, or "". The
// text counts, not what it does: every redis.call names its command by a literal, and where the
// command takes a key there is KEYS and a number. The version is that of the commands the proxy
// knows, such as 70 for 7.0. Where the rules are not known, it is as strict as can be.
func CheckScript(text string, version int) string {
	tokens := luaTokens(text)
	for i := range tokens {
		if tokens[i] != "redis" || i > 0 && tokens[i-1] == "." {
			continue
		}
		if refusal := checkUse(tokens[i+1:], version); refusal != "" {
			return refusal
		}
	}
	return ""
}

// checkUse checks what follows the name redis.
func checkUse(tokens []string, version int) string {
	if len(tokens) > 0 && tokens[0] == "[" {
		return badName // redis['call']
	}
	if len(tokens) < 2 || tokens[0] != "." || tokens[1] != "call" && tokens[1] != "pcall" {
		return ""
	}
	if len(tokens) < 3 || tokens[2] != "(" {
		return badName // local call = redis.call
	}
	return checkCall(arguments(tokens[3:]), version)
}

// arguments splits what is between a parenthesis and the one that closes it.
func arguments(tokens []string) (list [][]string) {
	depth, begin := 0, 0
	for i, token := range tokens {
		switch {
		case strings.Contains("({[", token):
			depth++
		case depth > 0 && strings.Contains(")}]", token):
			depth--
		case token == ")":
			return append(list, tokens[begin:i])
		case depth == 0 && token == ",":
			list, begin = append(list, tokens[begin:i]), i+1
		}
	}
	return list // Redis refuses a text that is not Lua
}

// checkCall checks the arguments of redis.call.
func checkCall(arguments [][]string, version int) string {
	if len(arguments) == 0 || len(arguments[0]) != 1 || !isLiteral(arguments[0][0]) {
		return badName
	}
	name := strings.ToLower(arguments[0][0][1:])
	for _, argument := range arguments {
		if slices.Contains(argument, "unpack") || slices.Contains(argument, "call") || slices.Contains(argument, "pcall") {
			return badExpression
		}
	}
	c, known := commands[name]
	if !known || c.since > version {
		return fmt.Sprintf(badCommand, name)
	}
	if c.expires && version < 70 {
		c.arity = -c.arity // without NX, XX, GT and LT
	}
	if n := len(arguments); n < max(c.arity, -c.arity) || c.arity > 0 && n != c.arity {
		return fmt.Sprintf(badArity, name)
	}
	for i := 1; i <= c.keys(len(arguments)); i++ {
		if !isKey(arguments[i]) {
			return badKey
		}
	}
	return ""
}

// isKey reports whether an argument is KEYS and a number.
func isKey(argument []string) bool {
	return len(argument) == 4 && argument[0] == "KEYS" && argument[1] == "[" && strings.Trim(argument[2], "0123456789") == "" && argument[3] == "]"
}

// A command says how many arguments a command has, its name included, of which a negative number is
// the least; and how many of them from the second on are keys.
type command struct {
	arity   int
	many    bool // whether all arguments are keys
	none    bool // whether none is
	expires bool // whether it has an option only from version 7.0 on
	since   int
}

func (c command) keys(arguments int) int {
	switch {
	case c.none:
		return 0
	case c.many:
		return arguments - 1
	}
	return 1
}

// commands are those of which scripts of ours, or scripts that users reported, make use.
var commands = map[string]command{
	"append": {arity: 3}, "get": {arity: 2}, "getrange": {arity: 4}, "set": {arity: -3}, "setex": {arity: 4}, "psetex": {arity: 4},
	"setnx": {arity: 3}, "setrange": {arity: 4}, "strlen": {arity: 2}, "getdel": {arity: 2, since: 62}, "getex": {arity: -2, since: 62},
	"incr": {arity: 2}, "incrby": {arity: 3}, "decr": {arity: 2}, "decrby": {arity: 3}, "incrbyfloat": {arity: 3},
	"del": {arity: -2, many: true}, "unlink": {arity: -2, many: true}, "exists": {arity: -2, many: true}, "type": {arity: 2},
	"mget": {arity: -2, many: true}, "persist": {arity: 2}, "ttl": {arity: 2}, "pttl": {arity: 2},
	"expire": {arity: -3, expires: true}, "pexpire": {arity: -3, expires: true},
	"expireat": {arity: -3, expires: true}, "pexpireat": {arity: -3, expires: true},
	"expiretime": {arity: 2, since: 70}, "pexpiretime": {arity: 2, since: 70},
	"hdel": {arity: -3}, "hexists": {arity: 3}, "hget": {arity: 3}, "hgetall": {arity: 2}, "hincrby": {arity: 4}, "hincrbyfloat": {arity: 4},
	"hkeys": {arity: 2}, "hlen": {arity: 2}, "hmget": {arity: -3}, "hmset": {arity: -4}, "hscan": {arity: -3}, "hset": {arity: -4}, "hvals": {arity: 2},
	"lindex": {arity: 3}, "llen": {arity: 2}, "lpop": {arity: -2}, "lpush": {arity: -3}, "lrange": {arity: 4}, "lrem": {arity: 4},
	"ltrim": {arity: 4}, "rpop": {arity: -2}, "rpush": {arity: -3},
	"sadd": {arity: -3}, "scard": {arity: 2}, "sismember": {arity: 3}, "smembers": {arity: 2}, "srem": {arity: -3}, "sscan": {arity: -3},
	"zadd": {arity: -4}, "zcard": {arity: 2}, "zcount": {arity: 4}, "zincrby": {arity: 4}, "zrange": {arity: -4}, "zrangebyscore": {arity: -4},
	"zrank": {arity: -3}, "zrem": {arity: -3}, "zremrangebyrank": {arity: 4}, "zremrangebyscore": {arity: 4}, "zrevrange": {arity: -4}, "zscan": {arity: -3}, "zscore": {arity: 3},
	"publish": {arity: 3, none: true}, "time": {arity: 1, none: true}, "ping": {arity: -1, none: true},
}
