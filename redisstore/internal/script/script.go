// Package script assembles the Lua scripts that the store sends to Redis.
//
// A script takes one or several steps. A [Step] is an algorithm as it runs inside Redis, and makes the
// same decisions as the Go code in internal/algorithm. From
// the state that the script found, the Go code computes what the script decided. The other Lua
// files put steps together: under an ID, for several keys, all or nothing.
//
// Proxies of rented servers read a script before they pass it on. Some accept it only if each command is
// written as redis.call('GET', KEYS[1]): with the name of redis.call, a literal command, and where the command takes
// a key, KEYS with a number. It is the text that counts, so a step's KEYS may be a parameter, and a script for
// several keys puts one after the other in a KEYS of its own. Nor do all servers have unpack.
//
// The scripts as they are sent to Redis are in testdata. What they are sent and what they reply
// is at the top of the store's arguments.go.
package script

import (
	"embed"
	"strings"
)

// A Step is an algorithm as it runs inside Redis. The store has a table of them.
type Step struct {
	Name   string
	Letter string // in the arguments of [TakeAll]
	File   string // its Lua
	Within string // the file whose line "decide" the step's own file replaces, if any
	Grant  string // the variable for what is granted
}

//go:embed *.lua
var files embed.FS

// read returns a Lua file.
func read(name string) string {
	text, err := files.ReadFile(name)
	if err != nil { // names are constants: a new algorithm has no file yet
		panic("redisstore/internal/script: " + err.Error()) //nolint:forbidigo // no input can cause it
	}
	return string(text)
}

// Take returns the script that takes one step.
func (s Step) Take() string {
	head, body := s.parts()
	return without(prelude+head+body, isNestedLine)
}

// Once returns the script that takes one step under an ID. What only a recorded grant
// needs is behind the usual case, because each function costs Redis a quarter of a command.
func (s Step) Once() string {
	take, rest, _ := strings.Cut(read("once.lua"), separator+" record\n")
	freeze := freezeByKey
	if strings.Contains(s.source(), readTime) {
		freeze = freezeByTime
	}
	take = strings.Replace(take, separator+" freeze\n", freeze, 1)
	return without(prelude+read("instant.lua")+s.function("local function step")+take+read("record.lua")+rest, nil)
}

// OnceBatch returns the script that takes one step under an ID for each of several keys, all
// at one instant.
func (s Step) OnceBatch() string {
	arguments, take, _ := strings.Cut(read("once.lua"), separator+" freeze\n")
	take, rest, _ := strings.Cut(take, separator+" record\n")
	costs, each, _ := strings.Cut(read("oncebatch.lua"), separator+" each\n")
	return without(prelude+read("instant.lua")+read("record.lua")+s.function("local function step")+costs+arguments+freezeByTime+
		"local function once(KEYS, ARGV)\n"+take+rest+"end\n"+each, nil)
}

// The beginning of a script under an ID sets now. TIME costs Redis as much as PTTL and
// PEXPIRETIME, and a step that calls PTTL needs no other command then.
const (
	freezeByTime = "time = " + readTime + "\n" +
		"now = time[1] * 1000 + math.floor(time[2] / 1000)\n"
	freezeByKey = "rest = redis.call('PTTL', KEYS[1])\n" +
		"local expiry = rest > 0 and " + AskExpiry + "\n" +
		"if type(expiry) == 'number' then\n" +
		"now = expiry - rest\n" +
		"else\n" +
		"rest = nil\n" + freezeByTime + "end\n"
)

// Batch returns the script that takes one step for each of several keys.
// The part that does not depend on the key runs only once.
func (s Step) Batch() string {
	head, body := s.parts()
	body = strings.ReplaceAll(body, inBatch, "")
	return without(prelude+head+"local function step(KEYS, i)\n"+body+"end\n"+read("batch.lua"), isNestedLine)
}

