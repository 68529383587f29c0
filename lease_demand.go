package penstock

import "time"

// A demand estimates the rate at which units of a key are requested.
type demand struct {
	units int64 // requested since then
	since int64
}

// minDemandSpan keeps the first few requests of a key from looking like a flood.
const minDemandSpan = 50 * time.Millisecond

// age halves the demand if it spans more than maxAge, and drops it if it is much
// older.
func (m *demand) age(now, maxAge int64) {
	switch age := now - m.since; {
	case age > 8*maxAge || age < 0:
		m.units, m.since = 0, now
	case age > maxAge:
		m.units, m.since = m.units/2, m.since+age/2
	}
}

// elapsed returns the time that the demand spans.
func (m *demand) elapsed(now int64) int64 { return max(now-m.since, int64(minDemandSpan)) }

// within returns how many units will be requested within span, at the estimated
// rate.
func (m *demand) within(now, span int64) int64 {
	return int64(float64(m.units) * float64(span) / float64(m.elapsed(now)))
}

// timeFor returns how long it takes until that many units are requested, at the
// estimated rate.
func (m *demand) timeFor(now, units int64) int64 {
	return int64(float64(units) * float64(m.elapsed(now)) / float64(max(m.units, 1)))
}
