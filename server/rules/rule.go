package rules

import (
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
)

// A Rule is one limit of a rule file, made ready for matching. It is read only.
type Rule struct {
	// Name is where the rule stands, such as "api/path=login/user": the
	// domain, then each node's key and value, with what would be ambiguous
	// escaped. No two rules of a set have the same.
	Name string

	// File and Line are where the rule was written.
	File string
	Line int

	// Index is the rule's place in [Set.Rules].
	Index int

	// Limit is what the rule counts by. Its Name is the rule's, shortened to 64 bytes
	// with a hash where it is longer, so that state outlives a reload.
	Limit penstock.Limit

	// Unlimited rules allow everything and count nothing; Limit is unset.
	Unlimited bool

	// Shadow rules never deny.
	Shadow bool

	// Quota rules deny only when every quota rule of a request is over.
	Quota bool

	// RequestsPerUnit and Unit are what Envoy is told of the limit. Unit is
	// UnknownUnit where the period is none of Envoy's.
	RequestsPerUnit uint32
	Unit            Unit

	// Alias is the name that other rules can replace, and that Envoy is told.
	Alias string

	// Replaces are the aliases of the rules that this one stands in for.
	Replaces []string

	// Metadata is handed to Envoy when the rule passes. It is made of what JSON
	// is made of: nil, bool, int64, uint64, float64, string, []any, map[string]any.
	Metadata map[string]any

	// OnStoreFailure says what to do when the store cannot decide.
	OnStoreFailure OnStoreFailure

	// Share is the part of the limit that is counted here while the store cannot
	// decide, more than 0 and at most 1; 0 means as the server is set up.
	Share float64

	// Lease says whether units may be taken ahead and spent here, which only
	// those of token buckets can be; nil means as the server is set up.
	Lease *bool

	// DenyCache says whether denials may be remembered here; nil means as the
	// server is set up.
	DenyCache *bool
}

// A Unit is the unit of time of a limit, numbered as Envoy does.
type Unit int32

// Envoy's units of time.
const (
	UnknownUnit Unit = iota
	Second
	Minute
	Hour
	Day
	Month
	Year
	Week
)

var unitNames = []string{"unknown", "second", "minute", "hour", "day", "month", "year", "week"}

// String returns the unit's name as rule files have it.
func (u Unit) String() string {
	if u < 0 || int(u) >= len(unitNames) {
		return "unit(" + strconv.Itoa(int(u)) + ")"
	}
	return unitNames[u]
}

// Length returns how long the unit is: a month has 30 days and a year 365, as
// Envoy has it. It is 0 for the unknown unit.
func (u Unit) Length() time.Duration {
	const day = 24 * time.Hour
	switch u {
	case Second:
		return time.Second
	case Minute:
		return time.Minute
	case Hour:
		return time.Hour
	case Day:
		return day
	case Week:
		return 7 * day
	case Month:
		return 30 * day
	case Year:
		return 365 * day
	}
	return 0
}

// Limit returns Envoy's way to count so many requests per unit: in windows on the
// clock. The unit must be a known one.
func (u Unit) Limit(requests uint32) penstock.Limit {
	return penstock.Limit{
		Algorithm: penstock.FixedWindow,
		Align:     penstock.AlignClock,
		Count:     int64(requests),
		Period:    u.Length(),
	}
}

// parseUnit returns the unit of that name, in capitals or not.
func parseUnit(name string) (Unit, bool) {
	for u := Second; u <= Week; u++ {
		if strings.EqualFold(name, unitNames[u]) {
			return u, true
		}
	}
	return UnknownUnit, false
}

// unitOf returns the unit of that length.
func unitOf(period time.Duration) Unit {
	for u := Second; u <= Week; u++ {
		if u.Length() == period {
			return u
		}
	}
	return UnknownUnit
}

// An OnStoreFailure says what to do when the store cannot decide.
type OnStoreFailure uint8

// The ways to go on without the store.
const (
	FailDefault OnStoreFailure = iota // as the server is set up
	FailLocal                         // by a share of the limit, counted here
	FailAllow
	FailDeny
)

var failureNames = []string{"default", "local", "allow", "deny"}

// String returns the way's name as rule files have it.
func (f OnStoreFailure) String() string {
	if int(f) >= len(failureNames) {
		return "failure(" + strconv.Itoa(int(f)) + ")"
	}
	return failureNames[f]
}

// An Entry is one key and value of a descriptor.
type Entry struct{ Key, Value string }