// TakeAll returns the script that takes several of the given steps, all or nothing.
func TakeAll(steps []Step) string {
	script := without(prelude+read("instant.lua")+read("record.lua")+read("arguments.lua"), nil) + "local steps = {}\n"
	for _, s := range steps {
		script += s.function("steps." + s.Letter + " = function")
	}
	return script + without(read("takeall.lua"), nil)
}

// Mark returns the script that writes a marker to several keys, and Unmark the one that deletes it from one
// and tells whether it was there. The store probes servers with them.
func Mark() string   { return without(prelude+read("mark.lua"), nil) }
func Unmark() string { return without(prelude+read("unmark.lua"), nil) } //nolint:revive // see Mark

// function returns the step as a function for use inside another script, after instant.lua.
func (s Step) function(declaration string) string {
	return declaration + "(KEYS, ARGV)\n" + s.nested() + "end\n"
}

func (s Step) nested() string {
	head, body := s.parts()
	return atOneInstant.Replace(without(head+body, isAloneLine))
}

// atOneInstant replaces the commands that depend on the time by those of instant.lua.
var atOneInstant = strings.NewReplacer("redis.call('PTTL', KEYS[1])", "rest or pttl(KEYS)", readTime, "time or "+readTime, "redis.call('SET', KEYS[1],", "set(KEYS,", underID, "")

// These end the lines that only some scripts need: those of steps under an ID, of batches, of steps
// that must not fail after another has written, and of one step, or the same one for several keys.
const (
	underID  = " -- under an ID"
	inBatch  = " -- in a batch"
	together = " -- together"
	alone    = " -- alone"
)

// prelude begins every script: a local variable costs less than a global one.
const prelude = "local redis, KEYS, ARGV = redis, KEYS, ARGV\n"

// AskExpiry is how a script asks for a key's expiry, which it can do without.
const AskExpiry = "redis.pcall('PEXPIRETIME', KEYS[1])"

// readTime is how a step asks for the time.
const readTime = "redis.call('TIME')"

// isNestedLine reports whether a line is only for steps that can be tried without
// writing, that can be under an ID, or that must not fail after another has written.
func isNestedLine(code string) bool {
	return isTryLine(code) || strings.HasSuffix(code, together) || isIDLine(code) || strings.HasSuffix(code, inBatch)
}

// isTryLine reports whether a line is only for steps that can be tried without writing.
func isTryLine(code string) bool {
	return strings.HasPrefix(code, "if ARGV") && strings.Contains(code, ".dry then return")
}

// isIDLine reports whether a line is only for steps under an ID.
func isIDLine(code string) bool { return strings.HasSuffix(code, underID) }

// isAloneLine reports whether a line is only for scripts that consist of one
// step, or of the same one for several keys.
func isAloneLine(code string) bool {
	return strings.HasSuffix(code, alone) || strings.HasSuffix(code, inBatch)
}

// parts returns the part of a step that does not depend on the key, and the rest.
func (s Step) parts() (head, body string) {
	head, body, _ = strings.Cut(s.source(), separator+" each\n")
	return head, body
}

// source returns the Lua of a step. What two steps share is in one file, into which the step's own
// puts its rule and its return statement.
func (s Step) source() string {
	own := read(s.File)
	if s.Within == "" {
		return own
	}
	rule, returns, _ := strings.Cut(own, separator+"\n")
	return strings.Replace(read(s.Within), separator+" decide\n", rule, 1) + separator + " reply\n" + returns
}

// separator begins the lines that divide a Lua file into parts.
const separator = "----------------------------------------"

// without removes comments, which would only take memory in Redis, and the lines
// that needless selects.
func without(script string, needless func(code string) bool) string {
	var b strings.Builder
	for line := range strings.Lines(script) {
		code := strings.TrimSpace(line)
		if code == "" || strings.HasPrefix(code, "--") || needless != nil && needless(code) {
			continue
		}
		b.WriteString(line)
	}
	return b.String()
}
