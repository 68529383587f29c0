package penstock

import (
	"fmt"
	"strconv"
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
	"github.com/penstock-io/penstock/internal/calendar"
	"github.com/penstock-io/penstock/internal/timespan"
)

// The bounds of limits.
const (
	day = 24 * time.Hour

	maxNameBytes    = 64
	maxPeriod       = 366 * day
	defaultBuckets  = 10
	maxBuckets      = 1000
	maxLogCount     = 10_000
	maxLogPeriod    = 24 * day
	maxSlidingCount = 1<<26 - 1

	maxConcurrentCount  = 10_000
	maxConcurrentPeriod = day
)

// Validate returns nil if the limit is valid, or else a [*FieldError] of kind
// [ErrBadLimit] that names the first invalid field. A Burst or Buckets that the
// algorithm does not use is ignored.
func (l Limit) Validate() error { return l.validate() }

// validate is Validate without copying the limit: stores validate every request.
func (l *Limit) validate() error {
	if err := l.checkNames(); err != nil {
		return err
	}
	if err := l.checkAlign(); err != nil {
		return err
	}
	if err := l.checkPeriod(); err != nil {
		return err
	}
	if err := l.checkAlgorithm(); err != nil {
		return err
	}
	return l.checkDebt()
}

// checkNames checks the name, the algorithm and the alignment.
func (l *Limit) checkNames() error {
	if len(l.Name) > maxNameBytes {
		return badLimit("Name", "%d bytes long: must be at most %d", len(l.Name), maxNameBytes)
	}
	if !l.isKnown() {
		return badLimit("Algorithm", "%d: must be at most %d", l.Algorithm, len(algorithms)-1)
	}
	if l.Align > AlignYear {
		return badLimit("Align", "%d: must be one of the six, at most %d", uint8(l.Align), uint8(AlignYear))
	}
	return nil
}

// checkAlign checks the count, and that an alignment, offset or zone applies to the limit. If it
// were ignored, a quota meant to begin at midnight would begin at any time.
func (l *Limit) checkAlign() error {
	switch {
	case l.Align != AlignFirst && !l.aligns():
		return badLimit("Align", "%s: requires Algorithm FixedWindow, not %s", l.Align, l.Algorithm)
	case l.Zone != "" && l.calendarPeriod() == 0:
		return badLimit("Zone", "%q: requires Algorithm FixedWindow, and Align AlignDay, AlignWeek, AlignMonth or AlignYear", l.Zone)
	case l.Offset != 0 && l.Align == AlignFirst:
		return badLimit("Offset", "%s: requires Algorithm FixedWindow, and an Align other than AlignFirst", timespan.Text(l.Offset))
	case l.Count < 0:
		return badLimit("Count", "%d: must not be negative", l.Count)
	}
	return nil
}

func (l *Limit) checkPeriod() error {
	if nominal := l.calendarPeriod(); nominal != 0 {
		if l.Period == 0 || l.Period == nominal {
			return nil
		}
		return badLimit("Period", "%s: must be %s, or 0, with Align %s",
			timespan.Text(l.Period), timespan.Text(nominal), l.Align)
	}
	if l.Period <= 0 {
		return badLimit("Period", "%s: must be more than zero", timespan.Text(l.Period))
	}
	if l.Period > maxPeriod {
		return badLimit("Period", "%s: must be at most %s", timespan.Text(l.Period), timespan.Text(maxPeriod))
	}
	return nil
}

// checkAlgorithm checks the fields that depend on the algorithm.
func (l *Limit) checkAlgorithm() error {
	switch {
	case l.isBucket():
		return l.checkBucket()
	case l.aligns():
		return l.checkWindow()
	case l.hasParts():
		return l.checkParts()
	}
	return l.checkBounds()
}

// checkBounds checks the bounds that only this algorithm has.
func (l *Limit) checkBounds() error {
	count, period := &algorithms[l.Algorithm].maxCount, &algorithms[l.Algorithm].maxPeriod
	if count.most > 0 && l.Count > count.most {
		return badLimit("Count", "%d: must be at most %d for %s", l.Count, count.most, count.text)
	}
	if period.most > 0 && int64(l.Period) > period.most {
		return badLimit("Period", "%s: must be at most %s for %s",
			timespan.Text(l.Period), timespan.Text(time.Duration(period.most)), period.text)
	}
	return nil
}

