package redisstore

import (
	"strconv"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
)

// The protocol between the store and its scripts: their arguments, which this file makes, and their
// replies, which replies.go reads. Package script assembles the scripts. Each has one of seven shapes,
// and takes one or several steps; the functions that depend on the step are in steps.go.
//
// # Arguments of a step
//
// Those in brackets are left out at the end, where a call needs none of them.
//
//	ARGV            1       2         3         4          5        6       7
//	token bucket    charge  capacity  [how      overdraft  unit     "u"     bound]
//	leaky bucket    charge  capacity  [how      overdraft  unit     "u"     bound]
//	fixed window    cost    count     period    [how       overdraft]
//	sliding window  cost    count     period    [how       overdraft]
//	rolling window  cost    count     length    buckets    [how]
//	sliding log     cost    count     period    [how]
//	aligned window  cost    count     how       overdraft  extra    length  offset
//	  by calendar   cost    count     how       overdraft  extra    ""      start, of each window
//	concurrent      cost    period    [permits  count      how      newID]
//
//	charge, capacity    a bucket's debt in nanoseconds, or with "u" in microseconds; and so its overdraft,
//	unit, bound         the cost of one unit, and how large the debt may be after the take (of a leaky bucket: before it)
//	cost                units; below 0 to refund, 0 to peek, "all" to reset an aligned window
//	how                 "" or 0: all or nothing; 1: AtMost; o: Overdraw; with :n, n units are kept free
//	extra               by how many thousandths of its window a key outlives it
//	permits             the hash of the ID, or in a batch those of all IDs
//	newID               1: deny an ID that holds permits
//
// All times are in milliseconds.
//
// # Reply of a step
//
// The state that the script found, from which the same step in Go works out what the script decided.
// Only rings, logs and permits are too long to be sent: their scripts reply with their decision.
//
//	buckets                          debt
//	fixed and sliding window         counts, time left                       } packed in one number
//	aligned window                   count, end, now                         } if that can hold them
//	  by calendar                    or -1, 0, now: it is in no window sent
//	sliding log, concurrent          granted, used, wait, time until empty   } and if all was granted
//	rolling window                   granted, used, wait, time until empty
//
// A wait of -1 is for ever.
//
// # Shapes
//
//	shape            KEYS             ARGV                           reply
//	take             state            step                           step
//	batch            state …          step                           for each: n; or -3 and a list; or -2
//	once             state record     step ttl unit how              [units delay] step
//	  settle, refund state record     step perTick most unit how     [units owed due] step
//	once batch       state record …   as once, then cost …           for each: length and numbers; or -2
//	take all         state … record … how ttl item …                 taken [units delay owed due] … step …
//	take all batch,  state …          section …                      for each: taken and steps as in a batch;
//	take each batch                                                  or -2
//
//	ttl         how long a grant under an ID is remembered; of take all, 0 without an ID
//	how         of once: s settles, r refunds, o overdraws, "" takes; of take all: 1 takes, 0 tries, s settles,
//	            2 cannot fit, but may renew permits
//	unit        what a unit costs the step; of take all, 0 if it is not recorded, -1 if it takes permits
//	perTick     how much of a bucket's debt time pays in a millisecond; 0 for a window
//	most        the most units that a settlement may add
//	[units …]   the record that was found under the ID, if any; of take all, for each item, -1 if none
//	item        letter, a capital to overdraw; with a ttl: unit perTick most; number of arguments to try with,
//	            these; number of arguments to take with, these; or 0 if they are the same
//	section     number of requests with these arguments, or "" for all that are left; 0 if none can fit, or 1;
//	            for each step the number of its arguments, negative to overdraw, and these
//	taken       1 if all were, or 0
//	-2          the step failed; sent again, alone, it returns its error

