package algorithm

import (
	_ "embed" // for the scripts
	"strings"
)

// A Step is an algorithm as it runs inside Redis. Its Lua file is next to the Go
// file of the same name, and both make the same decisions: from the state that
// the script found, the Go code computes what the script decided.
//
// There is one Step more than there are algorithms: fixed windows that begin at a
// key's first request have their own, which needs no clock but the key's expiry.
//
// The scripts as they are sent to Redis are in testdata/scripts.
type Step byte

// The steps, by the letters that name them in scripts.
const (
	TokenBucketStep   Step = 't'
	LeakyBucketStep   Step = 'l'
	FixedWindowStep   Step = 'f'
	AlignedWindowStep Step = 'a'
	SlidingWindowStep Step = 's'
	RollingWindowStep Step = 'r'
	SlidingLogStep    Step = 'g'
	ConcurrentStep    Step = 'c'
)

// Steps are all steps.
var Steps = [...]Step{
	TokenBucketStep, LeakyBucketStep, FixedWindowStep, AlignedWindowStep,
	SlidingWindowStep, RollingWindowStep, SlidingLogStep, ConcurrentStep,
}

// String returns the name of the step, such as token-bucket.
func (s Step) String() string {
	switch s {
	case TokenBucketStep:
		return "token-bucket"
	case LeakyBucketStep:
		return "leaky-bucket"
	case FixedWindowStep:
		return "fixed-window"
	case AlignedWindowStep:
		return "aligned fixed-window"
	case SlidingWindowStep:
		return "sliding-window"
	case RollingWindowStep:
		return "rolling-window"
	case SlidingLogStep:
		return "sliding-log"
	}
	return "concurrent"
}

var (
	//go:embed rate.lua
	rateScript string
	//go:embed tokenbucket.lua
	tokenBucketScript string
	//go:embed leakybucket.lua
	leakyBucketScript string
	//go:embed fixedwindow.lua
	fixedWindowScript string
	//go:embed alignedwindow.lua
	alignedWindowScript string
	//go:embed slidingwindow.lua
	slidingWindowScript string
	//go:embed rollingwindow.lua
	rollingWindowScript string
	//go:embed slidinglog.lua
	slidingLogScript string
	//go:embed concurrent.lua
	concurrentScript string
	//go:embed instant.lua
	instantScript string
	//go:embed record.lua
	recordScript string
	//go:embed once.lua
	onceScript string
	//go:embed oncebatch.lua
	onceBatchScript string
	//go:embed batch.lua
	batchScript string
	//go:embed takeall.lua
	takeAllScript string
	//go:embed unrolled.lua
	unrolledScript string
)

// TakeScript returns the script that takes one step.
func (s Step) TakeScript() string {
	head, body := s.parts()
	return without(head+keyLine+body, isNestedLine)
}

// OnceScript returns the script that takes one step under an ID. What only a recorded grant
// needs is behind the usual case, because each function costs Redis a quarter of a command.
func (s Step) OnceScript() string {
	take, rest, _ := strings.Cut(onceScript, separator+" record\n")
	freeze := freezeByKey
	if strings.Contains(s.source(), "call('TIME')") {
		freeze = freezeByTime
	}
	take = strings.Replace(take, separator+" freeze\n", freeze, 1)
	return without(instantScript+"local function step(KEYS, ARGV)\n"+s.nested()+"end\n"+take+recordScript+rest, nil)
}

// OnceBatchScript returns the script that takes one step under an ID for each of several keys, all
// at one instant.
func (s Step) OnceBatchScript() string {
	arguments, take, _ := strings.Cut(onceScript, separator+" freeze\n")
	take, rest, _ := strings.Cut(take, separator+" record\n")
	costs, each, _ := strings.Cut(onceBatchScript, separator+" each\n")
	return without(instantScript+recordScript+"local function step(KEYS, ARGV)\n"+s.nested()+"end\n"+costs+arguments+freezeByTime+
		"local function once(KEYS, ARGV)\n"+take+rest+"end\n"+each, nil)
}

