package redisstore

import (
	"math/rand/v2"
	"slices"
	"strconv"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/redisstore/internal/script"
)

// A stepRow is the Redis part of an algorithm: its Lua, what its script is sent, and what its reply means.
type stepRow struct {
	lua        script.Step
	hasRecords bool                                                       // whether a grant under an ID leaves a record; permits are their own
	replyLen   int                                                        // how many integers the script replies with, unless it packs them in one
	compile    func(*compiledLimit)                                       // sets the arithmetic, and the arguments that depend on the limit only
	appendRest func(cl *compiledLimit, args []string, a stepAsk) []string // of the arguments, after limitArgs
	unpack     func(cl *compiledLimit, packed int64, ask algorithm.Request, state []int64) []int64
	apply      func(cl *compiledLimit, state []int64, c change) (algorithm.Outcome, algorithm.Balance)
}

// stepRows has all that the store knows of each algorithm. There is one row more than there are algorithms: fixed
// windows that begin at a key's first request have their own, which needs no clock but the key's expiry.
var stepRows = [...]stepRow{
	{
		script.Step{Name: "token-bucket", Letter: "t", File: "tokenbucket.lua", Within: "rate.lua", Grant: "charge"},
		true, 1, compileTokenBucket, appendTokenArgs, unpackOne, applyToBucket,
	},
	{
		script.Step{Name: "leaky-bucket", Letter: "l", File: "leakybucket.lua", Within: "rate.lua", Grant: "charge"},
		true, 1, compileLeakyBucket, appendLeakyArgs, unpackOne, applyToBucket,
	},
	{
		script.Step{Name: "fixed-window", Letter: "f", File: "fixedwindow.lua", Grant: "cost"},
		true, 2, compileFixedWindow, appendOptions, unpackFixedWindow, applyToFixedWindow,
	},
	{
		script.Step{Name: "aligned fixed-window", Letter: "a", File: "alignedwindow.lua", Grant: "cost"},
		true, 3, compileAlignedWindow, appendAlignedArgs, unpackAlignedWindow, applyToFixedWindow,
	},
	{
		script.Step{Name: "sliding-window", Letter: "s", File: "slidingwindow.lua", Grant: "cost"},
		true, 2, compileSlidingWindow, appendOptions, unpackSlidingWindow, applyToSlidingWindow,
	},
	{
		script.Step{Name: "rolling-window", Letter: "r", File: "rollingwindow.lua", Grant: "cost"},
		true, 4, compileRollingWindow, appendOptions, unpackOne, readDecision,
	},
	{
		script.Step{Name: "sliding-log", Letter: "g", File: "slidinglog.lua", Grant: "cost"},
		true, 4, compileSlidingLog, appendOptions, unpackLog, readDecision,
	},
	{
		script.Step{Name: "concurrent", Letter: "c", File: "concurrent.lua", Grant: "granted"},
		false, 4, compileConcurrent, appendPermitArgs, unpackPermits, readDecision,
	},
}

// An arithmetic is that of a limit, whose step selects one of these. Logs, rings and permits are
// decided by their scripts.
type arithmetic struct {
	bucket interface {
		Decide(b algorithm.Bucket, now int64, ask algorithm.Request) (algorithm.Bucket, algorithm.Outcome)
	}
	fixed   algorithm.FixedWindow
	sliding algorithm.SlidingWindow
}

// stepOf returns the row of a normal limit.
func stepOf(n *penstock.Limit) int {
	name := n.Algorithm.String()
	if n.Align != penstock.AlignFirst {
		name = "aligned " + name
	}
	i := slices.IndexFunc(stepRows[:], func(r stepRow) bool { return r.lua.Name == name })
	if i < 0 { // a new algorithm
		panic("redisstore/steps.go: stepRows has no row for " + name) //nolint:forbidigo // no input can cause it
	}
	return i
}

// A change is what happens to a state: an ask is decided, or if there are units, those of a grant
// that time will have paid back at due, from now, are refunded. The zero change is a peek.
type change struct {
	ask        algorithm.Request
	units, due int64
}

// Buckets.

func compileTokenBucket(cl *compiledLimit) {
	cl.compileRate()
	cl.bucket = &algorithm.TokenBucket{Rate: cl.rate}
}

func compileLeakyBucket(cl *compiledLimit) {
	cl.compileRate()
	cl.bucket = &algorithm.LeakyBucket{Rate: cl.rate}
}

// compileRate chooses nanoseconds for a bucket's debt, or microseconds where Lua's numbers would
// not hold nanoseconds exactly.
func (cl *compiledLimit) compileRate() {
	r, _ := algorithm.NewRate(cl.normal.Count, int64(cl.normal.Period), cl.normal.Burst, cl.overdraft, tick)
	mark := ""
	cl.debtUnit = 1
	if 2*max(r.Capacity(), r.Overdraft*r.Interval) >= 1<<53 { // see algorithm.Interval
		cl.debtUnit, mark = 1000, "u"
	}
	cl.rate, cl.unit, cl.perTick = r, r.Interval/cl.debtUnit, tick/cl.debtUnit
	cl.minCost = -r.MaxDebt()/r.Interval - 1
	cl.limitArgs = formatInts(r.Capacity() / cl.debtUnit)
	cl.optionArgs = append(formatInts(cl.overdraft*cl.unit, cl.unit), mark)
	cl.alwaysOptions = cl.alwaysOptions || mark != ""
}

