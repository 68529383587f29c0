package respapi

import (
	"fmt"
	"testing"
	"time"

	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"pgregory.net/rapid"
)

// A redisCell models a key of redis-cell, independently of the server's code.
type redisCell struct {
	tats    [2]int64 // theoretical arrival times, in nanoseconds; see arrivals
	lowered bool     // whether a limit was lowered below the debt
}

// arrivals returns the arrival time and the interval of a limit. redis-cell has one arrival
// time for all limits of a key. The server counts limits that take more than 52 days to
// fill apart, with intervals of whole microseconds.
func (c *redisCell) arrivals(p throttleParams) (tat *int64, interval int64) {
	interval = int64(float64(p.period*1e9) / float64(p.count))
	if interval*(p.maxBurst+1) < 1<<52 {
		return &c.tats[0], interval
	}
	return &c.tats[1], (interval + 999) / 1000 * 1000
}

// A cellReply is a reply of CL.THROTTLE.
type cellReply struct{ limited, limit, remaining, retry, reset int64 }

// throttle replies as redis-cell does, except that it clamps a debt far above the limit, which
// a lowered limit leaves, and never limits a quantity of 0.
func (c *redisCell) throttle(now int64, p throttleParams, quantity int64) cellReply {
	stored, interval := c.arrivals(p)
	tolerance, increment := interval*(p.maxBurst+1), interval*quantity
	tat := max(*stored, now)
	if most := tolerance + max(tolerance, int64(time.Minute)); tat-now > most {
		tat, c.lowered = now+most, true
		*stored = tat
	}
	a := cellReply{limit: p.maxBurst + 1, retry: -1}
	ttl := tat - now
	if arrival := tat + increment; quantity == 0 || now >= arrival-tolerance {
		*stored, ttl = arrival, arrival-now
	} else {
		a.limited = 1
		if increment <= tolerance {
			a.retry = wholeSeconds(arrival - tolerance - now)
		}
	}
	a.remaining = remaining(tolerance-ttl, interval)
	a.reset = wholeSeconds(ttl)
	return a
}

// remaining equals redis-cell's for intervals of whole microseconds. For others redis-cell
// truncates the interval, and reports too many units.
func remaining(free, interval int64) int64 {
	if free <= -interval {
		return 0
	}
	if interval%1000 == 0 {
		return int64(float64(free/1000) / float64(interval/1000))
	}
	return free / interval
}

func wholeSeconds(nanos int64) int64 {
	n := nanos / 1e9
	if nanos%1e9/1e6 >= 1 {
		n++
	}
	return n
}

func TestThrottleMatchesRedisCell(t *testing.T) {
	limited, lowered, fractions, long := 0, 0, 0, 0
	rapid.Check(t, func(t *rapid.T) {
		clock := newFakeClock()
		c := newFakeClient(newServerWithClock(clock))
		keys := map[string]*redisCell{"alice": {}, "bob": {}}
		p := anyParams().Draw(t, "params")
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if rapid.IntRange(0, 9).Draw(t, "change") == 0 {
				p = anyParams().Draw(t, "params")
			}
			interval := p.period * 1e9 / p.count
			clock.add(time.Duration(rapid.OneOf(
				rapid.Just(int64(0)), rapid.Int64Range(0, interval*2), rapid.Int64Range(0, 2_000_000), rapid.Int64Range(0, interval*p.maxBurst),
			).Draw(t, "passes")))
			key := rapid.SampledFrom([]string{"alice", "bob"}).Draw(t, "key")
			quantity := rapid.OneOf(rapid.Just(int64(1)), rapid.Int64Range(0, p.maxBurst+2)).Draw(t, "quantity")
			want := keys[key].throttle(clock.now().UnixNano(), p, quantity)
			got := c.do(t, "CL.THROTTLE", key, fmt.Sprint(p.maxBurst), fmt.Sprint(p.count), fmt.Sprint(p.period), fmt.Sprint(quantity))
			if got != want.String() {
				t.Fatalf("CL.THROTTLE %s %d %d %d %d\ngot  %s\nwant %s", key, p.maxBurst, p.count, p.period, quantity, got, want)
			}
			limited += int(want.limited)
			if want.reset > 0 && p.period*1e9%p.count != 0 {
				fractions++
			}
			if keys[key].lowered {
				lowered++
			}
			if keys[key].tats[1] > 0 {
				long++
			}
		}
	})
	if !testing.Short() && (limited == 0 || lowered == 0 || fractions == 0 || long == 0) { // in a short run cases are few
		t.Errorf("%d limited, %d lowered, %d with fractions, %d long: want some of each", limited, lowered, fractions, long)
	}
}

func (a cellReply) String() string {
	return fmt.Sprintf("*5 :%d :%d :%d :%d :%d", a.limited, a.limit, a.remaining, a.retry, a.reset)
}

func anyParams() *rapid.Generator[throttleParams] {
	return rapid.Custom(func(t *rapid.T) throttleParams {
		if rapid.IntRange(0, 9).Draw(t, "long") == 0 {
			return throttleParams{
				maxBurst: rapid.Int64Range(0, 20).Draw(t, "max burst"),
				count:    rapid.Int64Range(1, 100).Draw(t, "count"),
				period:   rapid.Int64Range(100*86400, 366*86400).Draw(t, "period"),
			}
		}
		return throttleParams{
			maxBurst: rapid.OneOf(rapid.Int64Range(0, 20), rapid.Int64Range(0, 5000)).Draw(t, "max burst"),
			count:    rapid.OneOf(rapid.Int64Range(1, 100), rapid.SampledFrom([]int64{1000, 3000, 7777, 1e6, 3e6, 1e9})).Draw(t, "count"),
			period:   rapid.OneOf(rapid.Int64Range(1, 5), rapid.Int64Range(1, 86400)).Draw(t, "period"),
		}
	})
}
