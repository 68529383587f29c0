package regions

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/penstock-io/penstock"
)

// Settings are those of one global limit.
type Settings struct {
	// Pool is the share of the limit's capacity that the pools of all regions may hold
	// together, above 0 and at most 0.9. More of it means fewer calls to home, and less for a
	// burst in one region alone. Default: 0.2 for fixed windows, 0.04 for other windows, and for
	// buckets 0.04 for each region up to 0.15, or up to 0.7 if two round trips of their rate need more.
	Pool float64

	// Age is for how long a lot should last: a region asks home for what it spends in that time,
	// as far as Pool allows. Default: 10 seconds.
	Age time.Duration

	// OnPartition is how requests are decided that the pool cannot grant while home does not
	// answer. Default: Deny.
	OnPartition OnPartition
}

// An OnPartition is what a region does without home when its pool is empty.
type OnPartition uint8

// What a region does without home.
const (
	Deny  OnPartition = iota // nothing is granted beyond what home has granted before
	Local                    // the region grants a part of the limit, one of as many as there are regions, by itself
	Allow                    // everything is granted
)

var failureModes = map[OnPartition]penstock.FailureMode{
	Deny: penstock.FailClosed, Local: penstock.FailLocal, Allow: penstock.FailOpen,
}

// MaxPool is the largest share of a limit that pools may hold: home needs something to grant.
const MaxPool = 0.9

// MaxAge is the longest time for which a lot can be meant.
const MaxAge = time.Hour

const (
	defaultAge = 10 * time.Second

	windowHold  = 0.2  // of fixed windows, whose units are never kept free
	slidingHold = 0.04 // of windows that lose this share of their rate
	bucketHold  = 0.15 // of buckets, over four regions and more
	regionHold  = 0.04 // of buckets, for each of fewer
	fastHold    = 0.7  // of buckets that refill within a few round trips

	maxUnits = 1 << 50 // scripts count so many exactly
)

func (s Settings) withDefaults() (Settings, error) {
	if s.Age == 0 {
		s.Age = defaultAge
	}
	switch {
	case s.Pool < 0 || s.Pool > MaxPool || math.IsNaN(s.Pool):
		return s, fmt.Errorf("regions: Settings.Pool %v: want above 0 and at most %v", s.Pool, MaxPool)
	case s.Age < 0 || s.Age > MaxAge:
		return s, fmt.Errorf("regions: Settings.Age %v: want above 0 and at most %v", s.Age, MaxAge)
	case s.OnPartition > Allow:
		return s, errors.New("regions: Settings.OnPartition: want Deny, Local or Allow")
	}
	return s, nil
}

// Sizes are what regions and home agree about a limit. All regions must compute the same ones:
// from the same limit, settings and number of regions.
type Sizes struct {
	// Hold is the most that one region holds. With 0, home decides every request.
	Hold int64

	// KeepFree is how many units home keeps free for what regions hold.
	KeepFree int64

	// Pause is how long a region waits before it asks again when home had too little.
	Pause time.Duration

	// Slow reports whether requests in one region wait for lots if it uses the whole rate: the rate brings
	// more in two round trips than a pool may hold.
	Slow bool

	// Ends reports whether units end with the window that they were charged to.
	Ends bool
}

// String returns the sizes in words.
func (z Sizes) String() string {
	if z.Hold == 0 {
		return "home decides every request"
	}
	text := fmt.Sprintf("each holds up to %d units in advance, home keeps %d free", z.Hold, z.KeepFree)
	if z.Ends {
		text = fmt.Sprintf("each holds up to %d units in advance, until the window ends", z.Hold)
	}
	if z.Slow {
		text += "; at the full rate, which brings more in two round trips, requests wait for home"
	}
	return text
}

// SizesOf returns the sizes of a limit with these settings over so many regions, the farthest of
// which is a round trip from home.
func SizesOf(l penstock.Limit, s Settings, regions int, roundTrip time.Duration) Sizes {
	n := l.Normal()
	capacity := float64(n.Capacity())
	if n.HasPermits() || n.HasQueue() || n.Count == 0 {
		return Sizes{}
	}
	perSecond := float64(n.Count) / n.Period.Seconds()
	inFlight := perSecond * roundTrip.Seconds() // what the rate brings in one round trip
	hold := s.Pool
	ends := n.ResetsAtOnce()
	switch {
	case hold != 0:
	case n.IsBucket():
		usual := min(regionHold*float64(regions), bucketHold)
		hold = min(max(2*inFlight*float64(regions)/capacity, usual), fastHold)
	case ends:
		hold = windowHold
	default:
		hold = slidingHold
	}
	z := Sizes{Hold: int64(min(hold*capacity/float64(regions), maxUnits)), Ends: ends}
	if z.Hold == 0 && n.Capacity() >= 2*int64(regions) {
		z.Hold = 1
	}
	if !ends {
		z.KeepFree = z.Hold * int64(regions)
	}
	if z.Slow = float64(z.Hold) < 2*inFlight; !z.Slow {
		z.Pause = pauseOf(float64(z.Hold)/perSecond, roundTrip.Seconds())
	}
	return z
}

// pauseOf returns how long home collects units for a region that found too few: half of the time
// in which the rate fills a pool, or up to two seconds if the pool, filled once for each pause and
// round trip, can still carry the whole rate.
func pauseOf(fill, roundTrip float64) time.Duration {
	const usual, most = 2, 5
	pause := min(max(fill/2, min(usual, fill-1.5*roundTrip)), most)
	return time.Duration(pause * float64(time.Second))
}