func (l *Limit) checkBucket() error {
	if l.Burst < 0 {
		return badLimit("Burst", "%d: must not be negative", l.Burst)
	}
	n := l.Normal()
	interval, ok := algorithm.Interval(n.Count, int64(n.Period), n.Burst)
	if !ok {
		return badLimit("Count", "%d: cannot be spread evenly over %s to within 0.1 %%%s",
			l.Count, timespan.Text(l.Period), nearestText(algorithm.NearestCounts(l.Count, int64(l.Period), l.Burst)))
	}
	if n.Burst > algorithm.MaxRefill/interval {
		return badLimit("Burst", "%d: must be at most %d, which takes 73 years to refill",
			n.Burst, algorithm.MaxRefill/interval)
	}
	return nil
}

// checkDebt checks the debt of a limit whose other fields are valid.
func (l *Limit) checkDebt() error {
	switch {
	case !l.canOwe() || l.Count == 0 && l.Debt >= NoDebt:
		return nil
	case l.Debt < NoDebt:
		return badLimit("Debt", "%d: must not be negative, except for NoDebt", l.Debt)
	}
	if most := l.mostDebt(); l.Debt > most {
		return badLimit("Debt", "%d: must be at most %d for this %s", l.Debt, most, l.Algorithm)
	}
	return nil
}

// mostDebt returns the largest valid debt of a limit whose other fields are valid.
func (l *Limit) mostDebt() int64 {
	if l.isBucket() {
		return algorithm.MaxOverdraft(l.Count, int64(l.Period), l.normalBurst())
	}
	return l.mostCount() - l.Count
}

func (l *Limit) checkWindow() error {
	if l.Align == AlignFirst {
		return nil
	}
	if l.calendarPeriod() != 0 {
		if _, err := loadZone(l.Zone); err != nil {
			return err
		}
	}
	if period, _, _ := l.normalWindow(); l.Offset <= -period || l.Offset >= period {
		return badLimit("Offset", "%s: must be shorter than the period of %s",
			timespan.Text(l.Offset), timespan.Text(period))
	}
	return nil
}

func (l *Limit) checkParts() error {
	if l.Buckets < 0 || l.Buckets > maxBuckets {
		return badLimit("Buckets", "%d: must be from 1 to %d, or 0 for %d", l.Buckets, maxBuckets, defaultBuckets)
	}
	return nil
}

func nearestText(below, above int64) string {
	switch {
	case below == 0 && above == 0:
		return ""
	case above == 0:
		return "; the nearest that can is " + strconv.FormatInt(below, 10)
	case below == 0:
		return "; the nearest that can is " + strconv.FormatInt(above, 10)
	}
	return fmt.Sprintf("; the nearest that can are %d and %d", below, above)
}

func badLimit(field, format string, args ...any) *FieldError {
	return &FieldError{Field: field, Problem: fmt.Sprintf(format, args...), Kind: ErrBadLimit}
}

// newCalendar returns the calendar of a fixed window.
func newCalendar(l Limit) (*calendar.Calendar, error) {
	if l.calendarPeriod() == 0 {
		return nil, badLimit("Align", "%s: follows no calendar", l.Align)
	}
	zone, err := loadZone(l.Zone)
	if err != nil {
		return nil, err
	}
	return &calendar.Calendar{Zone: zone, Unit: l.Align.unit(), Offset: l.Offset}, nil
}

// unit returns what an alignment to the calendar divides time into.
func (a Align) unit() calendar.Unit { return calendar.Unit(a - AlignDay) }

// calendarPeriod returns the nominal length of a window that follows the
// calendar, or zero for any other limit.
func (l Limit) calendarPeriod() time.Duration {
	if !l.aligns() || l.Align < AlignDay || l.Align > AlignYear {
		return 0
	}
	return l.Align.unit().Length()
}

// calendarAlign returns the alignment of a period that is a day, week, month or
// year of the calendar, or else AlignFirst.
func calendarAlign(period time.Duration) Align {
	if u, ok := calendar.UnitOf(period); ok {
		return AlignDay + Align(u)
	}
	return AlignFirst
}

// loadZone returns the location of an IANA time zone; the default is UTC.
func loadZone(name string) (*time.Location, error) {
	switch {
	case name == "":
		return time.UTC, nil
	case len(name) > maxNameBytes:
		return nil, badLimit("Zone", "%d bytes long: must be at most %d", len(name), maxNameBytes)
	case name == "Local":
		return nil, badLimit("Zone", "%q: differs between machines; want an IANA time zone such as Europe/Berlin", name)
	}
	if zone, ok := calendar.LoadZone(name); ok {
		return zone, nil
	}
	return nil, badLimit("Zone", "%q: want an IANA time zone such as Europe/Berlin, "+
		"and zone data on this machine or an import of time/tzdata", name)
}
