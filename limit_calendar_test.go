package penstock

import (
	"errors"
	"testing"
	"time"
	_ "time/tzdata" // the tests need zones on every machine

	"github.com/penstock-io/penstock/internal/calendar"
	_ "github.com/penstock-io/penstock/internal/fixedseed"
	"pgregory.net/rapid"
)

func newTestCalendar(t rapid.TB, align Align, zone string, offset time.Duration) *calendar.Calendar {
	t.Helper()
	c, err := newCalendar(Limit{Algorithm: FixedWindow, Align: align, Zone: zone, Offset: offset})
	if err != nil {
		t.Fatalf("newCalendar(%s in %s): %v", align, zone, err)
	}
	return c
}

func TestNewCalendarRefusesBadZoneOrAlign(t *testing.T) {
	for _, c := range []struct {
		limit Limit
		field string
	}{
		{Limit{Algorithm: FixedWindow, Align: AlignClock}, "Align"},
		{Limit{Algorithm: FixedWindow, Align: AlignFirst}, "Align"},
		{Limit{Algorithm: FixedWindow, Align: AlignDay, Zone: "Local"}, "Zone"},
		{Limit{Algorithm: FixedWindow, Align: AlignDay, Zone: "Nowhere"}, "Zone"},
	} {
		var bad *FieldError
		if got, err := newCalendar(c.limit); !errors.As(err, &bad) || bad.Field != c.field {
			t.Errorf("newCalendar(%+v) = %v, %v, want an error about %s", fields(c.limit), got, err, c.field)
		}
	}
}

