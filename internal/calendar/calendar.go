// Package calendar divides time into the days, weeks, months and years of a zone.
package calendar

import (
	"strings"
	"time"
)

// A Unit is what a calendar divides time into.
type Unit uint8

// The units, from the shortest.
const (
	Day Unit = iota
	Week
	Month
	Year
)

const day = 24 * time.Hour

// units are the lengths of the units, as dates and nominally.
var units = [...]struct {
	years, months, days int
	length              time.Duration
}{
	Day:   {days: 1, length: day},
	Week:  {days: 7, length: 7 * day},
	Month: {months: 1, length: 30 * day},
	Year:  {years: 1, length: 365 * day},
}

// Length returns the nominal length of a unit.
func (u Unit) Length() time.Duration { return units[u].length }

// UnitOf returns the unit of a nominal length, and false if there is none.
func UnitOf(length time.Duration) (u Unit, ok bool) {
	for u := range units {
		if units[u].length == length {
			return Unit(u), true
		}
	}
	return 0, false
}

// A Calendar divides time into the days, weeks, months or years of a zone.
//
// A date begins at the first instant whose local date is that date or a later
// one. A window begins when its first date does, plus the offset. So every
// instant belongs to exactly one window, and a window ends where the next begins,
// whatever clock changes the zone has. If midnight is skipped, the window begins
// at the first instant after it. If midnight occurs twice, it begins at the
// first. A date that never occurs has no window.
type Calendar struct {
	Zone   *time.Location
	Unit   Unit
	Offset time.Duration
}

// Window returns the window that contains now: start ≤ now < end.
func (c *Calendar) Window(now time.Time) (start, end time.Time) {
	now = now.Add(-c.Offset)
	first := c.firstDate(now.In(c.Zone).Date())
	start = c.dateStart(first)
	for {
		// The next window can have begun before now although now's date is
		// still in this one: where clocks are set back just after midnight,
		// the old date shows once more.
		first = c.nextDate(first)
		end = c.dateStart(first)
		if end.After(now) {
			return start.Add(c.Offset), end.Add(c.Offset)
		}
		start = end
	}
}

// firstDate returns the first date of the window that contains a date. A date is
// represented by its midnight in UTC, which always exists.
func (c *Calendar) firstDate(year int, month time.Month, day int) time.Time {
	switch c.Unit {
	case Year:
		month, day = time.January, 1
	case Month:
		day = 1
	case Week:
		weekday := time.Date(year, month, day, 0, 0, 0, 0, time.UTC).Weekday()
		day -= (int(weekday) + 6) % 7 // days since Monday
	}
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// nextDate returns the first date of the window after the one that begins at
// first.
func (c *Calendar) nextDate(first time.Time) time.Time {
	u := &units[c.Unit]
	return first.AddDate(u.years, u.months, u.days)
}

// dateStart returns the first instant whose date in the zone is the given one or
// later. It goes through the periods of constant UTC offset, because [time.Date]
// does not specify which instant it returns for a midnight that is skipped or
// occurs twice.
func (c *Calendar) dateStart(date time.Time) time.Time {
	// No zone is two days ahead of UTC, so the date has not begun by then.
	at := date.Add(-2 * day).In(c.Zone)
	for {
		_, ahead := at.Zone()
		midnight := date.Add(-time.Duration(ahead) * time.Second).In(c.Zone)
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

// LoadZone returns the location of an IANA time zone, and false if there is none of this name.
//
// [time.LoadLocation] accepts names that depend on the machine: "Local", and any
// file in its zone directory, such as "localtime" or "right/UTC", by any path. A
// zone must mean the same on every machine. Names that do begin with a capital
// letter and have no special characters.
func LoadZone(name string) (*time.Location, bool) {
	if !isZoneName(name) || name == "Local" {
		return nil, false
	}
	zone, err := time.LoadLocation(name)
	return zone, err == nil
}

const zoneChars = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+/"

func isZoneName(name string) bool {
	return name != "" && 'A' <= name[0] && name[0] <= 'Z' && strings.Trim(name, zoneChars) == "" && !strings.Contains(name+"/", "//")
}
