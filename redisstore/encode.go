package redisstore

import (
	"math/rand/v2"
	"strconv"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/redisstore/internal/script"
)

// A compiledRequest holds what is needed to encode a request's call and to decode
// its reply.
type compiledRequest struct {
	limit     *compiledLimit
	ask       algorithm.Request // the cost, and what may be granted of it
	once      bool              // whether an ID makes sure that it is charged once
	settle    bool              // whether it makes what the ID was charged equal to the cost
	permit    string            // of a concurrency limit: the hash of the ID
	recordTTL int64             // how long a grant under the ID is remembered, in ticks
}

// askOf returns what a request asks for. Requests of the same ask are batched, so it has
// no KeepFree where that is ignored.
func askOf(r *penstock.Request) algorithm.Request {
	ask := algorithm.Request{Cost: r.Cost, AtMost: r.AtMost, Overdraw: r.Overdraw, MaxDelay: int64(r.MaxDelay), NewID: r.NewID}
	if r.Cost > 0 && !r.Overdraw && !r.Settle {
		ask.KeepFree = r.KeepFree
	}
	return ask
}

// encodeKeys validates a request, compiles it, and writes the keys of its call. A
// grant under an ID is remembered for recordTTL ticks, or if that is 0, for as long as
// the limit says.
func (s *Store) encodeKeys(q *compiledRequest, c *Call, r *penstock.Request, recordTTL int64) (err error) {
	if err = r.ValidateShape(); err != nil { // the limit is validated once, when it is compiled
		return err
	}
	if q.limit, err = s.limits.get(r.Limit); err != nil {
		return err
	}
	q.ask, q.once, q.settle = askOf(r), r.ID != "" && (r.Cost != 0 || r.Settle), r.Settle
	if q.recordTTL = recordTTL; recordTTL == 0 {
		q.recordTTL = q.limit.lifetimeOf(r)
	}
	state := stateKey(s.prefix, r.Key, q.limit.identity)
	c.Keys = append(c.Keys[:0], state)
	c.idempotent, q.permit = q.once, ""
	if q.once && q.limit.step == script.Concurrent {
		q.once, q.permit = false, permitOf(state, r.ID)
		c.idempotent = !r.NewID // a repeated take would find the permits of the first
	}
	if q.once {
		c.Keys = append(c.Keys, recordKey(s.prefix, state, r.ID))
	}
	return nil
}

// encodeArgs writes everything but the keys. Only this is repeated if Redis's
// time was outside the windows sent.
func (s *Store) encodeArgs(q *compiledRequest, c *Call) {
	cl := q.limit
	c.Reply, c.Err, c.Text, c.lastErr = c.Reply[:0], nil, false, nil
	cl.centerCalendar(s.redisMillis())
	switch {
	case q.once:
		c.Script = cl.scripts.once
		c.argsBuf = q.appendOnceArgs(c.argsBuf[:0])
		c.Args = c.argsBuf
	case q.permit != "":
		c.Script = cl.scripts.take
		c.argsBuf = cl.appendPermitArgs(q.ask, q.permit, c.argsBuf[:0])
		c.Args = c.argsBuf
	case q.ask == (algorithm.Request{Cost: 1}) && cl.step != script.AlignedWindow:
		c.Script = cl.scripts.take
		c.Args = cl.oneUnitArgs
	default:
		c.Script = cl.scripts.take
		c.argsBuf = cl.appendArgs(q.ask, c.argsBuf[:0])
		c.Args = c.argsBuf
	}
}

// appendOnceArgs appends the arguments of a request under an ID.
func (q *compiledRequest) appendOnceArgs(args []string) []string {
	cl, ask, how := q.limit, q.ask, ""
	switch {
	case q.settle:
		ask, how = cl.settleAsk(1), "s"
	case ask.Cost < 0:
		how = "r"
	case ask.Overdraw:
		how = "o"
	}
	args = cl.appendArgs(ask, args)
	if q.settle || ask.Cost < 0 {
		args[0] = formatUnits(q.ask.Cost)
	}
	unit, scale, most := cl.onceArgs[0], cl.onceArgs[1], cl.onceArgs[2]
	if q.settle || ask.Cost < 0 {
		return append(args, scale, most, unit, how)
	}
	return append(args, strconv.FormatInt(q.recordTTL, 10), unit, how)
}

