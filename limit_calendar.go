package penstock

import (
	"strings"
	"time"
)

// A calendar divides time into the days, weeks, months or years of a zone.
//
// A date begins at the first instant whose local date is that date or a later
// one. A window begins when its first date does, plus the offset. So every
// instant belongs to exactly one window, and a window ends where the next begins,
// whatever clock changes the zone has. If midnight is skipped, the window begins
// at the first instant after it. If midnight occurs twice, it begins at the
// first. A date that never occurs has no window.
type calendar struct {
	loc    *time.Location
	align  Align
	offset time.Duration
}

// newCalendar returns the calendar of a fixed window.
func newCalendar(l Limit) (*calendar, error) {
	if l.calendarPeriod() == 0 {
		return nil, badLimit("Align", "%s: follows no calendar", l.Align)
	}
	loc, err := loadZone(l.Zone)
	if err != nil {
		return nil, err
	}
	return &calendar{loc: loc, align: l.Align, offset: l.Offset}, nil
}

// window returns the window that contains now: start ≤ now < end.
func (c *calendar) window(now time.Time) (start, end time.Time) {
	now = now.Add(-c.offset)
	first := c.firstDate(now.In(c.loc).Date())
	start = c.dateStart(first)
	for {
		// The next window can have begun before now although now's date is
		// still in this one: where clocks are set back just after midnight,
		// the old date shows once more.
		first = c.nextDate(first)
		end = c.dateStart(first)
		if end.After(now) {
			return start.Add(c.offset), end.Add(c.offset)
		}
		start = end
	}
}

// firstDate returns the first date of the window that contains a date. A date is
// represented by its midnight in UTC, which always exists.
func (c *calendar) firstDate(year int, month time.Month, day int) time.Time {
	switch c.align {
	case AlignYear:
		month, day = time.January, 1
	case AlignMonth:
		day = 1
	case AlignWeek:
		weekday := time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Weekday()
		day -= (int(weekday) + 6) % 7 // days since Monday
	}
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// nextDate returns the first date of the window after the one that begins at
// first.
func (c *calendar) nextDate(first time.Time) time.Time {
	unit := &calendarUnits[c.align]
	return first.AddDate(unit.years, unit.months, unit.days)
}

// dateStart returns the first instant whose date in the zone is the given one or
// later. It goes through the periods of constant UTC offset, because [time.Date]
// does not specify which instant it returns for a midnight that is skipped or
// occurs twice.
func (c *calendar) dateStart(date time.Time) time.Time {
	// No zone is two days ahead of UTC, so the date has not begun by then.
	at := date.Add(-2 * day).In(c.loc)
	for {
		_, ahead := at.Zone()
		midnight := date.Add(-time.Duration(ahead) * time.Second).In(c.loc)
		if midnight.Before(at) {
			return at // a clock change skipped midnight
		}
		end := offsetEnd(at)
		if end.IsZero() || midnight.Before(end) {
			return midnight
		}
		at = end
	}
}

// offsetEnd returns the end of the period of constant UTC offset that contains t,
// or the zero time if it never ends. It may return an earlier end, after which
// the offset is the same.
func offsetEnd(t time.Time) time.Time {
	_, end := t.ZoneBounds()
	if end.IsZero() || end.After(t) {
		return end
	}
	// Beyond the zone's table of changes, ZoneBounds applies its yearly rule to
	// one year of UTC at a time, and takes each year to have 365 days. On the
	// last day of a leap year that end is before t; the year ends with the day.
	return t.Truncate(day).Add(day)
}

// calendarPeriod returns the nominal length of a window that follows the
// calendar, or zero for any other limit.
func (l Limit) calendarPeriod() time.Duration {
	if !l.aligns() || int(l.Align) >= len(calendarUnits) {
		return 0
	}
	return calendarUnits[l.Align].length
}

// calendarUnits are the lengths of windows by their alignment, as dates and nominally.
var calendarUnits = [...]struct {
	years, months, days int
	length              time.Duration
}{
	AlignDay:   {days: 1, length: day},
	AlignWeek:  {days: 7, length: 7 * day},
	AlignMonth: {months: 1, length: 30 * day},
	AlignYear:  {years: 1, length: 365 * day},
}

// calendarAlign returns the alignment of a period that is a day, week, month or
// year of the calendar, or else AlignFirst.
func calendarAlign(period time.Duration) Align {
	for a := AlignDay; a <= AlignYear; a++ {
		if period == (Limit{Algorithm: FixedWindow, Align: a}).calendarPeriod() {
			return a
		}
	}
	return AlignFirst
}

// loadZone returns the location of an IANA time zone; the default is UTC.
//
// [time.LoadLocation] accepts names that depend on the machine: "Local", and any
// file in its zone directory, such as "localtime" or "right/UTC", by any path. A
// limit must mean the same on every machine. Names that do begin with a capital
// letter and have no special characters.
func loadZone(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	if len(name) > maxNameBytes {
		return nil, badLimit("Zone", "%d bytes long: must be at most %d", len(name), maxNameBytes)
	}
	if name == "Local" {
		return nil, badLimit("Zone", "%q: differs between machines; want an IANA time zone such as Europe/Berlin", name)
	}
	if isZoneName(name) {
		if loc, err := time.LoadLocation(name); err == nil {
			return loc, nil
		}
	}
	return nil, badLimit("Zone", "%q: want an IANA time zone such as Europe/Berlin, "+
		"and zone data on this machine or an import of time/tzdata", name)
}

const zoneChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+/"

func isZoneName(name string) bool {
	return 'A' <= name[0] && name[0] <= 'Z' && strings.Trim(name, zoneChars) == "" && !strings.Contains(name+"/", "//")
}
