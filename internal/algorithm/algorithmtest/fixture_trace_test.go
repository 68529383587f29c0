package algorithmtest

import (
	"math"
	"math/big"
	"math/bits"

	"pgregory.net/rapid"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// A trace is a sequence of requests to one key.
type trace struct {
	key
	limit limit
	small bool
	now   int64
	last  result

	// forward is how far the clock has moved ahead since the start, without steps
	// back.
	forward   big.Int
	stepsBack int64
}

// newTrace draws a limit and a start time. Half of the traces are small, with a few units
// and a few ticks, so that all edge cases meet soon.
func newTrace(t *rapid.T, k kind) *trace {
	if rapid.Bool().Draw(t, "small") {
		l := drawSmallLimit(t, k)
		return &trace{key: newKey(l), limit: l, small: true}
	}
	l := drawLimit(t, k)
	tr := &trace{key: newKey(l), limit: l}
	tr.now = tr.onTick(rapid.OneOf(
		rapid.Just[int64](0),
		anySize(0, algorithm.MaxTime),
		rapid.Int64Range(algorithm.MaxTime-2*year, algorithm.MaxTime),
	).Draw(t, "start"))
	return tr
}

// onTick returns t rounded down to a tick, within the range of the clock.
func (tr *trace) onTick(t int64) int64 {
	t = min(max(t, 0), algorithm.MaxTime)
	return t / tr.limit.tick * tr.limit.tick
}

// after returns the instant that is d later. The longest durations, rounded up to a tick, end
// beyond 63 bits.
func (tr *trace) after(d int64) int64 { return tr.now + min(d, math.MaxInt64-tr.now) }

func (tr *trace) decide(req algorithm.Request) result {
	tr.last = tr.key.decide(tr.now, req)
	return tr.last
}

func (tr *trace) moveTo(now int64) {
	now = tr.onTick(now)
	if now >= tr.now {
		tr.forward.Add(&tr.forward, big.NewInt(now-tr.now))
	} else {
		tr.stepsBack++
	}
	tr.now = now
}

// timePasses moves the clock ahead, mostly to about when the state changes.
func (tr *trace) timePasses(t *rapid.T) {
	tr.moveTo(tr.now + min(tr.drawDuration(t), algorithm.MaxTime-tr.now))
}

// clockJumps sets the clock, mostly back by about one of the limit's durations.
func (tr *trace) clockJumps(t *rapid.T) {
	if tr.small {
		ticks := rapid.OneOf(
			rapid.Map(rapid.Int64Range(1, 4), func(n int64) int64 { return tr.now/tr.limit.tick - n }),
			rapid.Int64Range(0, 50),
		)
		tr.moveTo(ticks.Draw(t, "ticks") * tr.limit.tick)
		return
	}
	back := rapid.OneOf(rapid.Custom(tr.drawDuration), rapid.Int64Range(0, 5*hour))
	to := rapid.Map(back, func(d int64) int64 { return tr.now - d })
	tr.moveTo(rapid.OneOf(to, to, to, anySize(0, algorithm.MaxTime), rapid.Just[int64](algorithm.MaxTime)).Draw(t, "now"))
}

// clockJitters moves the clock by a few ticks, back or ahead.
func (tr *trace) clockJitters(t *rapid.T) {
	tr.moveTo(tr.now + rapid.Int64Range(-3, 3).Draw(t, "ticks")*tr.limit.tick)
}

func (tr *trace) drawDuration(t *rapid.T) int64 {
	if tr.small {
		ticks := rapid.OneOf(rapid.Int64Range(1, 3), rapid.Int64Range(1, 15))
		return ticks.Draw(t, "ticks") * tr.limit.tick
	}
	eventful := append(tr.limit.durations(tr.now), tr.last.ResetAfter, tr.last.Delay)
	if tr.last.RetryAfter != algorithm.Never {
		eventful = append(eventful, tr.last.RetryAfter)
	}
	event := rapid.Custom(func(t *rapid.T) int64 {
		d := rapid.SampledFrom(eventful).Draw(t, "event")
		part := rapid.SampledFrom([]int64{1, 1, 1, 2, 3, 10}).Draw(t, "part")
		ticksOff := rapid.Int64Range(-2, 2).Draw(t, "ticks off")
		return max(d/part+ticksOff*tr.limit.tick, 0)
	})
	ticks := rapid.Map(rapid.Int64Range(1, 10), func(n int64) int64 { return n * tr.limit.tick })
	return rapid.OneOf(ticks, event, event, event, anySize(0, 20*year)).Draw(t, "duration")
}

// limitChanges raises or lowers the limit at times, and keeps the state.
func (tr *trace) limitChanges(t *rapid.T) {
	if rapid.Bool().Draw(t, "not now") {
		return
	}
	var l limit
	if tr.small {
		l = drawSmallLimit(t, tr.limit.kind)
	} else {
		l = drawLimit(t, tr.limit.kind)
	}
	tr.limit.count, tr.limit.overdraft, tr.limit.rate = l.count, l.overdraft, l.rate
	tr.limit.rate.Tick = tr.limit.tick
	tr.key.change(tr.limit)
}

// drawRequest draws any request.
func (tr *trace) drawRequest(t *rapid.T) algorithm.Request {
	most, left := tr.limit.max(), tr.last.Remaining
	cost := rapid.OneOf(
		rapid.SampledFrom([]int64{1, left, left + 1, most, most - 1, most + 1}),
		rapid.SampledFrom([]int64{-1, -2, -left, -most, -math.MaxInt64, algorithm.Reset}),
		rapid.SampledFrom([]int64{0, math.MaxInt64, math.MaxInt64 - 1}),
		anySize(0, math.MaxInt64),
	).Draw(t, "cost")
	return tr.withOptions(t, cost)
}

// drawTake draws a take that mostly leaves something.
func (tr *trace) drawTake(t *rapid.T) algorithm.Request {
	left := tr.last.Remaining
	return tr.withOptions(t, rapid.OneOf(
		rapid.Just[int64](1),
		rapid.Int64Range(1, 5),
		rapid.SampledFrom([]int64{left/2 + 1, left/3 + 1, left/10 + 1, left}),
	).Draw(t, "cost"))
}

func (tr *trace) withOptions(t *rapid.T, cost int64) algorithm.Request {
	return algorithm.Request{
		Cost:     cost,
		AtMost:   rapid.Bool().Draw(t, "at most"),
		MaxDelay: tr.drawMaxDelay(t),
		KeepFree: tr.drawKeepFree(t, cost),
	}
}

// drawKeepFree draws how many units a request keeps: none, or often just as many as would
// be left, or could be.
func (tr *trace) drawKeepFree(t *rapid.T, cost int64) int64 {
	if cost <= 0 || cost > tr.limit.max() || rapid.Bool().Draw(t, "keep nothing") {
		return 0
	}
	left, most := tr.last.Remaining-cost, tr.limit.max()-cost
	return max(0, rapid.OneOf(
		rapid.SampledFrom([]int64{1, left, left - 1, left + 1, left / 2, most, most + 1, math.MaxInt64}),
		anySize(0, math.MaxInt64),
	).Draw(t, "keep free"))
}

// drawCharge draws a request that may overdraw the key.
func (tr *trace) drawCharge(t *rapid.T) algorithm.Request {
	most := tr.limit.max()
	beyond := tr.limit.overdraft + tr.limit.rate.Overdraft
	cost := rapid.OneOf(
		rapid.Int64Range(1, 5),
		rapid.SampledFrom([]int64{tr.last.Remaining, most, most - 1, beyond, beyond/2 + 1, math.MaxInt64}),
		anySize(1, math.MaxInt64),
	).Draw(t, "cost")
	return algorithm.Request{Cost: max(cost, 1), Overdraw: tr.limit.kind.hasDebt()}
}

func (tr *trace) drawMaxDelay(t *rapid.T) int64 {
	if rapid.Bool().Draw(t, "no delay") {
		return 0
	}
	return rapid.OneOf(
		rapid.Custom(tr.drawDuration),
		anySize(0, math.MaxInt64),
		rapid.SampledFrom([]int64{1, tr.limit.tick - 1, minute - 1, minute, minute + 1, math.MaxInt64}),
	).Draw(t, "max delay")
}

// anything returns the actions of a trace without restrictions.
func (tr *trace) anything(do func(*rapid.T, algorithm.Request)) map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"time passes":   tr.timePasses,
		"clock jumps":   tr.clockJumps,
		"clock jitters": tr.clockJitters,
		"limit changes": tr.limitChanges,
		"request":       func(t *rapid.T) { do(t, tr.drawRequest(t)) },
		"take":          func(t *rapid.T) { do(t, tr.drawTake(t)) },
		"charge":        func(t *rapid.T) { do(t, tr.drawCharge(t)) },
	}
}

