package respapi

import (
	"fmt"
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
)

// CL.THROTTLE key max_burst count_per_period period [quantity] is redis-cell's: a
// token bucket whose limit comes with every call. The limit has a name, and so may
// differ from call to call.
//
// Answers are redis-cell's too, but for four things. Numbers are checked. Where a
// limit is lowered, what is owed is clamped to the new burst, so nobody is locked out
// for longer than the new limit could. What remains is counted in nanoseconds;
// redis-cell counts in microseconds, and above a thousand a second says more than is
// there. And a limit that takes more than 52 days to fill is counted apart from
// shorter ones, in whole microseconds.

// The names of the limits that CL.THROTTLE counts by: there are two, because a store
// may count what takes longer to fill in another unit, and then one look that fits
// both would change what it looks at.
const (
	shortName = engine.ThrottleLimitPrefix
	longName  = engine.ThrottleLimitPrefix + ".long"

	longFill = 1 << 52 // nanoseconds: 52 days
)

// maxKey is how long a key may be.
const maxKey = 4 << 10

// A cachedLimiter is a limit as CL.THROTTLE has it, made ready.
type cachedLimiter struct {
	params  throttleParams
	limiter *penstock.Limiter
}

// throttleParams are the numbers of a CL.THROTTLE that make its limit.
type throttleParams struct{ maxBurst, count, period int64 }

// cellErrorPrefix is how redis-cell begins every error.
const cellErrorPrefix = "Cell error: Store error: "

const (
	usage      = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]"
	outOfRange = "value is not an integer or out of range"
	zeroRate   = "Zero rates are not supported"
)

// A argumentError is what is wrong with the arguments of a command.
type argumentError string

func (e argumentError) Error() string { return string(e) }

// validateKey returns an error if a store must not be asked about a key. A request that
// the store refuses would take others of its trip along.
func validateKey(key []byte) error {
	switch {
	case len(key) == 0:
		return argumentError("key is empty: want any bytes that say who is asking")
	case len(key) > maxKey:
		return argumentError(fmt.Sprintf("key of %d bytes: must be at most %d", len(key), maxKey))
	}
	return nil
}

// limit returns the limit of the parameters.
func (p throttleParams) limit() (penstock.Limit, error) {
	if p.count == 0 || p.period == 0 {
		return penstock.Limit{}, argumentError(zeroRate)
	}
	if p.maxBurst == math.MaxInt64 || p.period > math.MaxInt64/int64(time.Second) {
		return penstock.Limit{}, argumentError(outOfRange)
	}
	interval := int64(float64(p.period*int64(time.Second)) / float64(p.count)) // in doubles, as redis-cell does
	if interval == 0 {
		return penstock.Limit{}, argumentError(zeroRate)
	}
	l := penstock.Limit{Name: shortName, Count: 1, Period: time.Duration(interval), Burst: p.maxBurst + 1}
	if high, fill := bits.Mul64(uint64(interval), uint64(l.Burst)); high != 0 || fill >= longFill {
		l.Name = longName
	}
	return l, nil
}

// limiterCache keeps limits that were asked about, because checking one takes longer
// than deciding by it.
type limiterCache struct {
	store penstock.Store
	slots [512]atomic.Pointer[cachedLimiter]
}

func (ts *limiterCache) get(p throttleParams) (*cachedLimiter, error) {
	slot := &ts.slots[p.hash()%uint64(len(ts.slots))]
	if t := slot.Load(); t != nil && t.params == p {
		return t, nil
	}
	l, err := p.limit()
	if err != nil {
		return nil, err
	}
	limiter, err := penstock.New(ts.store, l)
	if err != nil {
		return nil, err
	}
	t := &cachedLimiter{params: p, limiter: limiter}
	slot.Store(t)
	return t, nil
}

// hash tells parameters apart well enough to spread them over the slots.
func (p throttleParams) hash() uint64 {
	const odd = 0x9e3779b97f4a7c15
	h := (uint64(p.maxBurst)*odd ^ uint64(p.count)) * odd
	return (h ^ uint64(p.period)) * odd >> 32
}

// A throttleCall is a CL.THROTTLE with its arguments understood.
type throttleCall struct {
	*cachedLimiter
	key      []byte
	quantity int64
}

// parseThrottle makes sense of the arguments of CL.THROTTLE.
func (ts *limiterCache) parseThrottle(args [][]byte) (call throttleCall, err error) {
	if len(args) != 5 && len(args) != 6 {
		return call, argumentError(usage)
	}
	if err := validateKey(args[1]); err != nil {
		return call, err
	}
	numbers := [4]int64{3: 1}
	for i, arg := range args[2:] {
		n, ok := parseNatural(arg)
		if !ok {
			return call, naturalError(arg)
		}
		numbers[i] = n
	}
	call.key, call.quantity = args[1], numbers[3]
	call.cachedLimiter, err = ts.get(throttleParams{numbers[0], numbers[1], numbers[2]})
	if err == nil && call.quantity > 1 {
		err = call.checkQuantity()
	}
	return call, err
}

// checkQuantity returns an error if what is asked for takes more time than there is.
func (c *throttleCall) checkQuantity() error {
	interval := int64(c.limiter.Limit().Period)
	if c.quantity > math.MaxInt64/interval {
		return argumentError(outOfRange)
	}
	return nil
}

// parseNatural reads a number that is not negative.
func parseNatural(text []byte) (n int64, ok bool) {
	if len(text) > 1 && text[0] == '+' {
		text = text[1:]
	}
	for len(text) > maxNaturalDigits && text[0] == '0' {
		text = text[1:]
	}
	if len(text) == 0 || len(text) > maxNaturalDigits {
		return 0, false
	}
	var value uint64
	for _, b := range text {
		digit := b - '0'
		if digit > 9 {
			return 0, false
		}
		value = value*10 + uint64(digit)
	}
	return int64(value), value <= math.MaxInt64
}

// maxNaturalDigits are as many as an unsigned word always has room for.
const maxNaturalDigits = 19

// naturalError says what is wrong with a number.
func naturalError(text []byte) error {
	if len(text) > 1 && text[0] == '-' {
		if _, ok := parseNatural(text[1:]); ok {
			return argumentError(outOfRange)
		}
	}
	return argumentError("Couldn't parse as integer: " + printable(text))
}

// decision replies with a decision.
func (r *reply) decision(d *penstock.Decision) {
	limited, retry := byte('1'), int64(-1)
	switch {
	case d.Allowed:
		limited = '0'
	case d.RetryAfter != penstock.Never:
		retry = seconds(d.RetryAfter)
	}
	r.buf = append(r.buf, '*', '5', '\r', '\n', ':', limited, '\r', '\n')
	r.integer(d.Limit)
	r.integer(d.Remaining)
	r.integer(retry)
	r.integer(seconds(d.ResetAfter))
}

// seconds rounds as redis-cell does: up, unless there is less than a millisecond
// above whole seconds.
func seconds(d time.Duration) int64 {
	whole := d / time.Second
	if d-whole*time.Second >= time.Millisecond {
		whole++
	}
	return int64(whole)
}
