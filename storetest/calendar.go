package storetest

import (
	"time"

	"github.com/penstock-io/penstock"
	"github.com/penstock-io/penstock/internal/algorithm"
)

// window returns the fixed window that a request made now would open.
func window(l penstock.Limit, now int64) algorithm.Window {
	switch l.Align {
	case penstock.AlignFirst:
		return algorithm.Window{End: now + int64(l.Period), Length: int64(l.Period)}
	case penstock.AlignClock:
		return algorithm.Aligned(now, int64(l.Period), int64(l.Offset))
	}
	start, end := calendarWindow(l, time.Unix(0, now))
	return algorithm.Window{End: end.UnixNano(), Length: int64(end.Sub(start))}
}

// calendarWindow returns the day, week, month or year that contains now. It is slow and
// simple: it starts a few dates early, and goes from window to window until one ends
// after now.
func calendarWindow(l penstock.Limit, now time.Time) (start, end time.Time) {
	zone, err := time.LoadLocation(l.Zone)
	if err != nil {
		return now, now // unreachable: Validate has checked the zone
	}
	date := firstDate(l.Align, now.Add(-l.Offset).In(zone).AddDate(0, 0, -2))
	for end = dateBegins(date, zone).Add(l.Offset); !end.After(now); {
		start = end
		date = nextDate(l.Align, date)
		end = dateBegins(date, zone).Add(l.Offset)
	}
	return start, end
}

// firstDate returns the first date of the window that t's date is in. A date is
// represented by its midnight in UTC, which always exists.
func firstDate(align penstock.Align, t time.Time) time.Time {
	year, month, dom := t.Date()
	date := time.Date(year, month, dom, 0, 0, 0, 0, time.UTC)
	switch align {
	case penstock.AlignWeek:
		for date.Weekday() != time.Monday {
			date = date.AddDate(0, 0, -1)
		}
	case penstock.AlignMonth:
		date = time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
	case penstock.AlignYear:
		date = time.Date(year, time.January, 1, 0, 0, 0, 0, time.UTC)
	}
	return date
}

func nextDate(align penstock.Align, date time.Time) time.Time {
	switch align {
	case penstock.AlignWeek:
		return date.AddDate(0, 0, 7)
	case penstock.AlignMonth:
		return date.AddDate(0, 1, 0)
	case penstock.AlignYear:
		return date.AddDate(1, 0, 0)
	}
	return date.AddDate(0, 0, 1)
}

// dateBegins returns the first instant at which the local time in the zone shows the
// date or a later one. It tries every quarter of an hour, since all offsets and changes
// are multiples of that.
func dateBegins(date time.Time, zone *time.Location) time.Time {
	// No zone is a whole day ahead of UTC.
	for t := date.Add(-day); ; t = t.Add(15 * time.Minute) {
		year, month, dom := t.In(zone).Date()
		if !time.Date(year, month, dom, 0, 0, 0, 0, time.UTC).Before(date) {
			return t
		}
	}
}