// withoutDelay returns the actions of a trace without reservations. Some takes leave
// nothing.
func (tr *trace) withoutDelay(do func(*rapid.T, algorithm.Request)) map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"time passes":   tr.timePasses,
		"clock jumps":   tr.clockJumps,
		"clock jitters": tr.clockJitters,
		"request": func(t *rapid.T) {
			req := tr.drawRequest(t)
			req.MaxDelay = 0
			do(t, req)
		},
		"take": func(t *rapid.T) {
			req := tr.drawTake(t)
			req.MaxDelay = 0
			do(t, req)
		},
		"take all": func(t *rapid.T) { do(t, algorithm.Request{Cost: math.MaxInt64, AtMost: true}) },
	}
}

// onlyTakes returns the actions of a trace without refunds.
func (tr *trace) onlyTakes(do func(*rapid.T, algorithm.Request)) map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"time passes":   tr.timePasses,
		"clock jumps":   tr.clockJumps,
		"clock jitters": tr.clockJitters,
		"take":          func(t *rapid.T) { do(t, tr.drawTake(t)) },
		"take with any delay": func(t *rapid.T) {
			req := tr.drawTake(t)
			req.MaxDelay = math.MaxInt64
			do(t, req)
		},
	}
}

func drawLimit(t *rapid.T, k kind) limit {
	tick := rapid.SampledFrom([]int64{1, millisecond}).Draw(t, "tick")
	l := limit{kind: k, tick: tick}
	if k.isBucket() {
		l.rate = drawRate(t, tick)
		return l
	}
	l.count = drawCount(k).Draw(t, "count")
	l.overdraft = drawOverdraft(t, k, l.count)
	l.period = drawPeriod(k, tick).Draw(t, "period")
	switch k {
	case fixedWindow:
		l.windows = fromFirst{l.period}
	case alignedWindow:
		l.windows = drawSchedule(t, tick)
	case rollingWindow:
		l.buckets = rapid.OneOf(rapid.Int64Range(1, 20), rapid.Just[int64](1000)).Draw(t, "buckets")
	}
	return l
}

