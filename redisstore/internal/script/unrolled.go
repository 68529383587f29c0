package script

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// MaxUnrolled is the most steps of an unrolled script: a function in Lua has at most 200
// local variables.
const MaxUnrolled = 5

// TakeAllBatch returns the script that takes the given steps, in this order and all
// or nothing, for each of several requests without an ID, under one or several sets of limits. No
// step is of permits.
func TakeAllBatch(steps []Step) string { return unroll(steps, true) }

// TakeEachBatch returns the script that takes the given steps, in this order and
// independently, for each of several requests without an ID, under one or several sets of limits.
// No step is of permits.
func TakeEachBatch(steps []Step) string { return unroll(steps, false) }

// unroll returns a script with the steps one after the other, each with variables of its
// own: a function or a table for each step would cost Redis as much as a command.
func unroll(steps []Step, allOrNothing bool) string {
	var all unrolledStep
	for i, s := range steps {
		u := s.unroll(strconv.Itoa(i+1), allOrNothing)
		all = unrolledStep{all.head + u.head, all.decide + u.decide, all.write + u.write, all.reply + u.reply}
	}
	if strings.Contains(all.head, sharedTime) {
		all.head = "local " + sharedTime + " = " + readTime + "\n" + all.head
	}
	return without(strings.NewReplacer(
		separator+" heads\n", all.head,
		separator+" decide\n", all.decide,
		separator+" write\n", all.write,
		separator+" reply\n", all.reply,
		"#steps", strconv.Itoa(len(steps)),
	).Replace(prelude+strings.ReplaceAll(read("arguments.lua"), tryFields, "")+read("unrolled.lua")), isIDLine)
}

// tryFields makes room for what a step needs that is tried first, or under an ID.
const tryFields = ", dry = false, due = false"

// sharedTime is the variable for the time, which Redis is asked for once.
const sharedTime = "instant"

// An unrolledStep is a part of an unrolled script.
type unrolledStep struct{ head, decide, write, reply string }

// unroll returns the step with a suffix on each of its variables. Together with others, it
// is taken only if all fit.
func (s Step) unroll(suffix string, allOrNothing bool) unrolledStep {
	head, rest, _ := strings.Cut(s.renamed(suffix), separator+" each\n")
	decide, rest, _ := strings.Cut(rest, separator+" write\n")
	write, returns, _ := strings.Cut(rest, separator+" reply\n")
	u := unrolledStep{
		head: fmt.Sprintf("local overdraws%[1]s, ARGV%[1]s = ARGV[at] + 0 < 0, nil\n"+
			"ARGV%[1]s, at = arguments(at)\n", suffix) + head,
		decide: fmt.Sprintf("local reply%[1]s, list%[1]s = 0, nil\n"+
			"KEYS[%[1]s] = keys[from + %[1]s]\n", suffix) + without(decide, isTryLine),
		write: "do\n" + write + assign(suffix, returns) + "end\n",
		reply: fmt.Sprintf("if list%[1]s then m = add(m, list%[1]s) else m = m + 1 all[m] = reply%[1]s end\n", suffix),
	}
	if allOrNothing {
		granted := s.Grant + suffix
		u.decide += fmt.Sprintf("if %[2]s == 0 and asked%[1]s > 0 and not overdraws%[1]s then fits = false end\n", suffix, granted)
		u.write = "if not fits then " + granted + " = 0 end\n" + u.write
	}
	return u
}

// renamed returns the source of the step with variables of its own. The scripts that are loaded when a store is opened
// have each step in the same place several times.
func (s Step) renamed(suffix string) string {
	type key struct {
		Step
		suffix string
	}
	if source, found := renamedSources.Load(key{s, suffix}); found {
		return source.(string)
	}
	source := raisedError.ReplaceAllString(s.source(), "error({err = $1})")
	source = strings.ReplaceAll(source, "return {-1,", "error {-1,") // the other sections go on
	source = rename(strings.NewReplacer(readTime, sharedTime, "KEYS[1]", "KEYS["+suffix+"]").Replace(source), suffix)
	renamedSources.Store(key{s, suffix}, source)
	return source
}

var renamedSources sync.Map // of at most MaxUnrolled for each step

// raisedError is how a step returns an error.
var raisedError = regexp.MustCompile(`return redis\.error_reply\(('[^']*')\)`)

// assign turns return statements, all but the last of them conditional, into assignments: of a
// number to reply, and of a list to list.
func assign(suffix, returns string) string {
	var b strings.Builder
	depth := 0
	for line := range strings.Lines(without(returns, isIDLine)) {
		line = strings.TrimSuffix(strings.TrimSpace(line), alone)
		before, value, found := strings.Cut(line, "return ")
		variable := "reply" + suffix
		if strings.HasPrefix(value, "{") {
			variable = "list" + suffix
		}
		switch value, conditional := strings.CutSuffix(value, " end"); {
		case !found:
			b.WriteString(line + "\n")
		case conditional:
			depth++
			b.WriteString(before + variable + " = " + value + " else\n")
		default:
			b.WriteString(variable + " = " + value + "\n")
		}
	}
	return b.String() + strings.Repeat("end ", depth) + "\n"
}

// rename appends a suffix to the step's arguments, and to each variable that it declares.
func rename(source, suffix string) string {
	own := map[string]bool{"ARGV": true}
	for _, names := range declaration.FindAllStringSubmatch(source, -1) {
		for name := range strings.SplitSeq(names[1], ",") {
			own[strings.TrimSpace(name)] = true
		}
	}
	return token.ReplaceAllStringFunc(source, func(word string) string {
		if own[word] {
			return word + suffix
		}
		return word
	})
}

// declaration matches the names that a statement declares, and token a comment, a string, a
// field or a name.
var (
	declaration = regexp.MustCompile(`\blocal (?:function )?(\w+(?:, \w+)*)`)
	token       = regexp.MustCompile(`--.*|'[^']*'|\.\w+|\w+`)
)
