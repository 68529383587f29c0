package rules

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/timespan"
)

// A Rule is one limit of a rule file. It is read-only.
type Rule struct {
	// Name is the path of the rule, such as "api/path=login/user": the
	// domain, then each node's key and value, escaped where ambiguous. It is
	// unique within a set.
	Name string

	// File and Line are where the rule is defined.
	File string
	Line int

	// Index is the rule's index in [Set.Rules].
	Index int

	// Limit is the limit to apply. Its Name is the rule's, shortened to 64 bytes
	// with a hash if it is longer, so that state survives a reload.
	Limit penstock.Limit

	// Also is a further limit on the same keys, as a rule of its own, and so on. A descriptor
	// that matches is under all of them.
	Also      *Rule
	isFurther bool // whether it is a further limit of another rule

	// Candidate is the rule with the limit that is tried beside its own. Nil without one.
	Candidate *Rule

	// Unlimited rules allow everything and count nothing; Limit is unset.
	Unlimited bool

	// Shadow rules never deny.
	Shadow bool

	// Quota rules deny only if all quota rules of a request are over their limit.
	Quota bool

	// ChargeAlways rules are told what has happened: their hits are charged in full, as
	// debt where they do not fit, and a request is over the limit if nothing was left
	// before.
	ChargeAlways bool

	// KeepFree is how many units must remain after a take; see
	// [penstock.Request.KeepFree].
	KeepFree int64
	keepFree keptUnits // as the file has it

	// Settle lets callers take under an ID, and settle what they took once its cost is
	// known. The ID is remembered for Hold, or for one period if that is longer.
	Settle bool
	Hold   time.Duration

	// CountedBy is the name of the rule whose limit and keys this one uses: its own
	// name, or that of the rule above if it only keeps units of that one free.
	CountedBy string

	// RequestsPerUnit and Unit describe the limit in responses to Envoy. Unit is
	// UnknownUnit if Envoy has no unit of that length.
	RequestsPerUnit uint32
	Unit            Unit

	// Alias is the name by which other rules replace this one; responses to Envoy
	// contain it.
	Alias string

	// Replaces are the aliases of the rules that this one replaces.
	Replaces []string

	// Metadata is sent to Envoy when the rule allows a request. Its values are those
	// of JSON: nil, bool, int64, uint64, float64, string, []any, map[string]any.
	Metadata map[string]any

	// ID is the key of the descriptor entry whose value names the permits of a
	// concurrent limit. That entry is no part of the key that is limited. It is
	// empty for all other limits.
	ID string

	// OnStoreFailure is how requests are decided while the store is unavailable.
	OnStoreFailure OnStoreFailure

	// Share is the fraction of the limit that this node grants by itself while the
	// store is unavailable, above 0 and at most 1; 0 means the server's default.
	Share float64

	// Lease allows this node to take units in advance and to spend them locally;
	// only token buckets support it. Nil means the server's default.
	Lease *bool

	// DenyCache allows this node to cache denials. Nil means the server's default.
	DenyCache *bool

	// Global makes the limit hold over all regions together. Nil means that each region counts for itself.
	Global *Global

	// Penalty bans keys that are denied too often. Nil means that none is.
	Penalty *Penalty

	metric *metric // nil if metrics name requests by the rule alone
}

// A Global is how a limit holds over all regions together; see package regions.
type Global struct {
	Pool        float64        // the part of the limit that regions may hold, above 0 and at most 0.9; 0 means the default
	Age         time.Duration  // for how long a region takes units in advance; 0 means the default
	OnPartition OnStoreFailure // while the home region does not answer; FailDefault means FailDeny
}

// String returns what the rule says of it.
func (g *Global) String() string {
	if g == nil {
		return "no"
	}
	text := "over all regions together"
	if g.Pool > 0 {
		text += fmt.Sprintf(", regions hold up to %g%%", math.Round(g.Pool*1e4)/100)
	}
	if g.Age > 0 {
		text += ", for " + timespan.Text(g.Age)
	}
	if g.OnPartition != FailDefault {
		text += ", " + g.OnPartition.String() + " without home"
	}
	return text
}

// A Penalty bans a key after so many denials.
type Penalty struct {
	After  int64         // denials …
	Within time.Duration // … in a window of this length that begins with the first
	For    time.Duration // the length of the first ban; each further one is twice as long
	UpTo   time.Duration // the longest ban
}