// drawSmallLimit draws a limit that a few units fill in a few ticks.
func drawSmallLimit(t *rapid.T, k kind) limit {
	l := limit{
		kind:    k,
		tick:    rapid.SampledFrom([]int64{1, millisecond}).Draw(t, "tick"),
		count:   rapid.Int64Range(0, 5).Draw(t, "count"),
		buckets: rapid.Int64Range(1, 4).Draw(t, "buckets"),
	}
	l.period = rapid.Int64Range(1, 12).Draw(t, "ticks in a period") * l.tick
	l.rate = algorithm.Rate{
		Interval: rapid.Int64Range(1, 25).Draw(t, "tenths of ticks in an interval, or ticks") * max(l.tick/10, 1),
		Burst:    l.count,
		Tick:     l.tick,
	}
	if l.count > 0 && k.isBucket() {
		l.rate.Overdraft = rapid.Int64Range(0, 8).Draw(t, "overdraft")
	} else if l.count > 0 && k.hasDebt() {
		l.overdraft = rapid.Int64Range(0, 8).Draw(t, "overdraft")
	}
	switch k {
	case fixedWindow:
		l.windows = fromFirst{l.period}
	case alignedWindow:
		l.windows = rapid.SampledFrom([]schedule{
			onClock{length: l.period, offset: l.period / 2},
			onClock{length: l.period, offset: -l.period / 3},
			calendar{start: -l.period / 2, lengths: []int64{l.period, 2 * l.period, l.period + l.tick}},
		}).Draw(t, "windows")
	}
	return l
}

// drawCount draws the count of a window: zero, one, a few, or many.
func drawCount(k kind) *rapid.Generator[int64] {
	most := map[kind]int64{slidingWindow: 1<<26 - 1, slidingLog: 500}[k]
	if most == 0 {
		most = math.MaxInt64
	}
	return rapid.OneOf(
		rapid.Just[int64](1),
		rapid.Int64Range(2, 20),
		anySize(1, most),
		rapid.SampledFrom([]int64{0, most}),
	)
}