// appendTokenArgs appends how far the debt may grow, if units may be granted ahead.
func appendTokenArgs(cl *compiledLimit, args []string, a stepAsk) []string {
	if a.ask.MaxDelay == 0 || a.ask.KeepFree > 0 {
		return appendOptions(cl, args, a)
	}
	delay := min(algorithm.RoundDown(a.ask.MaxDelay, tick), cl.rate.Reach())
	return cl.appendBound(args, a, (cl.rate.Capacity()+delay)/cl.debtUnit)
}

// appendLeakyArgs appends above which debt a delay is too long, behind the units that the same
// call takes before.
func appendLeakyArgs(cl *compiledLimit, args []string, a stepAsk) []string {
	if a.ask.MaxDelay == 0 {
		return appendOptions(cl, args, a)
	}
	bound := int64(-1)
	if a.ask.Prior <= cl.rate.Burst {
		delay := min(algorithm.RoundDown(a.ask.MaxDelay, tick), cl.rate.Capacity())
		bound = (delay - a.ask.Prior*cl.rate.Interval) / cl.debtUnit
	}
	return cl.appendBound(args, a, bound)
}

func (cl *compiledLimit) appendBound(args []string, a stepAsk, bound int64) []string {
	args = append(append(args, cl.howArg(a.ask)), cl.optionArgs...)
	return append(args, strconv.FormatInt(bound, 10))
}

func applyToBucket(cl *compiledLimit, state []int64, c change) (out algorithm.Outcome, _ algorithm.Balance) {
	b := cl.bucketOf(state[0])
	if c.units > 0 {
		b, out = cl.rate.RefundDue(b, 0, c.units, c.due)
	} else {
		b, out = cl.bucket.Decide(b, 0, c.ask)
	}
	return out, cl.rate.Balance(b.Full)
}

// bucketOf returns the state of a bucket by its debt.
func (cl *compiledLimit) bucketOf(debt int64) algorithm.Bucket {
	return algorithm.Bucket{Full: debt * cl.debtUnit}
}

// Windows.

func compileFixedWindow(cl *compiledLimit) {
	cl.fixed = algorithm.FixedWindow{Count: cl.normal.Count, Overdraft: cl.overdraft, Tick: tick}
	cl.limitArgs = formatInts(cl.normal.Count, cl.period)
	cl.optionArgs = formatInts(cl.overdraft)
}

func compileAlignedWindow(cl *compiledLimit) {
	compileFixedWindow(cl)
	cl.limitArgs = cl.limitArgs[:1]
	cl.alwaysOptions, cl.changing = true, true
	cl.clockArgs = formatInts(cl.period, algorithm.RoundDown(int64(cl.normal.Offset), tick)/tick)
}

// appendAlignedArgs appends by how much a key outlives its window, in thousandths of the window,
// and the windows. Keys of one window must not all expire at the same instant, and the expiry must
// not depend on when in the window the key was last written.
func appendAlignedArgs(cl *compiledLimit, args []string, a stepAsk) []string {
	args = append(appendOptions(cl, args, a), strconv.Itoa(rand.IntN(maxExtraTTL))) //nolint:gosec // only jitter
	if cl.normal.Align == penstock.AlignClock {
		return append(args, cl.clockArgs...)
	}
	args = append(args, "")
	if w := cl.calendar.Load(); w != nil {
		args = append(args, w.texts...)
	}
	return args
}

// maxExtraTTL bounds by how many thousandths of a window its key outlives it, at random. Numbers below 100 become texts
// without an allocation.
const maxExtraTTL = 100

func unpackFixedWindow(cl *compiledLimit, packed int64, _ algorithm.Request, state []int64) []int64 {
	return append(state, packed/(cl.period+1), packed%(cl.period+1))
}

func unpackAlignedWindow(cl *compiledLimit, packed int64, ask algorithm.Request, state []int64) []int64 {
	return append(unpackFixedWindow(cl, packed, ask, state), endFromNow)
}

// endFromNow replaces the time in the state of an aligned window whose end is
// relative to now.
const endFromNow = -1

// overdrawnBit marks the counts of a sliding window that a charge overdrew.
const overdrawnBit = 1 << 52

func applyToFixedWindow(cl *compiledLimit, state []int64, c change) (out algorithm.Outcome, _ algorithm.Balance) {
	now, w := cl.windowOf(state)
	s := algorithm.Counter{Used: state[0], End: state[1] * tick}
	if c.units > 0 {
		s, out = cl.fixed.RefundDue(s, now, w, c.units, now+c.due)
	} else {
		s, out = cl.fixed.Decide(s, now, w, c.ask)
	}
	return out, cl.fixed.Balance(s, now)
}