// A compiledRequest holds what is needed to encode a request's call and to decode
// its reply.
type compiledRequest struct {
	limit      *compiledLimit
	ask        algorithm.Request // the cost, and what may be granted of it
	settle     bool              // whether it makes what the ID was charged equal to the cost
	key        string            // in Redis
	record     string            // in Redis, of the ID that makes sure that it is charged once; or empty
	permits    string            // of a concurrency limit: the hash of the ID
	recordTTL  int64             // how long a grant under the ID is remembered, in ticks
	idempotent bool              // whether it is safe to repeat
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

// compile validates a request and compiles it. A grant under an ID is remembered for recordTTL
// ticks, or if that is 0, for as long as the limit says.
func (s *Store) compile(q *compiledRequest, r *penstock.Request, recordTTL int64) (err error) {
	if err = r.Validate(); err != nil {
		return err
	}
	if q.limit, err = s.limits.get(r.Limit); err != nil {
		return err
	}
	q.ask, q.settle = askOf(r), r.Settle
	if q.recordTTL = recordTTL; recordTTL == 0 {
		q.recordTTL = q.limit.lifetimeOf(r)
	}
	q.key = stateKey(s.prefix, r.Key, q.limit.identity)
	q.record, q.permits, q.idempotent = "", "", false
	switch {
	case r.ID == "" || r.Cost == 0 && !r.Settle:
	case q.limit.hasRecords:
		q.record, q.idempotent = recordKey(s.prefix, q.key, r.ID), true
	default:
		q.permits, q.idempotent = permitOf(q.key, r.ID), !r.NewID // a repeated take would find the permits of the first
	}
	return nil
}

// once reports whether the request is under an ID that has a record.
func (q *compiledRequest) once() bool { return q.record != "" }

// appendKeys appends the keys of a take.
func (q *compiledRequest) appendKeys(keys []string) []string {
	if q.once() {
		return append(keys, q.key, q.record)
	}
	return append(keys, q.key)
}

// encodeArgs writes everything but the keys. Only this is repeated if Redis's
// time was outside the windows sent.
func (s *Store) encodeArgs(q *compiledRequest, c *Call) {
	cl := q.limit
	c.reset(q.idempotent)
	cl.centerCalendar(s.redisMillis())
	if c.Script = cl.scripts.take; q.once() {
		c.Script = cl.scripts.once
	} else if q.ask == oneUnit && q.permits == "" && !cl.changing {
		c.Args = cl.oneUnitArgs
		return
	}
	c.argsBuf = q.appendArgs(c.argsBuf[:0])
	c.Args = c.argsBuf
}

// reset makes a call ready to be sent.
func (c *Call) reset(idempotent bool) {
	c.Reply, c.Err, c.Text, c.lastErr, c.idempotent = c.Reply[:0], nil, false, nil, idempotent
}

// oneUnit is what most requests ask for.
var oneUnit = algorithm.Request{Cost: 1}

// appendArgs appends the arguments of a take, or of a request under an ID.
func (q *compiledRequest) appendArgs(args []string) []string {
	cl, a := q.limit, stepAsk{ask: q.ask, cost: q.costArg(), permits: q.permits}
	if q.settle {
		a.ask = cl.settleAsk(1)
	}
	args = cl.appendStep(args, a)
	switch once := &cl.onceArgs; {
	case !q.once():
		return args
	case q.settle:
		return append(args, once.perTick, once.most, once.unit, "s")
	case q.ask.Cost < 0:
		return append(args, once.perTick, once.most, once.unit, "r")
	case q.ask.Overdraw:
		return append(args, strconv.FormatInt(q.recordTTL, 10), once.unit, "o")
	default:
		return append(args, strconv.FormatInt(q.recordTTL, 10), once.unit, "")
	}
}

// costArg returns the cost as the script gets it. To settle or refund under an ID it is in units,
// because it may exceed what the step counts.
func (q *compiledRequest) costArg() string {
	if q.settle || q.once() && q.ask.Cost < 0 {
		return formatUnits(q.ask.Cost)
	}
	return q.limit.costArg(q.ask)
}

// formatUnits returns a number of units that a script can count exactly.
func formatUnits(units int64) string {
	const most = 1<<53 - 1
	return strconv.FormatInt(min(max(units, -most), most), 10)
}

// A stepAsk is what a step of a script is asked for.
type stepAsk struct {
	ask     algorithm.Request
	cost    string // as the script gets it
	permits string // of a concurrency limit: the hash of the ID, or of several
}

// appendStep appends the arguments of a step.
func (cl *compiledLimit) appendStep(args []string, a stepAsk) []string {
	args = append(append(args, a.cost), cl.limitArgs...)
	return cl.appendRest(cl, args, a)
}

// appendAsk appends the arguments of a step that takes what is asked for.
func (cl *compiledLimit) appendAsk(args []string, ask algorithm.Request) []string {
	return cl.appendStep(args, stepAsk{ask: ask, cost: cl.costArg(ask)})
}

// appendOptions appends what a plain take under most limits does not need.
func appendOptions(cl *compiledLimit, args []string, a stepAsk) []string {
	how := cl.howArg(a.ask)
	if how == "" && !cl.alwaysOptions {
		return args
	}
	return append(append(args, how), cl.optionArgs...)
}

// howArg returns what is granted if the cost does not fit, and what is kept free.
func (cl *compiledLimit) howArg(ask algorithm.Request) string {
	how := ""
	switch {
	case ask.AtMost:
		how = "1"
	case ask.Overdraw:
		how = "o"
	case ask.KeepFree > 0:
		how = "0"
	}
	if ask.KeepFree > 0 {
		how += ":" + strconv.FormatInt(min(ask.KeepFree, cl.capacity)*cl.unit, 10)
	}
	return how
}

// costArg returns the cost of an ask as the script gets it.
func (cl *compiledLimit) costArg(ask algorithm.Request) string {
	if ask.Cost == algorithm.Reset && cl.changing {
		return "all" // including windows that the clock could step back to
	}
	return strconv.FormatInt(cl.scriptCost(ask)*cl.unit, 10)
}

// scriptCost returns the cost to send, in units. A cost that can never fit is sent as a peek,
// and no number is larger than a script can count.
func (cl *compiledLimit) scriptCost(ask algorithm.Request) int64 {
	switch {
	case ask.Cost < 0:
		return max(ask.Cost, cl.minCost)
	case !cl.hasRecords:
		return ask.Cost // its script must find permits that this ID holds already
	case ask.Overdraw:
		return min(ask.Cost, cl.maxCharge())
	case ask.NeverFits(cl.capacity):
		return 0
	}
	return min(ask.Cost, cl.capacity)
}

// settleAsk returns the ask for what a settlement charges: as a debt, or if the limit has
// none, what is left.
func (cl *compiledLimit) settleAsk(cost int64) algorithm.Request {
	return algorithm.Request{Cost: cost, Overdraw: cl.normal.CanOwe(), AtMost: !cl.normal.CanOwe()}
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

func formatInts(numbers ...int64) []string {
	list := make([]string, len(numbers))
	for i, n := range numbers {
		list[i] = strconv.FormatInt(n, 10)
	}
	return list
}