// String returns the penalty as a sentence.
func (p *Penalty) String() string {
	if p == nil {
		return "none"
	}
	return fmt.Sprintf("%d denials within %s ban a key for %s, then twice as long each time, up to %s",
		p.After, timespan.Text(p.Within), timespan.Text(p.For), timespan.Text(p.UpTo))
}

// WithLimit returns the rule with another limit.
func (r *Rule) WithLimit(l penstock.Limit) *Rule {
	changed := *r
	changed.Limit, changed.KeepFree = l, r.keepFree.of(l.Capacity())
	changed.setUnit()
	return &changed
}

// WithoutLimit returns the rule as one that allows everything.
func (r *Rule) WithoutLimit() *Rule {
	changed := *r
	changed.Limit, changed.Unlimited, changed.RequestsPerUnit, changed.Unit = penstock.Limit{}, true, 0, UnknownUnit
	return &changed
}

// setUnit describes the limit in Envoy's terms.
func (r *Rule) setUnit() {
	r.RequestsPerUnit = uint32(min(r.Limit.Count, math.MaxUint32))
	r.Unit = unitOf(r.Limit.Period)
}

// A Unit is the unit of time of a limit, with the numbers of Envoy's protocol.
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

type unitRow struct {
	name   string
	length time.Duration
	align  penstock.Align // AlignFirst if calendars do not have it
}

// units are all units. A month has 30 days and a year 365, as in Envoy's service.
var units = []unitRow{
	UnknownUnit: {name: "unknown"},
	Second:      {name: "second", length: time.Second},
	Minute:      {name: "minute", length: time.Minute},
	Hour:        {name: "hour", length: time.Hour},
	Day:         {"day", 24 * time.Hour, penstock.AlignDay},
	Month:       {"month", 30 * 24 * time.Hour, penstock.AlignMonth},
	Year:        {"year", 365 * 24 * time.Hour, penstock.AlignYear},
	Week:        {"week", 7 * 24 * time.Hour, penstock.AlignWeek},
}

// String returns the unit's name in rule files.
func (u Unit) String() string {
	if u < 0 || int(u) >= len(units) {
		return "unit(" + strconv.Itoa(int(u)) + ")"
	}
	return units[u].name
}

// unitNames returns the units that rule files can have.
func unitNames() (names []string) {
	for _, u := range units[Second:] {
		names = append(names, u.name)
	}
	return names
}

// Length returns how long the unit is, or 0 if it is not known.
func (u Unit) Length() time.Duration {
	if u < 0 || int(u) >= len(units) {
		return 0
	}
	return units[u].length
}

func (u Unit) align() penstock.Align { return units[u].align }

// Limit returns a limit of requests per unit as Envoy's service counts it: in fixed
// windows aligned to the clock. The unit must not be UnknownUnit.
func (u Unit) Limit(requests uint32) penstock.Limit {
	return penstock.Limit{
		Algorithm: penstock.FixedWindow,
		Align:     penstock.AlignClock,
		Count:     int64(requests),
		Period:    u.Length(),
	}
}

// CalendarMonth returns a limit of windows of a month with those of the calendar, in UTC, and others as they are.
func CalendarMonth(l penstock.Limit) penstock.Limit {
	if l.CanAlign() && l.Align == penstock.AlignClock && l.Period == Month.Length() {
		l.Align, l.Zone = penstock.AlignMonth, "UTC"
	}
	return l
}

// parseUnit returns the unit of that name, ignoring case.
func parseUnit(name string) (u Unit, valid bool) {
	u = Unit(max(0, slices.IndexFunc(units, func(r unitRow) bool { return strings.EqualFold(name, r.name) })))
	return u, u > UnknownUnit
}

// unitOf returns the unit of that length.
func unitOf(period time.Duration) Unit {
	return Unit(max(0, slices.IndexFunc(units, func(r unitRow) bool { return r.length == period })))
}

// An OnStoreFailure is how requests are decided while the store is unavailable.
type OnStoreFailure uint8

// The ways to decide without the store.
const (
	FailDefault OnStoreFailure = iota // the server's default
	FailLocal                         // by a share of the limit, counted locally
	FailAllow
	FailDeny
)

var failureNames = []string{"default", "local", "allow", "deny"}

// String returns the name in rule files.
func (f OnStoreFailure) String() string {
	if int(f) >= len(failureNames) {
		return "failure(" + strconv.Itoa(int(f)) + ")"
	}
	return failureNames[f]
}

// An Entry is one key and value of a descriptor.
type Entry = penstock.Entry
