package algorithm

import (
	_ "embed" // for the scripts
	"strings"
)

// A Step is an algorithm as it runs inside Redis. Its script lies beside the Go
// file of the same name, and decides the same: given the state that the script
// found, the Go step tells the caller what the script did.
//
// There is one Step more than there are algorithms, because a fixed window that
// begins with a key's first request needs no clock but the key's own expiry.
type Step byte

// The steps, by the letters that a script knows them by.
const (
	TokenBucketStep   Step = 't'
	LeakyBucketStep   Step = 'l'
	FixedWindowStep   Step = 'f'
	AlignedWindowStep Step = 'a'
	SlidingWindowStep Step = 's'
	RollingWindowStep Step = 'r'
	SlidingLogStep    Step = 'g'
)

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
	//go:embed once.lua
	onceScript string
	//go:embed many.lua
	manyScript string
	//go:embed takeall.lua
	takeAllScript string
)

// Script returns the script that takes one step.
func (s Step) Script() string {
	head, body := s.parts()
	return without(head+oneKey+body, isDry)
}

// oneKey is what stands between the parts of a step for one key.
const oneKey = "local key = KEYS[1]\n"

// isDry reports whether a line is only for steps that are tried.
func isDry(code string) bool { return strings.HasPrefix(code, "if ARGV.dry then return") }

// within returns the step as part of another script.
func (s Step) within() string {
	head, body := s.parts()
	return without(head+oneKey+body, func(code string) bool { return strings.HasSuffix(code, "-- alone") })
}

// OnceScript returns the script that takes one step under an ID.
func (s Step) OnceScript() string {
	return "local function step(KEYS, ARGV)\n" + s.within() + "end\n" + without(onceScript, nil)
}

// ManyScript returns the script that takes one step for each of several keys. What
// does not depend on the key is worked out once.
func (s Step) ManyScript() string {
	head, body := s.parts()
	return without(head+"local function step(key)\n"+body+"end\n"+manyScript, isDry)
}

// TakeAllScript returns the script that takes several of the given steps as one.
func TakeAllScript(steps []Step) string {
	var b strings.Builder
	b.WriteString("local steps = {}\n")
	for _, s := range steps {
		b.WriteString("steps." + string(s) + " = function(KEYS, ARGV)\n" + s.within() + "end\n")
	}
	b.WriteString(without(takeAllScript, nil))
	return b.String()
}

// parts returns what a step does before it knows the key, and what it does then.
func (s Step) parts() (head, body string) {
	head, body, _ = strings.Cut(s.text(), line+" each\n")
	return head, body
}

func (s Step) text() string {
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
	}
	return slidingLogScript
}

// line begins the lines that part a script.
const line = "----------------------------------------"

// bucketScript puts what is special about a bucket into what both have in
// common: its rule where that is decided, and what it returns at the end.
func bucketScript(own string) string {
	rule, returns, _ := strings.Cut(own, line+"\n")
	return strings.Replace(rateScript, line+" decide\n", rule, 1) + returns
}

// without leaves out comments, which Redis would only have to keep, and lines of
// code that the script does not need where it is used.
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
