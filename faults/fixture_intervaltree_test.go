package faults

import (
	"slices"
	"time"
)

// An intervalTree finds the interval of time in which the most was granted beyond what
// a rate refills. A call was decided at some moment between its start and its end, so
// only calls that started and ended within the interval count.
//
// It is a segment tree over the possible starts of an interval. Each leaf holds what
// was granted since its start, in billionths of a unit, plus what the rate had refilled
// before it. Calls are added in the order of their ends, each to all intervals that
// start before it, so the largest value is at the root. Starts that lie ahead are
// inactive: far below zero.
type intervalTree struct {
	begins []time.Duration // in order
	rate   int64           // units a second
	max    []int64         // of each node, without what was added to its ancestors
	added  []int64         // to all leaves of a node
	active []bool
}

const inactive = 1 << 60

// maxExcess returns the most that was granted in any interval beyond what a rate
// refills in it and in one tick. The events are ordered by their end.
func maxExcess(events []event, rate int64, tick time.Duration) (units int64) {
	m := newIntervalTree(events, rate)
	if m == nil {
		return 0
	}
	for _, e := range events {
		first, _ := slices.BinarySearch(m.begins, e.begin+1)
		m.activate(first - 1)
		m.addFirst(first, e.granted()*int64(time.Second))
		units = max(units, m.max[1]-rate*int64(e.end+tick))
	}
	return (units + int64(time.Second) - 1) / int64(time.Second)
}

func newIntervalTree(events []event, rate int64) *intervalTree {
	if len(events) == 0 {
		return nil
	}
	m := &intervalTree{rate: rate, active: make([]bool, len(events))}
	for _, e := range events {
		m.begins = append(m.begins, e.begin)
	}
	slices.Sort(m.begins)
	width := 1
	for width < len(m.begins) {
		width *= 2
	}
	m.max, m.added = make([]int64, 2*width), make([]int64, 2*width)
	for i := range width {
		m.max[width+i] = rate*int64(m.begins[min(i, len(m.begins)-1)]) - inactive
	}
	for i := width - 1; i > 0; i-- {
		m.max[i] = max(m.max[2*i], m.max[2*i+1])
	}
	return m
}

// activate activates one leaf.
func (m *intervalTree) activate(leaf int) {
	if !m.active[leaf] {
		m.active[leaf] = true
		m.addFirst(leaf+1, inactive)
		m.addFirst(leaf, -inactive)
	}
}

// addFirst adds an amount to the first leaves.
func (m *intervalTree) addFirst(leaves int, amount int64) { m.add(1, 0, len(m.max)/2, leaves, amount) }

// add adds an amount to those of the first leaves that are below a node, which has the
// leaves from one index to another.
func (m *intervalTree) add(node, from, to, first int, amount int64) {
	switch {
	case first <= from:
		return
	case first >= to:
		m.max[node] += amount
		m.added[node] += amount
		return
	}
	middle := (from + to) / 2
	m.add(2*node, from, middle, first, amount)
	m.add(2*node+1, middle, to, first, amount)
	m.max[node] = max(m.max[2*node], m.max[2*node+1]) + m.added[node]
}