var calendarWindows = []struct {
	why             string
	align           Align
	zone            string
	offset          time.Duration
	now, start, end string // in UTC, or in the zone with its offset
}{
	{
		"an ordinary day", AlignDay, "UTC", 0,
		"2024-05-15T12:34:56Z", "2024-05-15T00:00:00Z", "2024-05-16T00:00:00Z",
	},
	{
		"a day begins at its first instant", AlignDay, "UTC", 0,
		"2024-05-15T00:00:00Z", "2024-05-15T00:00:00Z", "2024-05-16T00:00:00Z",
	},
	{
		"and ends just before the next", AlignDay, "UTC", 0,
		"2024-05-15T23:59:59.999999999Z", "2024-05-15T00:00:00Z", "2024-05-16T00:00:00Z",
	},
	{
		"no zone is UTC", AlignDay, "", 0,
		"2024-05-15T23:00:00+08:00", "2024-05-15T00:00:00Z", "2024-05-16T00:00:00Z",
	},
	{
		"Shanghai is already in tomorrow", AlignDay, "Asia/Shanghai", 0,
		"2024-05-15T17:00:00Z", "2024-05-16T00:00:00+08:00", "2024-05-17T00:00:00+08:00",
	},
	{
		"weeks begin on Monday, which a Sunday is last to see", AlignWeek, "Asia/Shanghai", 0,
		"2024-05-19T23:59:59+08:00", "2024-05-13T00:00:00+08:00", "2024-05-20T00:00:00+08:00",
	},
	{
		"a Monday is in its own week", AlignWeek, "Asia/Shanghai", 0,
		"2024-05-20T00:00:00+08:00", "2024-05-20T00:00:00+08:00", "2024-05-27T00:00:00+08:00",
	},
	{
		"a week from one year into the next", AlignWeek, "UTC", 0,
		"2025-01-01T00:00:00Z", "2024-12-30T00:00:00Z", "2025-01-06T00:00:00Z",
	},
	{
		"February of a leap year", AlignMonth, "UTC", 0,
		"2024-02-29T23:00:00Z", "2024-02-01T00:00:00Z", "2024-03-01T00:00:00Z",
	},
	{
		"February of a year that is none, though divisible by four", AlignMonth, "UTC", 0,
		"2100-02-28T23:00:00Z", "2100-02-01T00:00:00Z", "2100-03-01T00:00:00Z",
	},
	{
		"a month whose ends have different offsets", AlignMonth, "Europe/Berlin", 0,
		"2024-03-31T12:00:00+02:00", "2024-03-01T00:00:00+01:00", "2024-04-01T00:00:00+02:00",
	},
	{
		"a year", AlignYear, "Asia/Shanghai", 0,
		"2024-12-31T23:59:59+08:00", "2024-01-01T00:00:00+08:00", "2025-01-01T00:00:00+08:00",
	},
	{
		"the billing month begins at four", AlignMonth, "Europe/Berlin", 4 * time.Hour,
		"2024-04-01T03:59:59+02:00", "2024-03-01T04:00:00+01:00", "2024-04-01T04:00:00+02:00",
	},
	{
		"an offset back into the day before", AlignDay, "UTC", -2 * time.Hour,
		"2024-05-15T22:00:00Z", "2024-05-15T22:00:00Z", "2024-05-16T22:00:00Z",
	},
	{
		"an offset is time that passes, so this day begins at five", AlignDay, "Europe/Berlin", 4 * time.Hour,
		"2024-03-31T05:00:00+02:00", "2024-03-31T05:00:00+02:00", "2024-04-01T04:00:00+02:00",
	},

	// Clocks set forward at midnight: the day begins at one.
	{
		"São Paulo, spring", AlignDay, "America/Sao_Paulo", 0,
		"2017-10-15T12:00:00-02:00", "2017-10-15T01:00:00-02:00", "2017-10-16T00:00:00-02:00",
	},
	{
		"São Paulo, the day before", AlignDay, "America/Sao_Paulo", 0,
		"2017-10-14T23:59:59-03:00", "2017-10-14T00:00:00-03:00", "2017-10-15T01:00:00-02:00",
	},
	{
		"Beirut", AlignDay, "Asia/Beirut", 0,
		"2017-03-26T02:00:00+03:00", "2017-03-26T01:00:00+03:00", "2017-03-27T00:00:00+03:00",
	},
	{
		"Cairo", AlignDay, "Africa/Cairo", 0,
		"2023-04-28T02:00:00+03:00", "2023-04-28T01:00:00+03:00", "2023-04-29T00:00:00+03:00",
	},
	{
		"Toronto, past midnight from half past eleven", AlignDay, "America/Toronto", 0,
		"1919-03-31T12:00:00-04:00", "1919-03-31T00:30:00-04:00", "1919-04-01T00:00:00-04:00",
	},

	// Clocks set back at midnight, to eleven: the day lasts 25 hours.
	{
		"São Paulo, autumn", AlignDay, "America/Sao_Paulo", 0,
		"2018-02-17T23:30:00-03:00", "2018-02-17T00:00:00-02:00", "2018-02-18T00:00:00-03:00",
	},
	{
		"Cairo, on a Thursday", AlignDay, "Africa/Cairo", 0,
		"2023-10-26T23:30:00+02:00", "2023-10-26T00:00:00+03:00", "2023-10-27T00:00:00+02:00",
	},

	// Clocks set at one minute past midnight. In autumn the new day lasts for
	// a minute before the old one returns for another hour.
	{
		"St. John's, spring", AlignDay, "America/St_Johns", 0,
		"2010-03-14T12:00:00-02:30", "2010-03-14T00:00:00-03:30", "2010-03-15T00:00:00-02:30",
	},
	{
		"St. John's, autumn, the first minute", AlignDay, "America/St_Johns", 0,
		"2010-11-07T00:00:30-02:30", "2010-11-07T00:00:00-02:30", "2010-11-08T00:00:00-03:30",
	},
	{
		"St. John's, autumn, the hour that repeats", AlignDay, "America/St_Johns", 0,
		"2010-11-06T23:30:00-03:30", "2010-11-07T00:00:00-02:30", "2010-11-08T00:00:00-03:30",
	},
	{
		"St. John's, autumn, the day before", AlignDay, "America/St_Johns", 0,
		"2010-11-06T23:30:00-02:30", "2010-11-06T00:00:00-02:30", "2010-11-07T00:00:00-02:30",
	},

	// Half an hour, and the date line.
	{
		"Lord Howe, spring", AlignDay, "Australia/Lord_Howe", 0,
		"2023-10-01T12:00:00+11:00", "2023-10-01T00:00:00+10:30", "2023-10-02T00:00:00+11:00",
	},
	{
		"Lord Howe, autumn", AlignDay, "Australia/Lord_Howe", 0,
		"2023-04-02T12:00:00+10:30", "2023-04-02T00:00:00+11:00", "2023-04-03T00:00:00+10:30",
	},
	{
		"Samoa, the last day to the east", AlignDay, "Pacific/Apia", 0,
		"2011-12-29T23:59:59-10:00", "2011-12-29T00:00:00-10:00", "2011-12-31T00:00:00+14:00",
	},
	{
		"Samoa, the first day to the west", AlignDay, "Pacific/Apia", 0,
		"2011-12-31T00:00:00+14:00", "2011-12-31T00:00:00+14:00", "2012-01-01T00:00:00+14:00",
	},
	{
		"Samoa, a week of six days", AlignWeek, "Pacific/Apia", 0,
		"2011-12-29T12:00:00-10:00", "2011-12-26T00:00:00-10:00", "2012-01-02T00:00:00+14:00",
	},
	{
		"Samoa, the fourth of July that came twice", AlignDay, "Pacific/Apia", 0,
		"1892-07-05T11:00:00Z", "1892-07-03T11:26:56Z", "1892-07-05T11:26:56Z",
	},
	{
		"Kwajalein skips a day", AlignDay, "Pacific/Kwajalein", 0,
		"1993-08-20T12:00:00-12:00", "1993-08-20T00:00:00-12:00", "1993-08-22T00:00:00+12:00",
	},

	// Years beyond the tables, where a rule says when clocks change.
	{
		"the last day of a leap year far from now", AlignDay, "America/New_York", 0,
		"2040-12-31T12:00:00-05:00", "2040-12-31T00:00:00-05:00", "2041-01-01T00:00:00-05:00",
	},
	{
		"a year that follows a leap year far from now", AlignYear, "Australia/Sydney", 0,
		"2041-07-01T00:00:00+10:00", "2041-01-01T00:00:00+11:00", "2042-01-01T00:00:00+11:00",
	},
}