// The beginning of a script under an ID sets now. TIME costs Redis as much as PTTL and
// PEXPIRETIME, and a step that calls PTTL needs no other command then.
const (
	freezeByTime = "time = call('TIME')\n" +
		"now = time[1] * 1000 + math.floor(time[2] / 1000)\n"
	freezeByKey = "rest = call('PTTL', KEYS[1])\n" +
		"local expiry = rest > 0 and redis.pcall('PEXPIRETIME', KEYS[1])\n" +
		"if type(expiry) == 'number' then\n" +
		"now = expiry - rest\n" +
		"else\n" +
		"rest = nil\n" + freezeByTime + "end\n"
)

// BatchScript returns the script that takes one step for each of several keys.
// The part that does not depend on the key runs only once.
func (s Step) BatchScript() string {
	head, body := s.parts()
	body = strings.ReplaceAll(body, inBatch, "")
	return without(head+"local function step(key, i)\n"+body+"end\n"+batchScript, isNestedLine)
}

// TakeAllScript returns the script that takes several of the given steps, all or
// nothing.
func TakeAllScript(steps []Step) string {
	var b strings.Builder
	b.WriteString(without(instantScript+recordScript, nil) + "local steps = {}\n")
	for _, s := range steps {
		b.WriteString("steps." + string(s) + " = function(KEYS, ARGV)\n" + s.nested() + "end\n")
	}
	b.WriteString(without(takeAllScript, nil))
	return b.String()
}

// nested returns the step for use inside another script, after instant.lua.
func (s Step) nested() string {
	head, body := s.parts()
	return atOneInstant.Replace(without(head+keyLine+body, isAloneLine))
}

// atOneInstant replaces the commands that depend on the time by those of instant.lua.
var atOneInstant = strings.NewReplacer("call('PTTL', key)", "rest or pttl(key)", "call('TIME')", "time or call('TIME')", "call('SET', key,", "set(key,", underID, "")

// underID ends the lines that are only for steps under an ID, and inBatch those that are only
// for batches.
const (
	underID = " -- under an ID"
	inBatch = " -- in a batch"
)

// keyLine is inserted between the two parts of a step that has one key.
const keyLine = "local key = KEYS[1]\n"

// isNestedLine reports whether a line is only for steps that can be tried without
// writing, that can be under an ID, or that must not fail after another has written.
func isNestedLine(code string) bool {
	return isTryLine(code) || strings.HasSuffix(code, "-- together") || isIDLine(code) || isBatchLine(code)
}

// isBatchLine reports whether a line is only for batches.
func isBatchLine(code string) bool { return strings.HasSuffix(code, inBatch) }

// isTryLine reports whether a line is only for steps that can be tried without writing.
func isTryLine(code string) bool {
	return strings.HasPrefix(code, "if ARGV") && strings.Contains(code, ".dry then return")
}

// isIDLine reports whether a line is only for steps under an ID.
func isIDLine(code string) bool { return strings.HasSuffix(code, underID) }

// isAloneLine reports whether a line is only for scripts that consist of one
// step, or of the same one for several keys.
func isAloneLine(code string) bool { return strings.HasSuffix(code, "-- alone") || isBatchLine(code) }

// parts returns the part of a step that does not depend on the key, and the rest.
func (s Step) parts() (head, body string) {
	head, body, _ = strings.Cut(s.source(), separator+" each\n")
	return head, body
}

func (s Step) source() string {
	switch s {
	case TokenBucketStep:
		return bucketScript(tokenBucketScript)
	case LeakyBucketStep:
		return bucketScript(leakyBucketScript)
	case FixedWindowStep:
		return fixedWindowScript
	case AlignedWindowStep:
		return alignedWindowScript
	case SlidingWindowStep:
		return slidingWindowScript
	case RollingWindowStep:
		return rollingWindowScript
	case SlidingLogStep:
		return slidingLogScript
	}
	return concurrentScript
}

// separator begins the lines that divide a Lua file into parts.
const separator = "----------------------------------------"

// bucketScript inserts a bucket's rule into the script that both buckets share,
// and appends its return statement.
func bucketScript(own string) string {
	rule, returns, _ := strings.Cut(own, separator+"\n")
	return strings.Replace(rateScript, separator+" decide\n", rule, 1) + separator + " reply\n" + returns
}

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