// windowOf returns the time of a state and the window then. Times count from now, except those of
// aligned windows without endFromNow.
func (cl *compiledLimit) windowOf(state []int64) (now int64, w algorithm.Window) {
	switch {
	case cl.normal.Align == penstock.AlignFirst:
		return 0, algorithm.Window{End: cl.period * tick, Length: cl.period * tick}
	case state[2] == endFromNow:
		return 0, algorithm.Window{End: state[1] * tick, Length: state[1] * tick}
	}
	return state[2] * tick, cl.window(state[2])
}

func compileSlidingWindow(cl *compiledLimit) {
	cl.sliding = algorithm.SlidingWindow{Count: cl.normal.Count, Overdraft: cl.overdraft, Period: cl.period * tick, Tick: tick}
	cl.limitArgs = formatInts(cl.normal.Count, cl.period)
	cl.optionArgs = formatInts(cl.overdraft)
}

func unpackSlidingWindow(cl *compiledLimit, packed int64, _ algorithm.Request, state []int64) []int64 {
	return append(state, packed/(2*cl.period+1), packed%(2*cl.period+1))
}

func applyToSlidingWindow(cl *compiledLimit, state []int64, c change) (out algorithm.Outcome, _ algorithm.Balance) {
	counts, ttl := state[0], state[1]
	s := algorithm.Slide{
		Previous:  counts &^ overdrawnBit >> 26,
		Current:   counts & (1<<26 - 1),
		End:       (ttl - cl.period) * tick,
		Overdrawn: counts&overdrawnBit != 0,
	}
	if c.units > 0 {
		s, out = cl.sliding.RefundDue(s, 0, c.units, c.due)
	} else {
		s, out = cl.sliding.Decide(s, 0, c.ask)
	}
	return out, cl.sliding.Balance(s, 0)
}

// Rings, logs and permits are too long to be sent: their scripts reply with their decision.

// The entries of a log, buckets of a ring, or permits, that Redis reads and writes in the time
// of one step on a key that holds one number.
const (
	logEntriesPerStep  = 150
	permitsPerStep     = 40
	ringBucketsPerStep = 3
)

func compileRollingWindow(cl *compiledLimit) {
	w := algorithm.NewRollingWindow(cl.normal.Count, int64(cl.normal.Period), int64(cl.normal.Buckets), tick)
	cl.limitArgs = formatInts(cl.normal.Count, w.Length/tick, w.Buckets)
	cl.alwaysOptions = false
	cl.weight += cl.normal.Buckets / ringBucketsPerStep
}

func compileSlidingLog(cl *compiledLimit) {
	cl.limitArgs = formatInts(cl.normal.Count, cl.period)
	cl.alwaysOptions = false
	cl.weight += int(cl.normal.Count) / logEntriesPerStep
}

func compileConcurrent(cl *compiledLimit) {
	cl.limitArgs, cl.optionArgs = formatInts(cl.period), formatInts(cl.normal.Count)
	cl.weight += int(cl.normal.Count) / permitsPerStep
}

// appendPermitArgs appends the names of permits and how to take them. Without any it is a peek or
// a reset.
func appendPermitArgs(cl *compiledLimit, args []string, a stepAsk) []string {
	if a.permits == "" {
		return args
	}
	if args = append(args, a.permits); a.ask.Cost <= 0 {
		return args
	}
	args = append(args, cl.optionArgs...)
	switch how := cl.howArg(a.ask); {
	case a.ask.NewID:
		return append(args, how, "1")
	case how != "":
		return append(args, how)
	}
	return args
}

// unpackLog expands the units used of a log that has just granted the whole cost.
func unpackLog(cl *compiledLimit, packed int64, ask algorithm.Request, state []int64) []int64 {
	return append(state, cl.scriptCost(ask), packed, 0, cl.period)
}

// permitsRadix is above the permits that a key can have. In a reply of one number they are
// its lower part.
const permitsRadix = 16384

func unpackPermits(cl *compiledLimit, packed int64, ask algorithm.Request, state []int64) []int64 {
	return append(state, cl.scriptCost(ask), packed%permitsRadix, 0, packed/permitsRadix)
}

func unpackOne(_ *compiledLimit, packed int64, _ algorithm.Request, state []int64) []int64 {
	return append(state, packed)
}

// neverWait is the wait for permits that can never be granted.
const neverWait = -1

// readDecision returns the decision that a script has made. That about a peek, which asks for nothing, is
// always allowed.
func readDecision(cl *compiledLimit, reply []int64, c change) (out algorithm.Outcome, _ algorithm.Balance) {
	granted, used, wait, reset := reply[0], reply[1], reply[2], reply[3]
	switch {
	case c.ask == algorithm.Request{} && c.units == 0:
		out.Allowed = true
	case wait == neverWait || cl.hasRecords && c.ask.NeverFits(cl.capacity):
		out.RetryAfter = algorithm.Never
	default:
		out = algorithm.Outcome{Allowed: wait == 0, Granted: granted, RetryAfter: wait * tick}
	}
	return out, algorithm.Balance{Remaining: max(cl.normal.Count-used, 0), ResetAfter: reset * tick}
}