// drawOverdraft draws the overdraft of a window: none, a few units, the count, or as many
// as can be counted.
func drawOverdraft(t *rapid.T, k kind, count int64) int64 {
	most := int64(math.MaxInt64) - count
	if k == slidingWindow {
		most = 1<<26 - 1 - count
	}
	if !k.hasDebt() || count == 0 {
		return 0
	}
	return min(most, rapid.OneOf(
		rapid.Just[int64](0), rapid.Int64Range(1, 20), rapid.Just(count), anySize(0, most),
	).Draw(t, "overdraft"))
}

// drawPeriod draws from one tick to 366 days.
func drawPeriod(k kind, tick int64) *rapid.Generator[int64] {
	longest := int64(366 * day)
	if k == slidingLog {
		longest = 24 * day
	}
	ticks := rapid.OneOf(
		rapid.Int64Range(1, 100),
		rapid.SampledFrom([]int64{second / tick, minute / tick, hour / tick, day / tick, longest / tick}),
		anySize(1, longest/tick),
	)
	return rapid.Map(ticks, func(n int64) int64 { return n * tick })
}

// drawSchedule draws windows on the clock, or of a calendar. Their
// edges need not lie on ticks.
func drawSchedule(t *rapid.T, tick int64) schedule {
	length := drawPeriod(alignedWindow, tick)
	if rapid.Bool().Draw(t, "on the clock") {
		c := onClock{length: length.Draw(t, "length")}
		c.offset = rapid.Int64Range(1-c.length, c.length-1).Draw(t, "offset")
		return c
	}
	months := rapid.SliceOfN(rapid.Map(rapid.Int64Range(28, 31), func(n int64) int64 { return n * day }), 2, 6)
	days := rapid.SliceOfN(rapid.Map(rapid.Int64Range(22, 26), func(n int64) int64 { return n * hour }), 2, 6)
	odd := rapid.SliceOfN(length, 2, 6)
	c := calendar{lengths: rapid.OneOf(months, days, odd).Draw(t, "lengths")}
	c.start = -rapid.Int64Range(0, c.lengths[0]-1).Draw(t, "start before zero")
	return c
}

// drawRate draws a rate of which a whole burst takes up to 73 years.
func drawRate(t *rapid.T, tick int64) algorithm.Rate {
	period := rapid.OneOf(
		rapid.SampledFrom([]int64{second, minute, hour, day, 366 * day}),
		anySize(1, 366*day),
	).Draw(t, "period")
	count := rapid.OneOf(
		rapid.Just[int64](1), rapid.Int64Range(2, 20), anySize(1, 1_000_000), rapid.Just[int64](0),
	).Draw(t, "count")
	burst := rapid.OneOf(
		rapid.Just(count), rapid.Just[int64](1), rapid.Int64Range(1, 20), anySize(1, algorithm.MaxRefill),
	).Draw(t, "burst")
	overdraft := rapid.OneOf(
		rapid.Just(burst), rapid.Just[int64](0), rapid.Int64Range(1, 20), anySize(1, algorithm.MaxRefill),
	).Draw(t, "overdraft")
	if r, ok := algorithm.NewRate(count, period, burst, overdraft, tick); ok {
		return r
	}
	// One unit per period is always valid, if the burst is not too large.
	period = (period + 999) / 1000 * 1000
	r, ok := algorithm.NewRate(1, period, min(burst, algorithm.MaxRefill/period), min(overdraft, algorithm.MaxRefill/period), tick)
	if !ok {
		t.Fatalf("NewRate(1, %d, %d, %d): not ok", period, min(burst, algorithm.MaxRefill/period), tick)
	}
	return r
}

// anySize draws a number that is as likely to have few digits as many.
func anySize(low, high int64) *rapid.Generator[int64] {
	return rapid.Custom(func(t *rapid.T) int64 {
		size := rapid.IntRange(0, bits.Len64(uint64(high-low))).Draw(t, "bits")
		return low + rapid.Int64Range(0, min(1<<size-1, high-low)).Draw(t, "number")
	})
}
