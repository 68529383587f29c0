package penstock

import (
	"time"

	"github.com/penstock-io/penstock/internal/calendar"
)

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
