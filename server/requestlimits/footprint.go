package requestlimits

import (
	"math"
	"math/bits"
	"time"

	"github.com/penstock-io/penstock"
)

// A footprint is the most that takes under a limit can leave behind for one key.
type footprint struct {
	bytes    int64         // in the store, without the key's own bytes
	lifetime time.Duration // after the last take, on Redis
}

// footprintOf returns the footprint of a valid limit. It bounds what any store needs, so
// that a ceiling means the same with each of them.
func footprintOf(l *penstock.Limit) footprint {
	n := l.Normal()
	return footprint{bytes: keyOverhead + max(memoryBytes(&n), redisBytes(&n)), lifetime: lifetimeOf(&n)}
}

// What Redis needs for a key besides its name and value: an entry in the table of keys,
// another in that of expiries, and their places in arrays that double in size. A slot of
// the memory store needs less.
const keyOverhead = 160

// Redis allocates in sizes of which each is at most a quarter above the one before, and
// keeps up to a tenth of a string in reserve.
const allocationFactor = 1.4

// redisBytes returns the size of a value in Redis, under a normal limit.
func redisBytes(n *penstock.Limit) int64 {
	const header = 32
	switch n.Algorithm {
	case penstock.RollingWindow:
		perBucket := int64(1 + digits(n.Count))
		return header + int64(allocationFactor*float64(16+(int64(n.Buckets)+1)*perBucket))
	case penstock.SlidingLog:
		return header + int64(allocationFactor*float64(4*n.Count))
	case penstock.Concurrent:
		return header + int64(allocationFactor*float64(16*n.Count))
	}
	return 64
}

// memoryBytes returns the size of a state in a memory store, under a normal limit. Blocks
// of words are at most an eighth longer than what they hold.
func memoryBytes(n *penstock.Limit) int64 {
	words := int64(0)
	switch n.Algorithm {
	case penstock.RollingWindow:
		words = max(int64(n.Buckets)+1, 8)
	case penstock.SlidingLog:
		words = max(n.Count, 8)
	case penstock.Concurrent:
		words = max(3*n.Count, 8)
	}
	return 8 * (words + words/8 + 1)
}

func digits(n int64) (count int) {
	for ; n > 0; n /= 10 {
		count++
	}
	return max(count, 1)
}

// nameBytes returns the size of the name of a key in Redis: the prefix, the caller's key or
// its hash, and the identity of the limit. Keys above 256 bytes are hashed, but may keep a
// hash tag of that length.
func nameBytes(prefix, key int) int64 {
	const hashed, around = 256, 80
	return int64(allocationFactor * float64(prefix+min(key, hashed)+around))
}

// recordBytes is the size of the record of a grant under a [penstock.Request] ID, without
// its name.
const recordBytes = keyOverhead + 96

// maxIDLifetime is the longest time for which an ID without a Hold is remembered.
const maxIDLifetime = 24 * time.Hour

// IDLifetime returns how long an ID without a Hold is remembered under a limit.
func IDLifetime(l *penstock.Limit) time.Duration { return min(l.Normal().Period, maxIDLifetime) }

// expirySlack is how much later than computed a key may expire: Redis counts in
// milliseconds, and a call takes a moment to arrive.
const expirySlack = 2 * time.Second

// lifetimeOf returns how long a key lives on Redis after a take, under a normal limit; see
// the layouts in docs/design/redis.md. In memory it is shorter.
func lifetimeOf(n *penstock.Limit) time.Duration {
	t := n.Period
	switch {
	case n.IsBucket():
		refill, debt := RefillTime(n, n.Burst), RefillTime(n, n.MaxDebt())
		t = refill + max(refill, debt, time.Minute) // reservations and charges reach that far
		t += t / 1000                               // how far the interval of a unit may be rounded
	case n.Algorithm == penstock.FixedWindow:
		if n.Align > penstock.AlignClock {
			t += 25 * time.Hour // no month has 32 days, and no day 26 hours
		}
		t += t / 10
	case n.HasPermits():
		t += t / 2 // the key of permits outlives the newest, to be set an expiry less often
	case n.Algorithm == penstock.RollingWindow:
		t += t/time.Duration(n.Buckets) + time.Duration(n.Buckets+1)*time.Millisecond
	case n.Algorithm == penstock.SlidingLog: // its newest time leaves after a period
	default:
		t *= 2 // a key may count until the period after its own ends
	}
	return t + expirySlack
}

// longestPeriod returns the time that the ceiling of a period applies to: the period, or
// the time in which an empty bucket refills or pays its debt, if that is longer.
func longestPeriod(l *penstock.Limit) time.Duration {
	n := l.Normal()
	if n.IsBucket() {
		return max(n.Period, RefillTime(&n, n.Burst), RefillTime(&n, n.MaxDebt()))
	}
	return n.Period
}

// RefillTime returns the time in which a bucket refills its burst, or its debt, under a normal
// limit. For a valid one it is at most 73 years.
func RefillTime(n *penstock.Limit, units int64) time.Duration {
	high, low := bits.Mul64(uint64(n.Period), uint64(units))
	if high >= uint64(n.Count) { // an invalid limit, or a Count of 0, which grants nothing
		return 0
	}
	t, _ := bits.Div64(high, low, uint64(n.Count))
	return time.Duration(t)
}

// maxKeyBytes returns the most that one key can leave behind under a limit, whatever the
// length of the key.
func maxKeyBytes(l *penstock.Limit) int64 {
	return footprintOf(l).bytes + nameBytes(0, math.MaxInt32)
}
