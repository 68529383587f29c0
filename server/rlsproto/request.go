package rlsproto

import (
	"fmt"
	"math"
	"time"

	"github.com/penstock-io/penstock/server/engine"
	"github.com/penstock-io/penstock/server/rules"
)

// A Request is what Envoy asks.
type Request struct {
	Domain      string
	Descriptors []Descriptor
	HitsAddend  uint32 // of descriptors that have none; 0 means 1
}

// A Descriptor is one thing to be counted.
type Descriptor struct {
	Entries []rules.Entry

	// Limit is the request's own, in place of what the rules say.
	Limit    Override
	HasLimit bool

	// HitsAddend is how many hits this is, where it is set: 0 looks.
	HitsAddend    uint64
	HasHitsAddend bool

	// IsNegativeHits gives the hits back.
	IsNegativeHits bool
}

// An Override is a limit that a descriptor brings along.
type Override struct {
	RequestsPerUnit uint32
	Unit            int32 // as Envoy numbers them

	// UnitMultiplier is how many units a period is, where it is set.
	UnitMultiplier    uint32
	HasUnitMultiplier bool
}

// maxEntries is the most entries that a descriptor may have.
const maxEntries = 16

// HasRefund reports whether the request gives hits back.
func (q *Request) HasRefund() bool {
	for i := range q.Descriptors {
		if q.cost(&q.Descriptors[i]) < 0 {
			return true
		}
	}
	return false
}

// cost returns what a descriptor asks for. A field of the request that is 0 may
// not have been set, so it means 1; in the descriptor's own, 0 is 0.
func (q *Request) cost(d *Descriptor) int64 {
	hits := uint64(max(q.HitsAddend, 1))
	if d.HasHitsAddend {
		hits = min(d.HitsAddend, math.MaxInt64)
	}
	if d.IsNegativeHits {
		return -int64(hits)
	}
	return int64(hits)
}

// maxPeriod is the longest period that a limit may have.
const maxPeriod = 366 * 24 * time.Hour

// apply makes the override the limit of a descriptor.
func (o *Override) apply(d *engine.Descriptor) error {
	unit := rules.Unit(o.Unit)
	if unit.Length() == 0 {
		return fmt.Errorf("want a unit of time, got number %d", o.Unit)
	}
	d.Limit = unit.Limit(o.RequestsPerUnit)
	d.RequestsPerUnit, d.Unit = o.RequestsPerUnit, unit
	if !o.HasUnitMultiplier {
		return nil
	}
	n := time.Duration(o.UnitMultiplier)
	if n < 1 || n > maxPeriod/unit.Length() {
		return fmt.Errorf("want a period of up to 366 days, got %d times a %v", o.UnitMultiplier, unit)
	}
	d.Limit.Period *= n
	return nil
}

// reset makes the request an empty one, and keeps the room that it has.
func (q *Request) reset() {
	q.Domain, q.HitsAddend, q.Descriptors = "", 0, q.Descriptors[:0]
}

// addDescriptor returns a new descriptor of the request.
func (q *Request) addDescriptor() *Descriptor {
	if n := len(q.Descriptors); n < cap(q.Descriptors) {
		q.Descriptors = q.Descriptors[:n+1]
		d := &q.Descriptors[n]
		*d = Descriptor{Entries: d.Entries[:0]}
		return d
	}
	q.Descriptors = append(q.Descriptors, Descriptor{})
	return &q.Descriptors[len(q.Descriptors)-1]
}

// tooManyEntries is the error about a descriptor that is too long.
func tooManyEntries() error {
	return fmt.Errorf("%w: a descriptor has more than %d entries", ErrMalformed, maxEntries)
}

// tooManyDescriptors is the judge's error, before there are too many to hold.
func tooManyDescriptors(most int) error {
	return fmt.Errorf("%w: at most %d are decided at once", engine.ErrTooManyDescriptors, most)
}
