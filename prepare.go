package penstock

import (
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// This file is for those who write a [Store]. Whoever only asks one needs
// nothing of it.

// Validate returns an error if the request has no meaning under any state of
// its key: if it names nobody, asks for something contradictory, or its limit
// cannot be counted by.
func (r Request) Validate() error {
	if err := r.check(); err != nil {
		return err
	}
	return r.Limit.Validate()
}

// Normal returns the limit with its defaults filled in and the fields that its
// algorithm ignores cleared: limits of one meaning have one normal form. The
// limit must be valid.
func (l Limit) Normal() Limit { return l.normal() }

// Identity returns what the limit's state belongs to: limits whose identities
// are equal share the state of a key, and others never do. See [Limit.Name]. The
// limit must be valid.
func (l Limit) Identity() Limit { return l.normal().identity() }

// Window returns the window around an instant, start included and end not, of a
// [FixedWindow] that is aligned to the clock or the calendar. A window that
// begins with a key's first request begins at the instant. The limit must be
// valid.
func (l Limit) Window(at time.Time) (start, end time.Time) {
	n := l.normal()
	switch n.Align {
	case AlignFirst:
		return at, at.Add(n.Period)
	case AlignClock:
		w := algorithm.Aligned(at.UnixNano(), int64(n.Period), int64(n.Offset))
		return time.Unix(0, w.End-w.Length).UTC(), time.Unix(0, w.End).UTC()
	}
	c, err := newCalendar(n)
	if err != nil {
		return at, at.Add(n.Period) // not for a valid limit
	}
	return c.window(at)
}
