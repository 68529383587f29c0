package penstock

import (
	"time"

	"github.com/penstock-io/penstock/internal/algorithm"
)

// Identity returns what the limit's state belongs to: limits whose identities
// are equal share the state of a key, and others never do. See [Limit.Name]. The
// limit must be valid. Only authors of stores need this.
func (l Limit) Identity() Limit { return l.Normal().identity() }

// identity returns what a normal limit's state belongs to: every field of an
// unnamed limit; of a named one its name and algorithm, and the shape of its
// window, for units counted in one shape mean nothing in another.
func (l Limit) identity() Limit {
	if l.Name == "" {
		return l
	}
	l.Count, l.Burst = 0, 0
	if l.Algorithm.isBucket() {
		l.Period = 0
	}
	return l
}

// Window returns the window around an instant, start included and end not, of a
// [FixedWindow] that is aligned to the clock or the calendar. A window that
// begins with a key's first request begins at the instant. The limit must be
// valid. Only authors of stores need this.
func (l Limit) Window(at time.Time) (start, end time.Time) {
	n := l.Normal()
	switch n.Align {
	case AlignFirst:
		return at, at.Add(n.Period)
	case AlignClock:
		w := algorithm.Aligned(at.UnixNano(), int64(n.Period), int64(n.Offset))
		return time.Unix(0, w.End-w.Length).UTC(), time.Unix(0, w.End).UTC()
	}
	c, err := newCalendar(n)
	if err != nil {
		return time.Time{}, time.Time{}
	}
	return c.window(at)
}
