package respapi

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/requestlimits"
)

// The limit names of CL.THROTTLE. There are two because a store may count limits that
// take long to fill in another unit; a peek with a limit of the other kind would then
// change the stored state.
const (
	shortName = requestlimits.ThrottlePrefix
	longName  = requestlimits.ThrottlePrefix + ".long"

	longFill = 1 << 52 // nanoseconds: 52 days
)

// throttleParams are the arguments of CL.THROTTLE that define its limit.
type throttleParams struct{ maxBurst, count, period int64 }

// limit returns the limit that the parameters define.
func (p throttleParams) limit() (penstock.Limit, error) {
	if p.count == 0 || p.period == 0 {
		return penstock.Limit{}, argumentError(zeroRate)
	}
	if p.maxBurst == math.MaxInt64 || p.period > math.MaxInt64/int64(time.Second) {
		return penstock.Limit{}, argumentError(outOfRange)
	}
	interval := int64(float64(p.period*int64(time.Second)) / float64(p.count)) // in floating point, like redis-cell
	if interval == 0 {
		return penstock.Limit{}, argumentError(zeroRate)
	}
	l := penstock.Limit{Name: shortName, Count: 1, Period: time.Duration(interval), Burst: p.maxBurst + 1}
	if high, fill := bits.Mul64(uint64(interval), uint64(l.Burst)); high != 0 || fill >= longFill {
		l.Name = longName
	}
	return requestlimits.Of(l), nil
}

// A limiterCache keeps the limiters of recent parameters, because validating a limit
// takes longer than a decision. It is safe for concurrent use.
type limiterCache struct {
	engine *engine.Engine
	slots  [512]atomic.Pointer[cachedLimiter]
}

// A cachedLimiter is a limiter with the parameters that it was made from.
type cachedLimiter struct {
	params  throttleParams
	limiter *penstock.Limiter
	limit   penstock.Limit         // of the limiter
	refusal *requestlimits.Refusal // for callers that are not exempt; nil if all may use the limit
}

func (lc *limiterCache) get(p throttleParams) (*cachedLimiter, error) {
	slot := &lc.slots[p.hash()%uint64(len(lc.slots))]
	if cached := slot.Load(); cached != nil && cached.params == p {
		return cached, nil
	}
	l, err := p.limit()
	if err != nil {
		return nil, err
	}
	limiter, err := penstock.New(lc.engine.Store(), l)
	if err != nil {
		return nil, err
	}
	cached := &cachedLimiter{params: p, limiter: limiter, limit: l, refusal: lc.engine.RequestLimits().Refusal(&l)}
	slot.Store(cached)
	return cached, nil
}

func (p throttleParams) hash() uint64 {
	const odd = 0x9e3779b97f4a7c15
	h := (uint64(p.maxBurst)*odd ^ uint64(p.count)) * odd
	return (h ^ uint64(p.period)) * odd >> 32
}