func TestCalendarWindowContainsInstant(t *testing.T) {
	for _, c := range calendarWindows {
		now, start, end := instant(t, c.now), instant(t, c.start), instant(t, c.end)
		gotStart, gotEnd := newTestCalendar(t, c.align, c.zone, c.offset).Window(now)
		if !gotStart.Equal(start) || !gotEnd.Equal(end) {
			t.Errorf("%s: the %s in %q around %s\ngot  %v to %v\nwant %s to %s",
				c.why, c.align, c.zone, c.now, gotStart, gotEnd, c.start, c.end)
		}
	}
}

func instant(t *testing.T, s string) time.Time {
	t.Helper()
	at, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// zones have had unusual clock changes since 1972, or many inhabitants.
var zones = []string{
	"UTC", "Asia/Shanghai", "Asia/Kolkata", "Asia/Kathmandu", "Asia/Tokyo", "Europe/Berlin", "Europe/London",
	"Europe/Dublin", "Europe/Lisbon", "Europe/Moscow", "America/New_York", "America/Los_Angeles",
	"America/Sao_Paulo", "America/Asuncion", "America/Santiago", "America/Havana", "America/St_Johns",
	"America/Goose_Bay", "America/Scoresbysund", "America/Nuuk", "America/Caracas", "America/Godthab",
	"Africa/Cairo", "Africa/Casablanca", "Africa/Lagos", "Asia/Beirut", "Asia/Amman", "Asia/Damascus",
	"Asia/Gaza", "Asia/Tehran", "Asia/Pyongyang", "Asia/Dhaka", "Asia/Manila", "Atlantic/Azores",
	"Australia/Lord_Howe", "Australia/Sydney", "Australia/Eucla", "Pacific/Apia", "Pacific/Kwajalein",
	"Pacific/Kiritimati", "Pacific/Enderbury", "Pacific/Fakaofo", "Pacific/Chatham", "Antarctica/Troll",
	"Antarctica/Casey", "Etc/GMT-14", "Etc/GMT+12",
}

// anyInstant draws instants from 1973 to 2099, half of them within three days
// of a change of the zone's clocks or of the end of a year.
func anyInstant(t *rapid.T, loc *time.Location) time.Time {
	from := time.Date(1973, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	to := time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC).Unix()
	at := time.Unix(rapid.Int64Range(from, to).Draw(t, "second"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanosecond"))
	near := time.Duration(rapid.Int64Range(int64(-3*day), int64(3*day)).Draw(t, "near"))
	switch rapid.IntRange(0, 3).Draw(t, "kind") {
	case 0:
		return time.Date(at.Year(), 12, 31, 0, 0, 0, 0, time.UTC).Add(near)
	case 1, 2:
		if _, change := at.In(loc).ZoneBounds(); !change.IsZero() && change.Unix() < to {
			return change.Add(near)
		}
	}
	return at
}

func anyCalendar(t *rapid.T) *calendar.Calendar {
	align := Align(rapid.IntRange(int(AlignDay), int(AlignYear)).Draw(t, "align"))
	zone := rapid.SampledFrom(zones).Draw(t, "zone")
	minutes := rapid.OneOf(rapid.Just(0), rapid.IntRange(-1439, 1439)).Draw(t, "offset in minutes")
	return newTestCalendar(t, align, zone, time.Duration(minutes)*time.Minute)
}

func TestCalendarWindowsAreContiguous(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyCalendar(t)
		now := anyInstant(t, c.Zone)
		start, end := c.Window(now)
		if start.After(now) || !now.Before(end) {
			t.Fatalf("%v is not within its window, %v to %v", now, start, end)
		}
		for _, other := range []time.Time{start, end.Add(-1)} {
			if s, e := c.Window(other); !s.Equal(start) || !e.Equal(end) {
				t.Fatalf("%v is in %v to %v, but %v in %v to %v", now, start, end, other, s, e)
			}
		}
		if s, _ := c.Window(end); !s.Equal(end) {
			t.Fatalf("a window ends at %v, and the next begins at %v", end, s)
		}
		if _, e := c.Window(start.Add(-1)); !e.Equal(start) {
			t.Fatalf("a window begins at %v, and the one before ends at %v", start, e)
		}
	})
}

func TestCalendarWindowMatchesClockSearch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyCalendar(t)
		now := anyInstant(t, c.Zone)
		start, end := c.Window(now)
		wantStart, wantEnd := windowByClock(t, c, now)
		if !start.Equal(wantStart) || !end.Equal(wantEnd) {
			t.Fatalf("the %s around %v\ngot  %v to %v\nwant %v to %v", (AlignDay + Align(c.Unit)), now.In(c.Zone), start, end, wantStart, wantEnd)
		}
	})
}