// costArg returns the first of the arguments that appendOnceArgs appends for a take or a
// settlement.
func (q *compiledRequest) costArg() string {
	cl := q.limit
	switch {
	case q.settle:
		return formatUnits(q.ask.Cost)
	case cl.debtUnit != 0:
		return strconv.FormatInt(cl.scriptCost(q.ask)*cl.rate().Interval/cl.debtUnit, 10)
	}
	return strconv.FormatInt(cl.scriptCost(q.ask), 10)
}

// formatUnits returns a number of units that a script can count exactly.
func formatUnits(units int64) string {
	const most = 1<<53 - 1
	return strconv.FormatInt(min(max(units, -most), most), 10)
}

// settleAsk returns the ask for what a settlement charges: as a debt, or if the limit has
// none, what is left.
func (cl *compiledLimit) settleAsk(cost int64) algorithm.Request {
	hasDebt := cl.step != script.RollingWindow && cl.step != script.SlidingLog
	return algorithm.Request{Cost: cost, Overdraw: hasDebt, AtMost: !hasDebt}
}

// maxCharge is the most units that one request can charge, debt included.
func (cl *compiledLimit) maxCharge() int64 { return cl.capacity + cl.overdraft }

// lifetimeOf returns how long a grant to the request is remembered, in ticks.
func (cl *compiledLimit) lifetimeOf(r *penstock.Request) int64 {
	return max(cl.recordTTL, algorithm.RoundUp(int64(r.Hold), tick)/tick)
}

// redisMillis returns an estimate of Redis's time, in ticks.
func (s *Store) redisMillis() int64 { return s.now().UnixMilli() + s.clockOffset.Load() }

// setRedisMillis corrects the estimate.
func (s *Store) setRedisMillis(now int64) { s.clockOffset.Store(now - s.now().UnixMilli()) }

// setOnceArgs sets the arguments for records: what one unit costs in the script, how much
// debt time pays in a tick, and the most units that a settlement may add.
func (cl *compiledLimit) setOnceArgs() {
	unit, scale := int64(1), int64(0)
	if cl.debtUnit != 0 {
		unit, scale = cl.rate().Interval/cl.debtUnit, tick/cl.debtUnit
	}
	cl.onceArgs = [3]string(formatInts(unit, scale, cl.maxCharge()))
}

// appendArgs appends the script's arguments for an ask.
func (cl *compiledLimit) appendArgs(ask algorithm.Request, args []string) []string {
	switch cl.step {
	case script.TokenBucket, script.LeakyBucket:
		return cl.appendBucketArgs(ask, args)
	case script.AlignedWindow:
		return cl.appendAlignedArgs(ask, args)
	}
	args = append(args, strconv.FormatInt(cl.scriptCost(ask), 10))
	args = append(args, cl.limitArgs...)
	if cl.step == script.Concurrent { // without an ID, nothing is taken
		return args
	}
	how := grantArg(ask)
	if cl.step == script.RollingWindow || cl.step == script.SlidingLog || cl.debtArg == "" {
		if how != "" {
			args = append(args, how)
		}
		return args
	}
	return append(args, how, cl.debtArg)
}

// permitArg is the argument that names permits.
const permitArg = 2

// appendPermitArgs appends the script's arguments for an ask under the ID of permits.
func (cl *compiledLimit) appendPermitArgs(ask algorithm.Request, permit string, args []string) []string {
	args = append(args, strconv.FormatInt(cl.scriptCost(ask), 10))
	args = append(append(args, cl.limitArgs...), permit)
	if ask.Cost <= 0 {
		return args
	}
	args = append(args, cl.countArg)
	switch how := grantArg(ask); {
	case ask.NewID:
		return append(args, how, "1")
	case how != "":
		return append(args, how)
	}
	return args
}

