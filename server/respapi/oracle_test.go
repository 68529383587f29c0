package respapi

import (
	"fmt"
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A redisCell is a key of redis-cell, as its behaviour is known from outside. It shares
// nothing with the door.
type redisCell struct {
	tats    [2]int64 // theoretical arrival times, in nanoseconds; see arrivals
	lowered bool     // whether a limit was lowered below what was owed
}

// arrivals returns the time that a limit counts by, and its interval. redis-cell has
// one for all limits of a key. We keep limits apart that take more than 52 days to
// fill, and count their intervals in whole microseconds.
func (c *redisCell) arrivals(p throttleParams) (tat *int64, interval int64) {
	interval = int64(float64(p.period*1e9) / float64(p.count))
	if interval*(p.maxBurst+1) < 1<<52 {
		return &c.tats[0], interval
	}
	return &c.tats[1], (interval + 999) / 1000 * 1000
}

// cellReply is what redis-cell replies.
type cellReply struct{ limited, limit, remaining, retry, reset int64 }

// throttle answers as redis-cell does. Where more is owed than the limit allows for,
// which takes a limit that was lowered, we forget the rest, and redis-cell does not.
func (c *redisCell) throttle(now int64, p throttleParams, quantity int64) cellReply {
	stored, interval := c.arrivals(p)
	tolerance, increment := interval*(p.maxBurst+1), interval*quantity
	tat := max(*stored, now)
	if tat-now > tolerance {
		tat, c.lowered = now+tolerance, true
		*stored = tat
	}
	a := cellReply{limit: p.maxBurst + 1, retry: -1}
	ttl := tat - now
	if arrival := tat + increment; now >= arrival-tolerance {
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

// remaining is redis-cell's where intervals are whole microseconds. Where they are
// not, redis-cell drops the rest of each, and so finds room for too many of them.
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
	if limited == 0 || lowered == 0 || fractions == 0 || long == 0 {
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

// Less than a millisecond above whole seconds is dropped.
func TestSecondsRounding(t *testing.T) {
	for d, want := range map[time.Duration]int64{
		0: 0, time.Nanosecond: 0, 400 * time.Microsecond: 0, 999_999: 0, time.Millisecond: 1,
		999 * time.Millisecond: 1, time.Second: 1, 5*time.Second + 400*time.Microsecond: 5,
		5*time.Second + time.Millisecond: 6, math.MaxInt64: 9223372037,
	} {
		if got := seconds(d); got != want {
			t.Errorf("seconds(%v): got %d, want %d", d, got, want)
		}
	}
}

// Limits that fall on the same place are not mistaken for one another.
func TestLimiterCacheDistinguishesLimits(t *testing.T) {
	d := newServerWithClock(newFakeClock())
	for i := range int64(2000) {
		for _, p := range []throttleParams{{i, 1, 60}, {5, i + 1, 60}, {5, 1, i + 1}} {
			limiter := must(d.limiters.get(p)).limiter
			if got, want := limiter.Limit(), must(p.limit()); got != want {
				t.Fatalf("%+v: got %v, want %v", p, got, want)
			}
		}
	}
}

// A key that is there has some time left, however little.
func TestKeysLastNanosecond(t *testing.T) {
	clock := newFakeClock()
	c := newFakeClient(newServerWithClock(clock))
	c.do(t, "CL.THROTTLE", "alice", "0", "1", "1")
	clock.add(time.Second - time.Nanosecond)
	for name, want := range map[string]string{"PTTL": ":1", "TTL": ":0", "EXISTS": ":1", "TYPE": "+string", "GET": `"1772442001000000000"`} {
		if got := c.do(t, name, "alice"); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	clock.add(time.Nanosecond)
	if got := c.do(t, "PTTL", "alice"); got != ":-2" {
		t.Errorf("PTTL: got %s, want :-2", got)
	}
}