// windowByClock finds the window around now in the slow way: it lists the first
// dates of windows some weeks, months or years to either side, and for each it
// steps through local time, minute by minute, until it reaches that date.
func windowByClock(t *rapid.T, c *calendar.Calendar, now time.Time) (start, end time.Time) {
	reach := map[Align]int{AlignDay: 4, AlignWeek: 12, AlignMonth: 40, AlignYear: 400}[(AlignDay + Align(c.Unit))]
	at := now.Add(-c.Offset).UTC()
	for days := -reach; days <= reach; days++ {
		date := time.Date(at.Year(), at.Month(), at.Day()+days, 0, 0, 0, 0, time.UTC)
		if !opensWindow((AlignDay + Align(c.Unit)), date) {
			continue
		}
		end = firstMinuteOf(t, c.Zone, date).Add(c.Offset)
		if end.After(now) {
			return start, end
		}
		start = end
	}
	t.Fatalf("no window around %v within %d days", now, reach)
	return start, end
}

func opensWindow(align Align, date time.Time) bool {
	switch align {
	case AlignWeek:
		return date.Weekday() == time.Monday
	case AlignMonth:
		return date.Day() == 1
	case AlignYear:
		return date.YearDay() == 1
	}
	return true
}

// firstMinuteOf returns the first instant at which local time has the date or a
// later one. The offsets of the zones are whole minutes.
func firstMinuteOf(t *rapid.T, loc *time.Location, date time.Time) time.Time {
	want := date.Format(time.DateOnly)
	for minute := -36 * 60; minute <= 36*60; minute++ {
		at := date.Add(time.Duration(minute) * time.Minute).In(loc)
		if _, ahead := at.Zone(); ahead%60 != 0 {
			t.Fatalf("%v: an offset of %d s: look at every second instead", at, ahead)
		}
		if at.Format(time.DateOnly) >= want {
			return at
		}
	}
	t.Fatalf("%s never occurs in %v", want, loc)
	return date
}

// No instant before a window has the date of its first instant.
func TestCalendarWindowsBeginAtNewDate(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyCalendar(t)
		start, _ := c.Window(anyInstant(t, c.Zone))
		first := start.Add(-c.Offset).In(c.Zone)
		date := first.Format(time.DateOnly)
		for minute := 1; minute <= 3*24*60; minute++ {
			earlier := first.Add(-time.Duration(minute) * time.Minute)
			if earlier.Format(time.DateOnly) >= date {
				t.Fatalf("the %s that begins at %v: its date begins at %v already", (AlignDay + Align(c.Unit)), first, earlier)
			}
		}
		if just := first.Add(-1); just.Format(time.DateOnly) >= date {
			t.Fatalf("the %s that begins at %v: its date begins at %v already", (AlignDay + Align(c.Unit)), first, just)
		}
	})
}