// grantArg returns the argument of windows for what is granted if the cost does not
// fit, and what is kept free.
func grantArg(ask algorithm.Request) string {
	switch {
	case ask.KeepFree > 0 && ask.AtMost:
		return "1:" + strconv.FormatInt(ask.KeepFree, 10)
	case ask.KeepFree > 0:
		return "0:" + strconv.FormatInt(ask.KeepFree, 10)
	case ask.AtMost:
		return "1"
	case ask.Overdraw:
		return "o"
	}
	return ""
}

// scriptCost returns the cost to send. A cost that can never fit is sent as a peek,
// and no number is larger than a script can count.
func (cl *compiledLimit) scriptCost(ask algorithm.Request) int64 {
	switch {
	case ask.Cost < 0:
		return max(ask.Cost, -2*maxCount) // a count and its debt
	case cl.step == script.Concurrent:
		return ask.Cost // its script must find permits that this ID holds already
	case ask.Overdraw:
		return min(ask.Cost, cl.capacity+cl.overdraft)
	case ask.NeverFits(cl.capacity):
		return 0
	}
	return min(ask.Cost, cl.capacity)
}

// appendBucketArgs appends a charge in units of debt. Arguments that a plain take
// does not need are left out.
func (cl *compiledLimit) appendBucketArgs(ask algorithm.Request, args []string) []string {
	r := cl.rate()
	cost := cl.scriptCost(ask)
	if ask.Cost < 0 {
		cost = max(ask.Cost, -r.MaxDebt()/r.Interval-1)
	}
	args = append(args, strconv.FormatInt(cost*r.Interval/cl.debtUnit, 10))
	args = append(args, cl.limitArgs...)
	if !ask.AtMost && !ask.Overdraw && ask.MaxDelay == 0 && ask.KeepFree == 0 && cl.debtUnit == 1 && cl.debtArg == "" {
		return args
	}
	bound, interval, mark := cl.debtBound(ask), "", ""
	if ask.AtMost || ask.Overdraw {
		interval = strconv.FormatInt(r.Interval/cl.debtUnit, 10)
	}
	if cl.debtUnit != 1 {
		mark = "u"
	}
	args = append(args, bound, interval, mark)
	switch {
	case ask.Overdraw:
		return append(args, cl.debtArg, "1")
	case ask.KeepFree > 0:
		return append(args, cl.debtArg, "", strconv.FormatInt(min(ask.KeepFree, r.Burst)*r.Interval/cl.debtUnit, 10))
	case cl.debtArg != "":
		return append(args, cl.debtArg)
	}
	return args
}

// debtBound returns how far the debt of a token bucket may grow, or above which
// debt a leaky bucket's delay is too long.
func (cl *compiledLimit) debtBound(ask algorithm.Request) string {
	if ask.MaxDelay == 0 || ask.KeepFree > 0 && cl.step == script.TokenBucket {
		return ""
	}
	delay := algorithm.RoundDown(ask.MaxDelay, tick)
	if cl.step == script.LeakyBucket {
		return strconv.FormatInt(min(delay, cl.leaky.Capacity())/cl.debtUnit, 10)
	}
	return strconv.FormatInt((cl.token.Capacity()+min(delay, cl.token.Reach()))/cl.debtUnit, 10)
}

// extraTTLs are the times by which a key may outlive its window, in thousandths
// of the window. They keep the keys of one window from expiring at the same
// instant, and the expiry does not depend on when in the window the key was last
// written.
var extraTTLs = func() (thousandths [101]string) {
	for i := range thousandths {
		thousandths[i] = strconv.Itoa(i)
	}
	return thousandths
}()

func (cl *compiledLimit) appendAlignedArgs(ask algorithm.Request, args []string) []string {
	extra := extraTTLs[rand.IntN(len(extraTTLs))] //nolint:gosec // only jitter
	cost := strconv.FormatInt(cl.scriptCost(ask), 10)
	if ask.Cost == algorithm.Reset {
		cost = "all" // including windows that the clock could step back to
	}
	args = append(args, cost, cl.limitArgs[0], grantArg(ask), extra, cl.debtArg)
	if cl.normal.Align == penstock.AlignClock {
		return append(args, cl.limitArgs[1], cl.limitArgs[2])
	}
	args = append(args, "")
	if w := cl.calendar.Load(); w != nil {
		args = append(args, w.texts...)
	}
	return args
}
