package faults

import (
	"slices"
	"time"
)

// A mostIn finds the interval of time in which most was granted beyond what a rate
// gives back. A call was decided at some moment between its beginning and its end,
// so only those count that began and ended within the interval.
//
// For each instant that an interval may begin at, a tree holds what was granted
// since, in billionths of a unit, plus what the rate has given back before it: when
// calls come in the order of their ends, one call is added to all intervals that
// begin before it did, and the largest of all is at the root. Those that have not
// begun are far below zero.
type mostIn struct {
	begins []time.Duration // in order
	rate   int64           // units a second
	most   []int64         // of each part of the tree, without what was added above it
	added  []int64         // to all of a part
	begun  []bool
}

const farBelow = 1 << 60

// beyond returns the most that was granted in any interval beyond what a rate gave
// back in it and in one tick. The events are in the order of their ends.
func beyond(events []event, rate int64, tick time.Duration) (units int64) {
	m := newMostIn(events, rate)
	if m == nil {
		return 0
	}
	for _, e := range events {
		first, _ := slices.BinarySearch(m.begins, e.begin+1)
		m.begin(first - 1)
		m.addFirst(first, e.granted()*int64(time.Second))
		units = max(units, m.most[1]-rate*int64(e.end+tick))
	}
	return (units + int64(time.Second) - 1) / int64(time.Second)
}

func newMostIn(events []event, rate int64) *mostIn {
	if len(events) == 0 {
		return nil
	}
	m := &mostIn{rate: rate, begun: make([]bool, len(events))}
	for _, e := range events {
		m.begins = append(m.begins, e.begin)
	}
	slices.Sort(m.begins)
	width := 1
	for width < len(m.begins) {
		width *= 2
	}
	m.most, m.added = make([]int64, 2*width), make([]int64, 2*width)
	for i := range width {
		m.most[width+i] = rate*int64(m.begins[min(i, len(m.begins)-1)]) - farBelow
	}
	for i := width - 1; i > 0; i-- {
		m.most[i] = max(m.most[2*i], m.most[2*i+1])
	}
	return m
}

// begin makes the intervals count that begin at one place.
func (m *mostIn) begin(place int) {
	if !m.begun[place] {
		m.begun[place] = true
		m.addFirst(place+1, farBelow)
		m.addFirst(place, -farBelow)
	}
}

// addFirst adds an amount to some of the first places.
func (m *mostIn) addFirst(places int, amount int64) { m.add(1, 0, len(m.most)/2, places, amount) }

// add adds an amount to the first places of a part of the tree, which holds those
// from one place to another.
func (m *mostIn) add(part, from, to, first int, amount int64) {
	switch {
	case first <= from:
		return
	case first >= to:
		m.most[part] += amount
		m.added[part] += amount
		return
	}
	middle := (from + to) / 2
	m.add(2*part, from, middle, first, amount)
	m.add(2*part+1, middle, to, first, amount)
	m.most[part] = max(m.most[2*part], m.most[2*part+1]) + m.added[part]
}
